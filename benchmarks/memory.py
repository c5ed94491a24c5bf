"""Peak memory of the update phase, ours against TRL's GRPOTrainer, and of the phases of a real training step.

The same rows (token ids drawn at random, prompts with a common beginning, some of eight completions right) go through
one forward and backward pass and one AdamW step, all rows in one micro-batch, in a process of its own for each side:

    trl                GRPOTrainer, dapo loss, bf16 autocast, no gradient checkpointing
    trl_checkpointing  the same with gradient checkpointing, which is GRPOConfig's default
    qae_dense          ours with the mean as baseline: every row, equal work
    qae                ours with QAE at K = .4: rows with advantage 0 are left out
    qae_checkpointing  `qae_dense` with update.checkpoint_activations

`--sides` chooses; those with checkpointing are left out unless they are named.

TRL generates nothing here: it gets the rows as if it had. Ours holds the sampler's copy of the weights, as in a run.
After a small warm-up update every side makes some measured ones; before each the free memory is given back and the
kernel's high-water mark reset. `above_state_mb` is the mark less what was resident with all libraries loaded and
before the model was, less 16 bytes a parameter: fp32 weights, gradients and AdamW's two moments. MB are 2^20 bytes.

`phases` are the peaks of sampling and of updating in `qae train smollm2-addition`, whole process, as its metrics say.
Linux only. Without `--trl-python` ours is measured alone. Prints one JSON object; `--out` also writes it to a file.
"""

import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import harness

OURS = ("qae_dense", "qae", "qae_checkpointing")
THEIRS = ("trl", "trl_checkpointing")
GROUP = 8
# prompts, common prompt tokens, own prompt tokens, shortest and longest completion
WORKS = {"few_shot": (4, 42, 8, 2, 8), "words": (1, 20, 25, 64, 128)}
SMALL_WORKS = {"few_shot": (2, 20, 8, 2, 8), "words": (1, 8, 8, 16, 32)}
SUCCESSES = (3, 1, 5, 7)
RATIOS = (
    ("trl", "qae_dense"),
    ("trl", "qae"),
    ("trl_checkpointing", "qae_checkpointing"),
    ("trl_checkpointing", "qae"),
)


def make_rows(work: tuple[int, ...], vocabulary: int) -> dict[str, Any]:
    """Prompts, the group of each row, completions and rewards."""
    prompts, common, own, shortest, longest = work
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    prefix = ids(common)
    rewards = [[1.0] * (n := SUCCESSES[g % 4]) + [0.0] * (GROUP - n) for g in range(prompts)]
    return {
        "prompts": [prefix + ids(own) for _ in range(prompts)],
        "group": [g for g in range(prompts) for _ in range(GROUP)],
        "completions": [ids(rng.randint(shortest, longest)) for _ in range(prompts * GROUP)],
        "rewards": [r for group in rewards for r in group],
    }


