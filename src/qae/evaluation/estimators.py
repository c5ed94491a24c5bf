"""What graded samples say: pass@k, maj@k, averages, and how sure one can be. Standard library only."""

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes:
        mean: the estimate.
        low: lower end.
        high: upper end.
        problems: number of problems behind it.
    """

    mean: float
    low: float
    high: float
    problems: int


@dataclass(frozen=True)
class PairedDifference:
    """Treatment minus baseline on the same problems.

    Attributes:
        mean: mean difference over problems.
        low: lower end of its interval.
        high: upper end.
        won: problems on which the treatment is better.
        lost: problems on which it is worse.
        tied: problems on which both are equal.
    """

    mean: float
    low: float
    high: float
    won: int
    lost: int
    tied: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples, taken from n of which c are correct, is correct.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Unbiased for 1 - (1 - p)^k; computed in integers, so nothing overflows or cancels. k = n is best-of-n.

    Args:
        n: samples drawn for the problem.
        c: how many of them are correct, 0 <= c <= n.
        k: 1 <= k <= n.

    Returns:
        The estimate for this problem; average it over problems.

    Raises:
        ValueError: if k > n (k samples cannot be taken from fewer), or c or k is out of range.

    Example:
        >>> pass_at_k(4, 1, 2), pass_at_k(4, 1, 4)
        (0.5, 1.0)

    Reference: Chen et al., arXiv:2107.03374, eq. 1.
    """
    _check_k(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"c={c} correct of n={n} samples: c must lie in 0..{n}")
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Probability that the most frequent answer among k samples, drawn without replacement, is correct.

    Exact over all subsets of size k; nothing is drawn. All correct samples vote for one answer, however
    they are written. None casts no vote. A tie is shared equally between the answers that are tied, so
    order does not matter and no coin is tossed; if nobody votes, the result is wrong. k = 1 gives the mean,
    k = n the vote of all samples.

    Args:
        answers: the extracted answer of each sample, None where there was none.
        correct: for each sample, whether its answer is correct.
        k: number of voters, 1 <= k <= number of samples.

    Returns:
        The estimate for this problem; average it over problems.

    Raises:
        ValueError: if the two lists differ in length, or k is out of range.

    Example:
        >>> maj_at_k(["7", "7", "3", None], [True, True, False, False], 4)
        1.0
        >>> maj_at_k(["7", "3"], [True, False], 2)
        0.5
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"{n} answers but {len(correct)} verdicts: give one verdict for each answer")
    _check_k(n, k)
    right = sum(correct)
    rivals = Counter(a for a, ok in zip(answers, correct, strict=True) if not ok and a is not None)
    silent = n - right - sum(rivals.values())
    won = sum(
        math.comb(right, votes) * _ways_to_win(list(rivals.values()), silent, votes, k - votes)
        for votes in range(1, min(right, k) + 1)
    )
    return float(won / math.comb(n, k))


def _ways_to_win(rivals: list[int], silent: int, votes: int, others: int) -> Fraction:
    """Number of ways to fill `others` places so that no rival has more than `votes`; j ties count 1/(j+1)."""
    free = silent + sum(size for size in rivals if size < votes)
    ways = {(0, 0): 1}
    for size in (size for size in rivals if size >= votes):
        grown: dict[tuple[int, int], int] = {}
        for (taken, ties), count in ways.items():
            for j in range(min(votes, others - taken) + 1):
                key = (taken + j, ties + (j == votes))
                grown[key] = grown.get(key, 0) + count * math.comb(size, j)
        ways = grown
    return sum(
        (Fraction(count * math.comb(free, others - taken), ties + 1) for (taken, ties), count in ways.items()),
        Fraction(0),
    )


