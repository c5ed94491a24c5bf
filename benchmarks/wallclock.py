"""Held-out pass@1 against seconds: the mean, QAE, and as many rows chosen at random as QAE keeps.

The shipped policy on the shipped task, several seeds; the arms of a seed see the same prompts. Arms:

    mean      the group's mean as baseline; every row of a mixed group is in the update
    qae       QAE at K = .4; rows with advantage 0 are left out of forward and backward pass
    random    the mean's advantages on a random choice of rows, as many as QAE would keep of this batch, others 0

`random` has QAE's cost and none of its choice: what QAE gains over it is which rows are kept, what both gain over the
mean is the time. Seconds are those of training; evaluations are taken out. They are processor seconds of one thread,
which is what the clock shows when nothing else wants the processor. Runs follow one another, arms alternating, each in
a process of its own; `--runs DIR` keeps finished ones, so that a second call goes on.

`at_steps` compares arms after equal numbers of steps, `at_seconds` after equal training time (the least total among
the arms of a seed; pass@1 interpolated between evaluations). Differences are paired by seed: mean and all values, from
which a reader sees more than from an interval over five. Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import harness

FINISHED = "finished"
ARMS = ("mean", "qae", "random")
# step, training seconds, held-out pass@1
Curve = list[tuple[int, float, float]]


def run(arm: str, seed: int, directory: Path, overrides: Sequence[str]) -> None:
    """One training run."""
    import torch

    import qae.trainer.loop as loop
    from qae.advantages import quantile_advantages
    from qae.trainer.config import TrainConfig

    mean = () if arm == "qae" else ("algorithm.advantage=mean",)
    config = TrainConfig.load("tiny", "threads=1", f"seed={seed}", "eval.every=10", *mean, *overrides)
    if arm == "random":
        generator = torch.Generator().manual_seed(seed)
        plain = loop.advantages_of

        def masked(config: TrainConfig, groups: list[Any], *, step: int) -> torch.Tensor:
            advantages = plain(config, groups, step=step)
            rewards = torch.tensor([r for group in groups for r in group.rewards])
            ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.rewards])
            keep = int((quantile_advantages(rewards, ids, 0.4) != 0).sum())
            mixed = (advantages != 0).nonzero()[:, 0]
            kept = mixed[torch.randperm(len(mixed), generator=generator)[:keep]]
            return torch.zeros_like(advantages).index_copy(0, kept, advantages[kept])

        loop.advantages_of = masked
    loop.perf_counter = process_time
    loop.train(config, run_dir=directory)
    (directory / FINISHED).touch()


def curve(directory: Path) -> tuple[Curve, float]:
    """Evaluations of a run, and the share of completion tokens that entered an update's forward pass."""
    from qae.records import read_metrics

    found: Curve = []
    evaluating, tokens = 0.0, []
    for record in read_metrics(directory):
        if "eval/pass@1" in record:
            evaluating += record["seconds/eval"]
            found.append((record["step"], record["seconds"] - evaluating, record["eval/pass@1"]))
        else:
            tokens.append(record["tokens/kept_frac"])
    start = found[0][1]
    return [(step, seconds - start, value) for step, seconds, value in found], statistics.mean(tokens)


def at(points: Curve, seconds: float) -> float:
    """pass@1 at a time, between the evaluations around it."""
    for (_, a, low), (_, b, high) in pairwise(points):
        if a <= seconds <= b:
            return low + (high - low) * (seconds - a) / (b - a)
    return points[-1][2]


def compare(curves: dict[str, list[Curve]], seeds: int) -> dict[str, Any]:
    """Paired differences of the arms, after equal steps and after equal seconds."""
    result: dict[str, Any] = {"at_steps": {}, "at_seconds": {}, "seconds_of_comparison": []}
    for a, b in (("qae", "mean"), ("random", "mean"), ("qae", "random")):
        by_step = [curves[a][s][-1][2] - curves[b][s][-1][2] for s in range(seeds)]
        limits = [min(curves[arm][s][-1][1] for arm in ARMS) for s in range(seeds)]
        by_time = [at(curves[a][s], limits[s]) - at(curves[b][s], limits[s]) for s in range(seeds)]
        result["seconds_of_comparison"] = limits
        for name, values in (("at_steps", by_step), ("at_seconds", by_time)):
            result[name][f"{a}_minus_{b}"] = {"mean": statistics.mean(values), "values": values}
    return result


def main() -> None:
    """Parse the arguments, run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value, as for `qae train`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, help="keep runs here, and go on with those that are missing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help="only this run, into --runs")
    args = parser.parse_args()
    if args.one:
        arm, seed = args.one[0], int(args.one[1])
        run(arm, seed, args.runs / f"{arm}-{seed}", args.overrides)
        return
    with tempfile.TemporaryDirectory() as temporary:
        runs = args.runs or Path(temporary)
        for seed in range(args.seeds):
            for arm in ARMS:
                directory = runs / f"{arm}-{seed}"
                if (directory / FINISHED).exists():
                    continue
                command = [sys.executable, __file__, "--runs", str(runs), "--one", arm, str(seed), *args.overrides]
                subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        found = {arm: [curve(runs / f"{arm}-{seed}") for seed in range(args.seeds)] for arm in ARMS}
    curves = {arm: [points for points, _ in each] for arm, each in found.items()}
    harness.finish(
        {
            "benchmark": "wallclock",
            "recipe": "tiny",
            "overrides": args.overrides,
            "seeds": args.seeds,
            "environment": harness.environment("qae", "torch"),
            "arms": {
                arm: {
                    "seconds": harness.spread([points[-1][1] for points in curves[arm]]),
                    "tokens_kept_frac": harness.spread([kept for _, kept in found[arm]]),
                    "pass@1": [
                        {
                            "step": curves[arm][0][i][0],
                            "seconds": statistics.mean(points[i][1] for points in curves[arm]),
                            "mean": statistics.mean(points[i][2] for points in curves[arm]),
                            "values": [points[i][2] for points in curves[arm]],
                        }
                        for i in range(len(curves[arm][0]))
                    ],
                }
                for arm in ARMS
            },
            **compare(curves, args.seeds),
        },
        args.out,
    )


if __name__ == "__main__":
    main()
