"""What paired runs say and how sure one can be: few seeds, few problems. Standard library only."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal["higher", "lower", "same", "hint higher", "hint lower", "hint same", "open", "not run"]
EXACT_UP_TO = 16  # seeds: 65,536 sign patterns


@dataclass(frozen=True)
class Difference:
    """Treatment minus baseline over paired seeds, in the metric's unit.

    Attributes:
        values: one a seed.
        mean: of the values.
        low: 95% interval over seeds (Student's t): other seeds, the same problems; None for one seed.
        high: likewise.
        p: exact sign-flip test over the seeds, two-sided.
        p_smallest: the smallest p that so many seeds can give.
        p_holm: p after Holm's correction.
        comparisons: how many it is corrected for.
    """

    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    p: float
    p_smallest: float
    p_holm: float
    comparisons: int


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided p of the mean difference, if each seed's sign were a coin toss.

        p = #{ s in {-1, 1}^n : |sum s_i d_i| >= |sum d_i| } / 2^n

    Five seeds cannot go below 2 / 2^5 = .0625, six not below .031. Nothing is assumed but the symmetry of each
    difference under "the arms are the same".

    Args:
        differences: one a seed, at most 16.

    Returns:
        p; 1 if all differences are 0.

    Raises:
        ValueError: there are none, or too many to enumerate.

    Example:
        >>> sign_flip_p([0.1, 0.2, 0.1, 0.3, 0.2]), sign_flip_p([0.1, -0.1])
        (0.0625, 1.0)
    """
    n = len(differences)
    if not 1 <= n <= EXACT_UP_TO:
        raise ValueError(f"{n} differences: the exact sign-flip test takes 1 to {EXACT_UP_TO}")
    slack = 1e-12 * math.fsum(abs(d) for d in differences)  # equal sums must not differ by rounding
    observed = abs(math.fsum(differences)) - slack
    sums = (math.fsum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=n))
    return sum(abs(total) >= observed for total in sums) / 2**n


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p values that hold for all comparisons together.

        p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))

    Args:
        p_values: one a comparison.

    Returns:
        Adjusted ones, in the same order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean; None for fewer than two values.

    Example:
        >>> [round(x, 3) for x in t_interval([1.0, 2.0, 3.0])]
        [-0.484, 4.484]
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = t_quantile((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def crossed_interval(table: Sequence[Sequence[float]], level: float = 0.95) -> tuple[float, float] | None:
    """Interval of the mean over seeds (rows) and problems (columns): other seeds and other problems.

        var = max(a, b, a + b - v_rest / (s q)),    a = v_seeds / s,    b = v_problems / q,
        Student's t with s - 1 degrees of freedom

    v_seeds and v_problems are the variances of the row and column means, each of which holds a part of the rest, so
    that one of the two parts is taken off again, but never so much that the interval is narrower than one over seeds
    or over problems alone.

    Args:
        table: [seeds][problems] paired differences.
        level: coverage.

    Returns:
        The interval; None for fewer than two seeds or problems.

    Example:
        >>> low, high = crossed_interval([[0.0, 0.2], [0.1, 0.3], [0.2, 0.4]])
        >>> low < 0.2 < high
        True
    """
    s, q = len(table), len(table[0]) if table else 0
    if s < 2 or q < 2:
        return None
    rows = [statistics.fmean(row) for row in table]
    columns = [statistics.fmean(column) for column in zip(*table, strict=True)]
    mean = statistics.fmean(rows)
    squares = sum(
        (x - row - column + mean) ** 2
        for values, row in zip(table, rows, strict=True)
        for x, column in zip(values, columns, strict=True)
    )
    rest = squares / ((s - 1) * (q - 1))
    over_seeds, over_problems = statistics.variance(rows) / s, statistics.variance(columns) / q
    variance = max(over_seeds, over_problems, over_seeds + over_problems - rest / (s * q))
    half = t_quantile((1 + level) / 2, s - 1) * math.sqrt(variance)
    return mean - half, mean + half


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t with a whole number of degrees of freedom, by bisection.

    Args:
        probability: above 1/2, below 1.
        freedom: at least 1.

    Example:
        >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 9), 3)
        (4.303, 2.262)
    """
    inside = 2 * probability - 1
    low, high = 0.0, 1.0
    while _inside(high, freedom) < inside:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < inside else (low, middle)
    return (low + high) / 2


def _inside(t: float, freedom: int) -> float:
    """P(|T| < t): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for i in range(1, (freedom - odd) // 2 + 1):
        total += term
        term *= square * (2 * i / (2 * i + 1) if odd else (2 * i - 1) / (2 * i))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def compare(treatments: Mapping[str, Sequence[float]], *, comparisons: int | None = None) -> dict[str, Difference]:
    """Differences of several arms from one baseline, with Holm's correction.

    Args:
        treatments: arm -> treatment minus baseline, one a seed.
        comparisons: how many were planned; those without a seed count with p = 1. None: the arms that have one.

    Returns:
        arm -> `Difference`, of the arms that have a seed.

    Example:
        >>> compare({"a": [0.1] * 6}, comparisons=2)["a"].p_holm
        0.0625
    """
    given = {arm: tuple(values) for arm, values in treatments.items() if values}
    ps = {arm: sign_flip_p(values) for arm, values in given.items()}
    together = max(comparisons or 0, len(given))
    adjusted = holm([*ps.values(), *[1.0] * (together - len(ps))])
    found: dict[str, Difference] = {}
    for (arm, values), p_holm in zip(given.items(), adjusted, strict=False):
        low, high = t_interval(values) or (None, None)
        smallest = 2.0 ** (1 - len(values))
        found[arm] = Difference(values, statistics.fmean(values), low, high, ps[arm], smallest, p_holm, together)
    return found


def judge(difference: Difference, *, planned: int, margin: float | None, alpha: float = 0.05) -> tuple[Kind, str]:
    """What a difference allows one to say.

    A verdict needs the planned seeds, at least as many of them as can give p <= alpha after correction, and either
    such a p or an interval that lies within the margin. With fewer, at least three, the most that can be said is a
    hint: the interval lies within the margin, or all seeds are on one side and the mean is beyond the margin.

    Args:
        difference: of one arm from the baseline.
        planned: seeds written down in the study: before all of them are there nothing is a verdict.
        margin: smallest difference that matters, in the metric's unit; None: no equivalence can be found.
        alpha: level of the test.

    Returns:
        The kind and a sentence.

    Example:
        >>> judge(compare({"a": [0.1] * 6})["a"], planned=6, margin=0.03)
        ('higher', 'higher: p = 0.0312 over 6 seeds')
    """
    d, n = difference, len(difference.values)
    if n < 3:
        return "open", f"open: {n} seed{'s are' if n > 1 else ' is'} too few even for a hint"
    needed = math.ceil(1 - math.log2(alpha / d.comparisons))
    if n < needed:
        reservation = f"{n} seeds cannot go below p = {d.p_smallest:.2g} (a verdict needs {needed})"
    else:
        reservation = f"{n} of {planned} planned seeds are there" if n < planned else ""
    if margin is not None and d.low is not None and d.high is not None and -margin < d.low and d.high < margin:
        words = f"no difference beyond {margin:g}: the interval over {n} seeds lies within it"
        return ("hint same", f"a hint, no verdict: {words}, but {reservation}") if reservation else ("same", words)
    side: Literal["higher", "lower"] = "higher" if d.mean > 0 else "lower"
    if reservation:
        if (min(d.values) > 0 or max(d.values) < 0) and abs(d.mean) >= (margin or 0.0):
            hint: Kind = "hint higher" if d.mean > 0 else "hint lower"
            return hint, f"a hint, no verdict: all seeds agree, but {reservation}"
        return "open", f"open: {reservation}, and they do not all agree on a difference that matters"
    if d.p_holm <= alpha:
        corrected = f", corrected for {d.comparisons} comparisons" if d.comparisons > 1 else ""
        small = ", by less than the margin" if margin is not None and abs(d.mean) < margin else ""
        return side, f"{side}{small}: p = {d.p_holm:.3g} over {n} seeds{corrected}"
    within = "no margin was set" if margin is None else "the interval does not lie within the margin"
    return "open", f"open: p = {d.p_holm:.3g} after correction, and {within}"
