"""Vectorised advantages against a loop over groups and rows, at 4,096 completions of 512 prompts.

The loop has the shape that verl's `compute_grpo_outcome_advantage` and the QAE authors' fork of it use: a
dictionary from prompt id to the list of its scores, one `torch.stack` with a statistic or two for each group, then one
assignment for each row. Rows are shuffled, ids are integers (verl's are strings, which is slower still).

Both sides get the same baseline, divisor and eps and must return the same values. They alternate: one batch by the
loop, then twenty different ones vectorised, whose mean is one measurement. Medians are compared. Prints one JSON
object; `--out` also writes it to a file.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path

import torch

from qae.advantages import mean_advantages, quantile_advantages

EPS = 1e-6
BATCHES = 20


def loop_advantages(scores: torch.Tensor, index: list[int], k: float | None) -> torch.Tensor:
    """Advantages by a dictionary of lists; the baseline is the mean, or `torch.quantile` at `k`."""
    scores = scores.clone()
    id2score: dict[int, list[torch.Tensor]] = defaultdict(list)
    id2baseline: dict[int, torch.Tensor] = {}
    id2std: dict[int, torch.Tensor] = {}
    for i in range(len(scores)):
        id2score[index[i]].append(scores[i])
    for group in id2score:
        if len(id2score[group]) == 1:
            id2baseline[group], id2std[group] = torch.tensor(0.0), torch.tensor(1.0)
        else:
            members = torch.stack(id2score[group])
            id2baseline[group] = members.mean() if k is None else torch.quantile(members, k)
            id2std[group] = members.std()
    for i in range(len(scores)):
        scores[i] = (scores[i] - id2baseline[index[i]]) / (id2std[index[i]] + EPS)
    return scores


def make_batch(completions: int, group_size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shuffled 0/1 rewards of prompts whose pass rates are uniform, and their ids."""
    generator = torch.Generator().manual_seed(seed)
    pass_rate = torch.rand(completions // group_size, generator=generator).repeat_interleave(group_size)
    rewards = (torch.rand(completions, generator=generator) < pass_rate).float()
    order = torch.randperm(completions, generator=generator)
    return rewards[order], torch.arange(completions)[order] // group_size


def compare(completions: int, group_size: int, alternations: int, baseline: str) -> dict[str, float]:
    """Median seconds a batch of both, their ratio, and the largest difference of their values."""
    batches = [make_batch(completions, group_size, seed) for seed in range(BATCHES)]
    indices = [group_ids.tolist() for _, group_ids in batches]

    def loop(i: int) -> torch.Tensor:
        return loop_advantages(batches[i][0], indices[i], 0.4 if baseline == "quantile" else None)

    def vectorised(i: int) -> torch.Tensor:
        if baseline == "mean":
            return mean_advantages(*batches[i], divisor="n-1", eps=EPS)
        return quantile_advantages(*batches[i], k=0.4, method="linear", divisor="n-1", eps=EPS)

    difference = (loop(0) - vectorised(0)).abs().max().item()
    slow: list[float] = []
    fast: list[float] = []
    for i in range(alternations):
        start = time.perf_counter()
        loop(i % BATCHES)
        middle = time.perf_counter()
        for j in range(BATCHES):
            vectorised(j)
        slow.append(middle - start)
        fast.append((time.perf_counter() - middle) / BATCHES)
    return {
        "loop_seconds": statistics.median(slow),
        "qae_seconds": statistics.median(fast),
        "ratio": statistics.median(slow) / statistics.median(fast),
        "largest_difference": difference,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=4096)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--alternations", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sizes = arguments.completions, arguments.group_size, arguments.alternations
    result = {
        "benchmark": "advantages",
        "device": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "config": dict(zip(("completions", "group_size", "alternations"), sizes, strict=True)),
        "quantile": compare(*sizes, "quantile"),
        "mean": compare(*sizes, "mean"),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
