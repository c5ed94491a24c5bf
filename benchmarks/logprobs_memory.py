"""Memory and time of `token_logprobs` against log_softmax over all logits, forward and backward.

The plain side is what a trainer writes first: logits [m v] in one product, log_softmax, gather, and the entropies
beside it without gradient. Both sides do the same work on the same numbers: log-probabilities and entropies of all
tokens, and the gradients of a weighted sum of the log-probabilities by hidden states and output matrix. Every
measurement is a process of its own; the two sides alternate. Peak memory is the kernel's high-water mark of the
resident set, less what was resident once the inputs lay ready. CPU seconds are those of the process, which other work
on the machine hardly moves. Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def resident_mb(field: str) -> float:
    """VmRSS (now) or VmHWM (high-water mark) of this process, in MB of 10^6 bytes. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux")


def measure(side: str, tokens: int, width: int, vocabulary: int, entropy_bonus: float) -> dict[str, float]:
    """One forward and backward pass of one side."""
    import torch

    from qae.logprobs import token_logprobs

    def plain(hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
        logs = torch.log_softmax(hidden @ weight.T, -1)
        with torch.set_grad_enabled(entropy_bonus > 0):
            entropies = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, targets[:, None])[:, 0], entropies

    function = token_logprobs if side == "qae" else plain
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(vocabulary, width, generator=generator) * 0.1).requires_grad_()
    hidden = torch.randn(tokens, width, generator=generator).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    factors = torch.randn(tokens, generator=generator) / tokens
    function(hidden[:2], weight, targets[:2])[0].sum().backward()  # threads and libraries start here
    before = resident_mb("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    logprobs, entropies = function(hidden, weight, targets)
    ((factors * logprobs).sum() - entropy_bonus * entropies.mean() * (entropy_bonus > 0)).backward()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mb": resident_mb("VmHWM") - before,
        "logprob_mean": float(logprobs.detach().double().mean()),
        "entropy_mean": float(entropies.detach().double().mean()),
        "hidden_grad_norm": float(hidden.grad.double().norm()),
        "weight_grad_norm": float(weight.grad.double().norm()),
    }


def compare(sizes: dict[str, Any], alternations: int) -> dict[str, Any]:
    """Medians of both sides, the ratios, and the largest relative difference of their results."""
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "qae": []}
    for _ in range(alternations):
        for side, results in runs.items():
            command = [sys.executable, __file__, "--side", side]
            for key, value in sizes.items():
                command += [f"--{key.replace('_', '-')}", str(value)]
            results.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    sides = {
        side: {key: statistics.median(run[key] for run in results) for key in results[0]}
        for side, results in runs.items()
    }

    def median_ratio(key: str) -> float:
        return statistics.median(p[key] / q[key] for p, q in zip(runs["plain"], runs["qae"], strict=True))

    plain, ours = sides["plain"], sides["qae"]
    agreed = ("logprob_mean", "entropy_mean", "hidden_grad_norm", "weight_grad_norm")
    logits_mb = sizes["tokens"] * sizes["vocabulary"] * 4 / 1e6
    return {
        **sides,
        "ratio_plain_to_qae": {key: median_ratio(key) for key in ("seconds", "cpu_seconds", "peak_mb")},
        "all_logits_mb": logits_mb,
        "holds_all_logits": max(run["peak_mb"] for run in runs["qae"]) >= logits_mb,
        "largest_relative_difference": max(abs(plain[key] / ours[key] - 1) for key in agreed),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--entropy-bonus", type=float, default=0.0, help="differentiate the entropies too")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--side", choices=["qae", "plain"], help="measure one side only, as the processes do")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sizes = {key: getattr(arguments, key) for key in ("tokens", "width", "vocabulary", "entropy_bonus")}
    if arguments.side:
        print(json.dumps(measure(arguments.side, **sizes)))
        return
    result = {
        "benchmark": "logprobs_memory",
        "device": platform.processor() or platform.machine(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "config": {**sizes, "alternations": arguments.alternations},
        **compare(sizes, arguments.alternations),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