def average(outcomes: Sequence[Sequence[float]]) -> float:
    """Mean over problems of the mean over a problem's samples: pass@1, also called avg@n.

    Every problem weighs the same, however many samples it has.

    Args:
        outcomes: for each problem, the outcomes (0 or 1) of its samples.

    Returns:
        The average.

    Raises:
        ValueError: if there is no problem, or a problem without samples.

    Example:
        >>> average([[1, 0], [1, 1, 1, 1]])
        0.75
    """
    if not outcomes or not all(outcomes):
        raise ValueError("average needs at least one problem and at least one sample for each problem")
    return statistics.fmean(statistics.fmean(samples) for samples in outcomes)


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = 4_000, seed: int = 0
) -> Interval:
    """Confidence interval of the mean over problems: expanded percentile bootstrap.

    Problems are the unit that is resampled, so the interval covers both the choice of problems and the
    sampling of completions. The plain percentile interval is too narrow for few problems; its tails are
    taken at Phi(-sqrt(n / (n - 1)) t_{n-1}) instead. One problem, or problems that all have the same value,
    give an interval of width 0: a bootstrap cannot see what never happened.

    Args:
        values: one value per problem.
        level: coverage, 0 < level < 1.
        resamples: bootstrap draws.
        seed: of the draws; the same seed gives the same interval.

    Returns:
        Mean and interval.

    Raises:
        ValueError: if there are no values, or `level` or `resamples` is out of range.

    Example:
        >>> interval = bootstrap_interval([0.0, 0.25, 0.5, 1.0, 1.0, 0.75])
        >>> interval.low < interval.mean < interval.high
        True

    Reference: Hesterberg, arXiv:1411.5279, section 5.
    """
    if not values:
        raise ValueError("bootstrap_interval needs at least one problem")
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1, e.g. 0.95")
    if resamples < 100:
        raise ValueError(f"resamples={resamples} is too few for an interval; give at least 100")
    mean = statistics.fmean(values)
    if min(values) == max(values):
        return Interval(mean, mean, mean, len(values))
    rng = random.Random(seed)
    n = len(values)
    means = sorted(math.fsum(rng.choices(values, k=n)) / n for _ in range(resamples))
    tail = _expanded_tail((1 - level) / 2, n)
    return Interval(mean, _quantile(means, tail), _quantile(means, 1 - tail), n)


def paired_difference(
    baseline: Sequence[float],
    treatment: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = 4_000,
    seed: int = 0,
) -> PairedDifference:
    """Mean of treatment minus baseline over the same problems, with its interval and who won where.

    Pairing takes the difficulty of the problems out of the comparison, which is most of the spread.

    Args:
        baseline: one value per problem.
        treatment: one value per problem, same order.
        level: coverage of the interval.
        resamples: bootstrap draws.
        seed: of the draws.

    Returns:
        The difference; `won` counts the problems on which the treatment is better.

    Raises:
        ValueError: if the two have different lengths or are empty.

    Example:
        >>> result = paired_difference([0.0, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0])
        >>> result.mean, result.won, result.lost, result.tied
        (0.25, 2, 0, 2)
    """
    if len(baseline) != len(treatment):
        raise ValueError(f"{len(baseline)} baseline values but {len(treatment)} treatment values: pair them by problem")
    differences = [b - a for a, b in zip(baseline, treatment, strict=True)]
    interval = bootstrap_interval(differences, level=level, resamples=resamples, seed=seed)
    won, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return PairedDifference(interval.mean, interval.low, interval.high, won, lost, len(differences) - won - lost)


def _check_k(n: int, k: int) -> None:
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    if k > n:
        raise ValueError(f"k={k} is more than the n={n} samples drawn: draw at least {k} samples or lower k")


def _expanded_tail(tail: float, n: int) -> float:
    """The percentile tail whose normal interval is as wide as Student's t with divisor n - 1."""
    z, freedom = statistics.NormalDist().inv_cdf(1 - tail), n - 1
    # Cornish-Fisher series of the t quantile; an upper bound is enough for two or three problems
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return statistics.NormalDist().cdf(-math.sqrt(n / freedom) * t)


def _quantile(ordered: Sequence[float], probability: float) -> float:
    position = probability * (len(ordered) - 1)
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])
