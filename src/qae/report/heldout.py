"""Held-out evaluations in pairs: what changed on the same problems, and pass@k for every k, with intervals."""

from statistics import fmean
from typing import Any

from qae.evaluation.estimators import PairedDifference, bootstrap_interval, paired_difference, pass_at_k
from qae.report.runs import Arm, Run, is_number

Flat = dict[str, Any]


def change_of(run: Run) -> PairedDifference | None:
    """Last evaluation minus first, paired by problem; None if the problems' rates were not recorded."""
    evals = [line for line in run.evals if line.get("eval/rates")]
    if len(evals) < 2:
        return None
    return _paired(evals[0]["eval/rates"], evals[-1]["eval/rates"])


def against_first(arms: list[Arm]) -> list[PairedDifference | None]:
    """Each arm's last evaluations minus the first arm's, paired by problem, averaged over seeds before pairing."""
    rates = [_mean_rates(arm) for arm in arms]
    return [None if i == 0 or not (rates[0] and r) else _paired(rates[0], r) for i, r in enumerate(rates)]


def with_pass_at_k(line: Flat) -> Flat:
    """The numbers of an evaluation, with eval/pass@k and its interval for k = 1, 2, 4, ... as far as samples go.

    Unbiased, from each problem's rate and number of samples; where a problem's count of right answers is not whole
    (some of its completions could not be scored), the line stays as it is.
    """
    numbers = {key: float(value) for key, value in line.items() if is_number(value)}
    rates, samples = line.get("eval/rates"), line.get("eval/samples")
    if not rates or not is_number(samples):
        return numbers
    n = int(samples)
    counts = [rate * n for rate in rates.values()]
    if any(abs(count - round(count)) > 1e-6 for count in counts):
        return numbers
    ks = [2**i for i in range(n.bit_length()) if 2**i < n] + [n]
    for k in ks:
        interval = bootstrap_interval([pass_at_k(n, round(count), k) for count in counts])
        numbers[f"eval/pass@{k}"] = interval.mean
        numbers |= {f"eval/pass@{k}_low": interval.low, f"eval/pass@{k}_high": interval.high}
    return numbers


def _mean_rates(arm: Arm) -> dict[str, float]:
    """Each problem's rate at the end, averaged over those seeds that hold it."""
    found: dict[str, list[float]] = {}
    for run in arm.runs:
        last = run.evals[-1].get("eval/rates") if run.evals else None
        for problem, rate in (last or {}).items():
            found.setdefault(problem, []).append(rate)
    return {problem: fmean(rates) for problem, rates in found.items()}


def _paired(before: dict[str, float], after: dict[str, float]) -> PairedDifference | None:
    common = [problem for problem in before if problem in after]
    return paired_difference([before[p] for p in common], [after[p] for p in common]) if common else None
