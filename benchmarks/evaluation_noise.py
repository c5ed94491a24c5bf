"""How much pass@1 and pass@16 of 30 or 40 problems x 32 samples move by chance, for each row of the paper's Table 2.

Pass rates of problems are taken as Beta distributed, with the two parameters that give the published pass@1 and
pass@16. Then evaluations are simulated. Two kinds of chance are told apart: the sampling of completions on fixed
problems (what the same model would show if the evaluation were run again with another seed), and the choice of problems
on top of it (what other problems from the same source would show). A third kind, other training runs, cannot be
computed.
Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
import json
import math
import random
import statistics
from pathlib import Path

from qae.evaluation.estimators import pass_at_k

SAMPLES, K = 32, 16
# arXiv:2509.22611, Table 2: model, method, then pass@1 / pass@16 in percent
TABLE = {
    "aime25": (30, {"Clip-Higher": (32.71, 56.66), "Clip-Higher + QAE": (34.90, 57.92), "CLIP-Cov": (33.02, 52.27),
                    "CLIP-Cov + QAE": (37.40, 56.29), "KL-Cov": (33.33, 45.86), "KL-Cov + QAE": (33.44, 51.62),
                    "GSPO": (31.15, 46.59), "GSPO + QAE": (32.50, 48.01)}),
    "aime24": (30, {"Clip-Higher": (39.69, 71.23), "Clip-Higher + QAE": (48.23, 71.63), "CLIP-Cov": (42.40, 68.58),
                    "CLIP-Cov + QAE": (46.04, 73.16), "KL-Cov": (44.90, 73.00), "KL-Cov + QAE": (44.69, 77.08),
                    "GSPO": (43.75, 67.91), "GSPO + QAE": (47.50, 71.72)}),
    "amc23": (40, {"Clip-Higher": (92.11, 97.50), "Clip-Higher + QAE": (92.97, 97.50), "CLIP-Cov": (87.42, 96.25),
                   "CLIP-Cov + QAE": (90.23, 96.25), "KL-Cov": (86.02, 95.00), "KL-Cov + QAE": (87.97, 96.25),
                   "GSPO": (90.00, 99.39), "GSPO + QAE": (89.38, 97.21)}),
}  # fmt: skip


def fit_beta(mean: float, best_of: float, k: int) -> tuple[float, float]:
    """Beta(a, b) with E[p] = mean and E[1 - (1 - p)^k] = best_of; E[(1-p)^k] is a product of k ratios."""

    def reached(size: float) -> float:
        a, b = mean * size, (1 - mean) * size
        return 1 - math.prod((b + j) / (a + b + j) for j in range(k))

    low, high = 1e-4, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) > best_of else (middle, high)
    return mean * low, (1 - mean) * low


def spread(problems: int, a: float, b: float, repeats: int, rng: random.Random, *, fixed: bool) -> dict[str, float]:
    """Standard deviations, in points, of pass@1 and pass@k over simulated evaluations."""
    first: list[float] = []
    best: list[float] = []
    # the middles of equal shares of the distribution stand for a fixed set of problems
    grid = sorted(rng.betavariate(a, b) for _ in range(problems * 501))[250::501]
    for _ in range(repeats):
        rates = grid if fixed else [rng.betavariate(a, b) for _ in range(problems)]
        correct = [sum(rng.random() < p for _ in range(SAMPLES)) for p in rates]
        first.append(100 * sum(correct) / SAMPLES / problems)
        best.append(100 * statistics.fmean(pass_at_k(SAMPLES, c, K) for c in correct))
    return {"pass@1": round(statistics.stdev(first), 2), f"pass@{K}": round(statistics.stdev(best), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=1_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = random.Random(0)
    result: dict = {
        "benchmark": "evaluation_noise",
        "config": {"samples": SAMPLES, "k": K, "repeats": options.repeats},
        "unit": "standard deviation in points of percent",
    }
    for name, (problems, rows) in TABLE.items():
        result[name] = {"problems": problems}
        for method, (mean, best) in rows.items():
            a, b = fit_beta(mean / 100, best / 100, K)
            result[name][method] = {
                "beta": [round(a, 3), round(b, 3)],
                "same_problems": spread(problems, a, b, options.repeats, rng, fixed=True),
                "other_problems": spread(problems, a, b, options.repeats, rng, fixed=False),
            }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
