"""What paired runs say and how sure one can be: few seeds, few problems. Standard library only."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal["higher", "lower", "same", "hint higher", "hint lower", "open", "not run"]
EXACT_UP_TO = 16  # seeds: 65,536 sign patterns


@dataclass(frozen=True)
class Difference:
    """Treatment minus baseline over paired seeds.

    Attributes:
        values: one a seed.
        mean: of the values.
        low: 95% interval over seeds (Student's t): other seeds, the same problems; None for one seed.
        high: likewise.
        p: exact sign-flip test over the seeds, two-sided.
        p_smallest: the smallest p that so many seeds can give.
        p_holm: p after Holm's correction over the arms compared with one baseline.
    """

    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    p: float
    p_smallest: float
    p_holm: float


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

        var = v_seeds / s + v_problems / q - v_rest / (s q),    Student's t with s - 1 degrees of freedom

    v_seeds and v_problems are the variances of the row and column means, each of which holds a part of the rest, so
    that one of the two parts is taken off again.

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


def compare(treatments: Mapping[str, Sequence[float]]) -> dict[str, Difference]:
    """Differences of several arms from one baseline, with Holm's correction over the arms.

    Args:
        treatments: arm -> treatment minus baseline, one a seed.

    Returns:
        arm -> `Difference`, of the arms that have a seed.
    """
    given = {arm: tuple(values) for arm, values in treatments.items() if values}
    ps = {arm: sign_flip_p(values) for arm, values in given.items()}
    adjusted = dict(zip(ps, holm(list(ps.values())), strict=True))
    found: dict[str, Difference] = {}
    for arm, values in given.items():
        low, high = t_interval(values) or (None, None)
        smallest = 2.0 ** (1 - len(values))
        found[arm] = Difference(values, statistics.fmean(values), low, high, ps[arm], smallest, adjusted[arm])
    return found


def judge(difference: Difference, *, comparisons: int, margin: float | None, alpha: float = 0.05) -> tuple[Kind, str]:
    """What a difference allows one to say.

    A verdict needs p after correction at or below `alpha`, or an interval over at least three seeds that lies within
    the margin. Where so few seeds can never give such a p, the most that can be said is a hint: all of at least three
    seeds on one side, and the mean beyond the margin.

    Args:
        difference: of one arm from the baseline.
        comparisons: how many arms are compared together.
        margin: smallest difference that matters, in the metric's unit; None: no equivalence can be found.
        alpha: level of the test.

    Returns:
        The kind and a sentence.
    """
    d, n = difference, len(difference.values)
    if d.p_holm <= alpha:
        side: Kind = "higher" if d.mean > 0 else "lower"
        corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
        return side, f"{side}: p = {d.p_holm:.3g} over {n} seeds{corrected}"
    inside = margin is not None and d.low is not None and d.high is not None and -margin < d.low and d.high < margin
    if inside and n >= 3:
        return "same", f"no difference beyond {margin:g}: the interval over {n} seeds lies within it"
    if n < 3:
        return "open", f"open: {n} seed{'s are' if n > 1 else ' is'} too few even for a hint"
    if d.p_smallest * comparisons > alpha:
        at_least = math.ceil(1 - math.log2(alpha / comparisons))
        told = f"{n} seeds cannot go below p = {d.p_smallest:.2g} (a verdict needs {at_least})"
        one_sided = min(d.values) > 0 or max(d.values) < 0
        if one_sided and abs(d.mean) >= (margin or 0.0):
            return ("hint higher" if d.mean > 0 else "hint lower"), f"a hint, no verdict: all seeds agree, but {told}"
        return "open", f"open: {told}, and they do not all agree on a difference that matters"
    within = "no margin was set" if margin is None else "the interval does not lie within the margin"
    return "open", f"open: p = {d.p_holm:.3g} after correction, and {within}"
