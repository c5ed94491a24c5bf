"""A made-up run as the events that the trainer would send, for looking at the views without training.

python tests/fake_events.py [--plain] [--seconds-a-step 1.0] [--steps 40]
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from qae.terminal import open_view, print_summary
from qae.trainer.config import TrainConfig

Event = tuple[str, dict[str, Any]]


def fake_run(config: TrainConfig, run_dir: Path, *, resumed_step: int = 0) -> Iterator[Event]:
    """Every event of a run of `config`, in the trainer's order."""
    chance = random.Random(0)
    yield "start", {"config": config, "run_dir": run_dir, "resumed_step": resumed_step}
    yield "phase", {"phase": "load", "done": 0, "total": 1, "tokens": 0}
    yield "note", {"text": "policy tiny: 0.6 M parameters, float32 on cpu"}
    if not resumed_step:
        yield from _evaluation(config, 0, 0.25)
    rows = config.rollout.prompts * config.rollout.group_size
    for step in range(resumed_step + 1, config.steps + 1):
        for phase, total in (("sample", rows), ("grade", rows), ("update", config.update.minibatches)):
            for tick in range(9):
                yield (
                    "phase",
                    {"phase": phase, "done": total * tick // 8, "total": total, "tokens": 40 * tick},
                )
        gain = 0.2 * step / config.steps
        yield "step", {"metrics": fake_metrics(step, 0.25 + gain + chance.gauss(0, 0.02), chance)}
        if step == 7:
            yield "warning", {"text": "1 of 8 updates skipped: the gradient was not finite"}
        if step == config.steps or (config.eval.every and step % config.eval.every == 0):
            yield from _evaluation(config, step, 0.25 + gain)
            yield "phase", {"phase": "checkpoint", "done": 0, "total": 1, "tokens": 0}
    yield "end", {"before": None, "after": None, "run_dir": run_dir, "checkpoint": None, "seconds": 61.0}


def fake_metrics(step: int, pass_rate: float, chance: random.Random) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    hard = 0.6 - 0.3 * pass_rate
    return {
        "step": step, "outcome": pass_rate, "reward": pass_rate, "entropy": 0.43 * math.exp(-step / 60),
        "regime/hard_frac": hard, "regime/easy_frac": 0.9 - hard, "regime/flat_frac": 0.1,
        "advantage/zero_frac": 0.74 + chance.gauss(0, 0.02), "rows/kept_frac": 0.26, "lr": 3e-5,
        "clip_ratio/low_mean": 0.001, "clip_ratio/high_mean": 0.012 * chance.random(), "grad_norm": 0.4,
        "tokens/sampled": 10_432, "seconds/sample": 1.8, "seconds/grade": 0.04, "seconds/update": 1.2,
        "seconds/step": 3.1, "completions/mean_length": 40.7,
    }  # fmt: skip


def _evaluation(config: TrainConfig, step: int, pass_rate: float) -> Iterator[Event]:
    total, samples = config.eval.problems * config.eval.samples, config.eval.samples
    if not total:
        return
    for tick in range(9):
        yield "phase", {"phase": "eval", "done": total * tick // 8, "total": total, "tokens": 40 * tick}
    yield "eval", {"metrics": {
        "step": step, "eval/pass@1": pass_rate, "eval/pass@1_low": pass_rate - 0.04,
        "eval/pass@1_high": pass_rate + 0.04, f"eval/pass@{samples}": 0.81, "eval/samples": samples,
        "eval/entropy": 0.4, "eval/mean_length": 41.2, "eval/truncated_frac": 0.031,
        "eval/problems": config.eval.problems,
        "eval/pass@1/1": pass_rate + 0.4, "eval/pass@1/2": pass_rate, "eval/pass@1/3": pass_rate - 0.2,
    }}  # fmt: skip


def play(view: Any, events: Iterator[Event], pause: Callable[[str], None]) -> None:
    """Send the events to a view, with a pause after each."""
    for name, data in events:
        view.event(name, **data)
        pause(name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seconds-a-step", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    console = Console()
    view = open_view(console, plain=options.plain)
    events = fake_run(TrainConfig.load("tiny", f"steps={options.steps}"), Path("runs/tiny-20260101-120000"))
    try:
        play(view, events, lambda name: time.sleep(options.seconds_a_step / 27))
    finally:
        view.close()
    print_summary(console, view.progress, Path("runs/tiny-20260101-120000/report.html"))
