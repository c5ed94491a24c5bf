"""Writes the small dumps under tests/audit/fixtures/ with the real programs. Needs trl, tensorboard, wandb, datasets.

python scripts/write_audit_fixtures.py tests/audit/fixtures
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}

import torch
import wandb
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.tensorboard import SummaryWriter
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def even(completions, **_):
    """1 for an even number of letters, 0 for an odd one, None for eleven."""
    counts = [len(c.split()) for c in completions]
    return [None if n == 11 else float(n % 2 == 0) for n in counts]


def trl(out: Path, work: Path) -> None:
    """Three steps of a tiny random model with two updates a batch, so that the first batch is logged twice."""
    letters = {c: i for i, c in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh?"])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    arguments = GRPOConfig(
        output_dir=str(work / "trl"), per_device_train_batch_size=8, num_generations=4, max_completion_length=12,
        max_steps=3, logging_steps=1, log_completions=True, report_to="none", use_cpu=True,
        save_strategy="steps", save_steps=3, bf16=False, seed=0, num_iterations=2,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["ab?", "cd?", "ef?", "gh?"] * 4})
    GRPOTrainer(LlamaForCausalLM(config), even, args=arguments, train_dataset=prompts, processing_class=fast).train()
    for path in sorted((work / "trl" / "completions").glob("*.parquet")):
        shutil.copy(path, out / "trl" / "completions")
    state = json.loads((work / "trl" / "checkpoint-3" / "trainer_state.json").read_text())
    (out / "trl" / "trainer_state.json").write_text(json.dumps(state, indent=1))


def loggers(out: Path, work: Path) -> None:
    """A curve that explodes, long enough for wandb's records to cross a block of 32 KiB."""
    curve = [0.4 if s < 20 else 0.4 * 1.1 ** (s - 20) for s in range(60)]
    with SummaryWriter(str(work / "curve")) as writer:
        for step, entropy in enumerate(curve):
            writer.add_scalar("actor/entropy", entropy, step)
            writer.add_text("note", "x" * 50, step)
    shutil.copy(next((work / "curve").glob("*tfevents*")), out / "events.out.tfevents.2.curve")
    # without what describes the machine
    quiet = wandb.Settings(
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False, disable_git=True, disable_code=True,
        console="off", program="curve.py", program_relpath="curve.py", host="host", username="user",
    )  # fmt: skip
    run = wandb.init(project="fixtures", dir=str(work), settings=quiet)
    for step, entropy in enumerate(curve):
        run.log({"train/entropy": entropy, "note": "x" * 700, "nested": {"a": step}}, step=step)
    run.finish()
    wandb.teardown()
    shutil.copy(next((work / "wandb").glob("offline-run-*/*.wandb")), out / "run-curve.wandb")


def main() -> None:
    """Write everything."""
    out = Path(sys.argv[1]).resolve()
    (out / "trl" / "completions").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trl(out, Path(folder))
        loggers(out, Path(folder))


if __name__ == "__main__":
    main()
