"""Vectorised advantages against a loop over groups and rows, at 4,096 completions of 512 prompts.

The loop has the shape that verl's `compute_grpo_outcome_advantage` and the QAE authors' fork of it use: a
dictionary from prompt id to the list of its scores, one `torch.stack` with a statistic or two for each group, then one
assignment for each row. Rows are shuffled, ids are integers (verl's are strings, which is slower still).

Both sides get the same baseline, divisor and eps and must return the same values. They alternate, and medians are
compared. Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from qae.advantages import mean_advantages, quantile_advantages

EPS = 1e-6


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


def seconds(function: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(completions: int, group_size: int, alternations: int, baseline: str) -> dict[str, float]:
    """Median seconds of both, their ratio, and the largest difference of their values."""
    generator = torch.Generator().manual_seed(0)
    pass_rate = torch.rand(completions // group_size, generator=generator).repeat_interleave(group_size)
    rewards = (torch.rand(completions, generator=generator) < pass_rate).float()
    order = torch.randperm(completions, generator=generator)
    rewards, group_ids = rewards[order], torch.arange(completions)[order] // group_size
    index = group_ids.tolist()

    def loop() -> torch.Tensor:
        return loop_advantages(rewards, index, 0.4 if baseline == "quantile" else None)

    def vectorised() -> torch.Tensor:
        if baseline == "mean":
            return mean_advantages(rewards, group_ids, divisor="n-1", eps=EPS)
        return quantile_advantages(rewards, group_ids, k=0.4, method="linear", divisor="n-1", eps=EPS)

    difference = (loop() - vectorised()).abs().max().item()
    pairs = [(seconds(loop), seconds(vectorised)) for _ in range(alternations)]
    slow, fast = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {
        "loop_seconds": slow,
        "qae_seconds": fast,
        "ratio": slow / fast,
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