def start_libraries() -> float:
    """Start thread pools and matrix libraries; what is resident then."""
    import torch

    from qae.trainer.memory import resident_mb

    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(256, 256, dtype=dtype, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(*[(a @ a)[None, None]] * 3).sum().backward()
    harness.give_back()
    return resident_mb()


def above_state(peaks: list[float], libraries: float, parameters: int) -> dict[str, Any]:
    state = 16 * parameters / 2**20
    return {
        "peak_mb": peaks,
        "libraries_mb": libraries,
        "state_mb": state,
        "above_state_mb": [peak - libraries - state for peak in peaks],
    }


def measure_ours(side: str, policy_path: str, dtype: str, rows: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The child of a side of ours."""
    import torch

    from qae.advantages import mean_advantages, quantile_advantages
    from qae.policies import load_policy
    from qae.sampling import make_engine
    from qae.trainer.config import TrainConfig
    from qae.trainer.loop import train  # noqa: F401  everything that a run loads
    from qae.trainer.memory import phase_peak, resident_mb
    from qae.trainer.packing import packing_fault
    from qae.trainer.step import Learner, Rows

    libraries = start_libraries()
    policy = load_policy(policy_path, dtype=dtype, device="cpu")
    tokens = sum(len(rows["prompts"][g]) + len(c) for g, c in zip(rows["group"], rows["completions"], strict=True))
    config = TrainConfig.load(
        "smollm2-addition",
        "update.minibatches=1",
        f"update.tokens_per_microbatch={tokens}",
        "update.behaviour_logprobs=recompute",
        f"update.checkpoint_activations={'true' if side == 'qae_checkpointing' else 'false'}",
    )
    engine = make_engine("builtin", policy)
    engine.refresh()
    learner = Learner(config, policy, share_prompts=packing_fault(policy) is None)
    estimator = quantile_advantages if side == "qae" else mean_advantages
    advantages = estimator(torch.tensor(rows["rewards"]), torch.tensor(rows["group"]))

    def some(count: int) -> Rows:
        completions = rows["completions"][:count]
        lengths = torch.tensor([len(c) for c in completions])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return Rows(
            rows["prompts"], rows["group"][:count], completions, torch.zeros(mask.shape), advantages[:count], mask
        )

    learner.learn(some(GROUP), step=1)
    everyone, peaks, kept = some(len(rows["group"])), [], 0.0
    harness.give_back()
    at_rest = resident_mb()
    for _ in range(repeats):
        harness.give_back()
        with phase_peak(policy.device) as peak:
            stats = learner.learn(everyone, step=2)
        peaks.append(peak.mb)
        kept = stats.rows_kept / stats.rows
    found = above_state(peaks, libraries, sum(p.numel() for p in learner.parameters))
    return found | {"at_rest_mb": at_rest, "rows_kept_frac": kept}


def measure_trl(side: str, policy_path: str, dtype: str, rows: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The child of a side of TRL's."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from transformers.utils import logging
    from trl import GRPOConfig, GRPOTrainer

    from qae.advantages import mean_advantages
    from qae.trainer.memory import phase_peak, resident_mb

    logging.set_verbosity_error()
    libraries = start_libraries()
    model = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32)
    advantages = mean_advantages(torch.tensor(rows["rewards"]), torch.tensor(rows["group"]))
    stack, marks, peaks, at_rest = ExitStack(), [], [], []

    def given(count: int) -> dict[str, Any]:
        prompts = [rows["prompts"][g] for g in rows["group"][:count]]
        completions = rows["completions"][:count]
        p, c = max(map(len, prompts)), max(map(len, completions))
        return {
            "prompt_ids": torch.tensor([[0] * (p - len(x)) + x for x in prompts]),
            "prompt_mask": torch.tensor([[0] * (p - len(x)) + [1] * len(x) for x in prompts]),
            "completion_ids": torch.tensor([x + [0] * (c - len(x)) for x in completions]),
            "completion_mask": torch.tensor([[1] * len(x) + [0] * (c - len(x)) for x in completions]),
            "advantages": advantages[:count],
            "num_items_in_batch": torch.tensor(sum(map(len, completions))),
        }

    class Given(GRPOTrainer):
        """Gets its rows instead of generating them; the first, small update is the warm-up."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            made = given(len(rows["group"]) if self.state.global_step else GROUP)
            harness.give_back()
            if self.state.global_step:
                at_rest.append(resident_mb())
                marks.append(stack.enter_context(phase_peak(torch.device("cpu"))))
            return made

    class Read(TrainerCallback):
        """Takes the mark when the optimiser is done."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            stack.close()
            if marks:
                peaks.append(marks[-1].mb)

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(rows["group"]),
            num_generations=GROUP,
            max_completion_length=max(map(len, rows["completions"])),
            max_steps=1 + repeats,
            gradient_checkpointing=side == "trl_checkpointing",
            bf16=dtype == "bfloat16",
            use_cpu=True,
            beta=0.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Given(
            model=model,
            args=arguments,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_list([{"prompt": "1"}] * len(rows["group"])),
            processing_class=AutoTokenizer.from_pretrained(policy_path),
            callbacks=[Read()],
        )
        trainer.train()
    found = above_state(peaks, libraries, sum(p.numel() for p in model.parameters()))
    return found | {"at_rest_mb": at_rest[0], "rows_kept_frac": 1.0}


def measure_phases(policy_path: str, dtype: str, overrides: list[str], steps: int) -> list[dict[str, Any]]:
    """The child that trains: peaks of each step from its metrics."""
    from qae.records import read_metrics
    from qae.trainer.config import TrainConfig
    from qae.trainer.loop import train

    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig.load(
            "smollm2-addition", f"policy.path={policy_path}", f"policy.dtype={dtype}", f"steps={steps}",
            "eval.problems=0", "checkpoint.every=0", *overrides,
        )  # fmt: skip
        run = train(config, run_dir=Path(folder) / "run")
        names = ("memory/sample_peak_mb", "memory/update_peak_mb", "memory_peak_mb", "seconds/sample", "seconds/update")
        return [{name: record[name] for name in ("step", *names)} for record in read_metrics(run)]


def child(task: dict[str, Any]) -> Any:
    """What a process of its own is asked to do."""
    if task["do"] == "phases":
        return measure_phases(task["policy"], task["dtype"], task["overrides"], task["steps"])
    measure = measure_ours if task["side"] in OURS else measure_trl
    return measure(task["side"], task["policy"], task["dtype"], task["rows"], task["repeats"])


def ask(python: str, launcher: list[str], task: dict[str, Any]) -> Any:
    """Run `child` in a process of its own."""
    command = [*launcher, python, str(Path(__file__).resolve()), "--child", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{task['do']} {task.get('side', '')} failed:\n{done.stderr[-3000:]}")
    return json.loads(next(line[1:] for line in done.stdout.splitlines() if line.startswith("@")))


def compare(
    args: Any, source: str, vocabulary: int, sides: list[str], works: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Every side on every workload, and the ratios of what they need above the state."""
    results: dict[str, Any] = {}
    for work in args.works:
        rows = make_rows(works[work], vocabulary)
        found: dict[str, Any] = {}
        for side in sides:
            python = args.trl_python if side in THEIRS else sys.executable
            task = {"do": "update", "side": side, "policy": source, "dtype": args.dtype, "rows": rows}
            found[side] = ask(python, args.launcher, task | {"repeats": args.alternations})
        above = {side: one.pop("above_state_mb") for side, one in found.items()}
        results[work] = {
            "rows": len(rows["group"]),
            "padded_tokens": len(rows["group"])
            * (max(map(len, rows["prompts"])) + max(len(c) for c in rows["completions"])),
            "sides": {
                side: {
                    **one,
                    "peak_mb": harness.spread(one["peak_mb"]),
                    "above_state_mb": harness.spread(above[side]),
                }
                for side, one in found.items()
            },
            **{
                f"{theirs}_over_{ours}": harness.ratios(above[theirs], above[ours])
                for theirs, ours in RATIOS
                if theirs in above and ours in above
            },
        }
    return results


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, measure, print."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        print("@" + json.dumps(child(json.loads(argv[1]))))
        return
    parser = harness.parser(__doc__)
    harness.add_trl(parser)
    parser.add_argument("--policy", default="smollm2", help="as policy.path in a config")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--works", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument("--sides", nargs="+", choices=(*THEIRS, *OURS), default=["trl", "qae_dense", "qae"])
    parser.add_argument("--phase-steps", type=int, default=2, help="0: no training run")
    parser.add_argument("--phase-overrides", nargs="*", default=[], metavar="KEY=VALUE", help="of the training run")
    parser.add_argument("--small", action="store_true", help="few rows and tokens: for a test")
    parser.add_argument("--launcher", type=shlex.split, default=[], help="put before each child's command")
    args = parser.parse_args(argv)
    if not Path("/proc/self/clear_refs").exists():
        harness.skip("peaks are read from /proc, which this system does not have")

    from qae.policies.policy import PolicyError
    from qae.policies.source import resolve_source

    try:
        source = resolve_source(args.policy)
    except PolicyError as error:
        harness.skip(str(error))
    if not args.trl_python:
        print("TRL is not compared: give --trl-python, or set TRL_PYTHON", file=sys.stderr)
    sides = [side for side in args.sides if side in OURS or args.trl_python]
    works = SMALL_WORKS if args.small else WORKS
    vocabulary = json.loads((Path(source) / "config.json").read_text())["vocab_size"]
    where = harness.environment("qae", "torch", "transformers")
    if args.trl_python:
        code = "from importlib.metadata import version; print(version('trl'))"
        where["versions"]["trl"] = subprocess.check_output([args.trl_python, "-c", code], text=True).strip()
    results = compare(args, source, vocabulary, sides, works)
    task = {"do": "phases", "policy": source, "dtype": args.dtype, "overrides": args.phase_overrides}
    result = {
        "benchmark": "memory",
        "policy": Path(args.policy).name,
        "dtype": args.dtype,
        **where,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "config": {
            "group_size": GROUP,
            "repeats": args.alternations,
            "works": {
                name: dict(zip(("prompts", "common", "own", "shortest", "longest"), works[name], strict=True))
                for name in args.works
            },
        },
        "works": results,
        "phases": ask(sys.executable, args.launcher, task | {"steps": args.phase_steps}) if args.phase_steps else None,
    }
    harness.finish(result, args.out)


if __name__ == "__main__":
    main()
