"""Slow definitions in exact arithmetic, one group at a time, with nothing shared with the library.

`None` is a row that was not scored. Advantages are `(numerator, variance)` pairs where a square root would leave the
rationals: A = numerator / (sqrt(variance) + eps).
"""

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction

Reward = Fraction | None


def quantile_from_definition(values: Sequence[Fraction], k: Fraction) -> Fraction:
    """inf { x : F(x) >= k }, by trying every x."""
    n = len(values)
    return min(x for x in values if Fraction(sum(v <= x for v in values), n) >= k)


def linear_quantile(values: Sequence[Fraction], k: Fraction) -> Fraction:
    """Interpolated between the order statistics around k (n - 1)."""
    ordered = sorted(values)
    position = k * (len(ordered) - 1)
    below = position.numerator // position.denominator
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def variance(values: Sequence[Fraction], divisor: str = "n") -> Fraction:
    if len(values) == 1:
        return Fraction(0)
    squares = sum(((v - mean(values)) ** 2 for v in values), Fraction(0))
    return squares / (len(values) if divisor == "n" else len(values) - 1)


def leave_one_out_baseline(values: Sequence[Fraction], i: int) -> Fraction:
    others = [v for j, v in enumerate(values) if j != i]
    return mean(others)


def by_group(
    rewards: Sequence[Reward],
    group_ids: Sequence[Hashable],
    of_group: Callable[[list[Fraction]], list[float]],
    *,
    flat_tolerance: Fraction = Fraction(0),
    min_size: int = 2,
) -> list[float]:
    """Apply `of_group` to the scored members of each group that has something to compare; the rest is 0."""
    advantages = [0.0] * len(rewards)
    for group in set(group_ids):
        rows = [i for i, g in enumerate(group_ids) if g == group and rewards[i] is not None]
        members = [rewards[i] for i in rows]
        if len(members) >= min_size and max(members) - min(members) > flat_tolerance:
            for i, advantage in zip(rows, of_group(members), strict=True):
                advantages[i] = advantage
    return advantages


def over_scale(numerator: Fraction, values: Sequence[Fraction], scale: str, divisor: str, eps: float) -> float:
    """The only place where the reference leaves exact arithmetic: one square root and one division."""
    if scale == "std":
        return float(numerator) / (float(variance(values, divisor)) ** 0.5 + eps)
    if scale == "mean":
        return float(numerator / (mean(values) + Fraction(eps)))
    return float(numerator)


def quantile_advantages(
    rewards: Sequence[Reward],
    group_ids: Sequence[Hashable],
    k: Fraction,
    *,
    method: str,
    scale: str,
    divisor: str,
    eps: float,
) -> list[float]:
    quantile = quantile_from_definition if method == "exact" else linear_quantile

    def of_group(values: list[Fraction]) -> list[float]:
        baseline = quantile(values, k)
        return [over_scale(v - baseline, values, scale, divisor, eps) for v in values]

    return by_group(rewards, group_ids, of_group)


def mean_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], *, scale: str, divisor: str, eps: float
) -> list[float]:
    def of_group(values: list[Fraction]) -> list[float]:
        return [over_scale(v - mean(values), values, scale, divisor, eps) for v in values]

    return by_group(rewards, group_ids, of_group)


def leave_one_out_advantages(rewards: Sequence[Reward], group_ids: Sequence[Hashable]) -> list[float]:
    def of_group(values: list[Fraction]) -> list[float]:
        return [float(v - leave_one_out_baseline(values, i)) for i, v in enumerate(values)]

    return by_group(rewards, group_ids, of_group)


def leave_one_out_quantile_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], k: Fraction, *, method: str, scale: str, divisor: str,
    eps: float,
) -> list[float]:  # fmt: skip
    quantile = quantile_from_definition if method == "exact" else linear_quantile

    def of_group(values: list[Fraction]) -> list[float]:
        others = [[v for j, v in enumerate(values) if j != i] for i in range(len(values))]
        return [
            over_scale(v - quantile(rest, k), values, scale, divisor, eps)
            for v, rest in zip(values, others, strict=True)
        ]

    return by_group(rewards, group_ids, of_group)


def masked_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], k: Fraction, side: str, *, scale: str, divisor: str,
    eps: float,
) -> list[float]:  # fmt: skip
    """POS-mask (side "pos") leaves out the positives of easy prompts, NEG-mask ("neg") the negatives of hard ones."""

    def of_group(values: list[Fraction]) -> list[float]:
        low, high = min(values), max(values)
        easy = quantile_from_definition(values, k) > low
        positive, negative = (0 if easy else 1, 1) if side == "pos" else (1, 1 if easy else 0)
        return [over_scale(positive * (v - low) + negative * (v - high), values, scale, divisor, eps) for v in values]

    return by_group(rewards, group_ids, of_group)


def w_reinforce_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], positive_weight: Fraction
) -> list[float]:
    def of_group(values: list[Fraction]) -> list[float]:
        return [float(positive_weight * (v - min(values)) + v - max(values)) for v in values]

    return by_group(rewards, group_ids, of_group)


def constant_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], *, scale: str, divisor: str, eps: float,
    below_mean: Fraction | None = None, baseline: Fraction = Fraction(0),
) -> list[float]:  # fmt: skip
    """Baseline `below_mean` below the group's mean, or the constant `baseline`."""

    def of_group(values: list[Fraction]) -> list[float]:
        b = baseline if below_mean is None else mean(values) - below_mean
        return [over_scale(v - b, values, scale, divisor, eps) for v in values]

    return by_group(rewards, group_ids, of_group)


def random_mask_advantages(
    rewards: Sequence[Reward], group_ids: Sequence[Hashable], keys: Sequence[int], k: Fraction, *, scale: str,
    divisor: str, eps: float,
) -> list[float]:  # fmt: skip
    """Mean advantages of the rows with the smallest keys, as many as the quantile keeps, times n / kept."""
    kept = quantile_advantages(rewards, group_ids, k, method="exact", scale="none", divisor=divisor, eps=eps)
    plain = mean_advantages(rewards, group_ids, scale=scale, divisor=divisor, eps=eps)
    advantages = [0.0] * len(rewards)
    for group in set(group_ids):
        rows = [i for i, g in enumerate(group_ids) if g == group and rewards[i] is not None]
        count = sum(kept[i] != 0 for i in rows)
        for i in sorted(rows, key=lambda i: keys[i])[:count]:
            advantages[i] = plain[i] * len(rows) / count
    return advantages


def outcome_quantile_advantages(
    outcomes: Sequence[Reward], penalties: Sequence[Reward], group_ids: Sequence[Hashable], k: Fraction, *, eps: float
) -> list[float]:
    pairs = [o if p is not None else None for o, p in zip(outcomes, penalties, strict=True)]
    advantages = [0.0] * len(pairs)
    for group in set(group_ids):
        rows = [i for i, g in enumerate(group_ids) if g == group and pairs[i] is not None]
        members = [pairs[i] for i in rows]
        if len(set(members)) > 1:
            baseline = quantile_from_definition(members, k)
            penalty = mean([penalties[i] for i in rows])
            for i in rows:
                numerator = pairs[i] - baseline + penalties[i] - penalty
                advantages[i] = over_scale(numerator, members, "std", "n", eps)
    return advantages
