"""TRL's loss phase, dense and with rows of advantage 0 left out: one batch, the same gradients, seconds.

    python benchmarks/trl_skip.py --trl-python .venv-trl/bin/python

The shipped tiny policy samples one batch of its own task in TRL's GRPOTrainer; then the loss and its backward pass are
timed in turn: dense, skipping with the entropy of skipped rows measured, and skipping without it.
"""

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import harness
import torch

MODES = {"dense": (False, "all"), "skip": (True, "all"), "skip, entropy of kept rows": (True, "kept")}


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(c.rsplit("#", 1)[-1].strip() == a) for c, a in zip(completions, answer, strict=True)]


def one_batch(rows: int, k: float) -> tuple[Any, Any, dict[str, Any]]:
    """Train one step, and keep what its loss was given."""
    from datasets import Dataset
    from trl import GRPOConfig

    from qae.integrations.trl import QuantileGRPOTrainer
    from qae.policies.source import TINY
    from qae.tasks import make_task

    task = make_task({"name": "arithmetic", "levels": ["2x1", "2x2"]}, seed=0)
    items = [task.train_item(i) for i in range(rows)]
    kept: list[tuple[Any, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=rows, num_generations=8, max_completion_length=64, max_steps=1,
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
            disable_tqdm=True, seed=0, learning_rate=0.0,
        )  # fmt: skip
        trainer = QuantileGRPOTrainer(
            model=str(TINY),
            reward_funcs=right,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": item.prompt, "answer": item.answer} for item in items]),
            quantile_k=k,
        )
        loss = trainer._compute_loss
        trainer._compute_loss = lambda model, inputs: kept.append((model, inputs)) or loss(model, inputs)
        trainer.train()
        trainer._compute_loss = loss
    model, inputs = kept[0]
    model.train()
    return trainer, model, inputs


def loss_phase(trainer: Any, model: Any, inputs: dict[str, Any], mode: str) -> tuple[float, torch.Tensor]:
    trainer.skips_rows, trainer.quantile.entropy_rows = MODES[mode]
    model.zero_grad()
    start = time.perf_counter()
    trainer._compute_loss(model, inputs).backward()
    seconds = time.perf_counter() - start
    return seconds, torch.cat([p.grad.flatten() for p in model.parameters()])


def main() -> None:
    parser = harness.parser(__doc__, alternations=7)
    harness.add_trl(parser)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--k", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        if not args.trl_python:
            harness.skip("it needs TRL: give --trl-python or set TRL_PYTHON")
        os.execv(args.trl_python, [args.trl_python, *sys.argv])
    torch.set_num_threads(args.threads)
    trainer, model, inputs = one_batch(args.rows, args.k)
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    gradients: dict[str, torch.Tensor] = {}
    for turn in range(args.alternations + 1):
        for mode in MODES:
            taken, gradients[mode] = loss_phase(trainer, model, inputs, mode)
            if turn:
                seconds[mode].append(taken)
    dense = gradients["dense"]
    medians = {mode: statistics.median(times) for mode, times in seconds.items()}
    result = {
        "environment": harness.environment("torch", "trl", "qae"),
        "threads": args.threads,
        "rows": args.rows,
        "k": args.k,
        "zero_frac": float((inputs["advantages"] == 0).float().mean()),
        "seconds": medians,
        "times_faster": {mode: medians["dense"] / value for mode, value in medians.items()},
        "gradient_difference": {mode: float((g - dense).norm() / dense.norm()) for mode, g in gradients.items()},
    }
    harness.finish(result, args.out)


if __name__ == "__main__":
    main()
