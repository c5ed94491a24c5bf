"""What each baseline would have assigned to logged rewards. Groups of equal composition are computed once."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages import asymre_advantages, leave_one_out_advantages, mean_advantages, quantile_advantages
from qae.audit.store import UNKNOWN
from qae.groups import fraction_meant

Composition = tuple[tuple[float, int], ...]
Estimator = Callable[[Tensor, Tensor], Tensor]
DEFAULT_KS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class BaselineShares:
    """What one baseline does, as shares of the scored rows of mixed groups.

    Attributes:
        name: of the baseline.
        zero_frac: rows with advantage 0: work that an exact update may skip.
        positive_frac: rows that are reinforced.
        negative_frac: rows that are penalised.
        positive_mass: mean of the positive advantages over all rows, zeros included.
        negative_mass: likewise of the negative ones, as a positive number.
        sign_changes_frac: rows whose sign differs from the group mean's.
    """

    name: str
    zero_frac: float
    positive_frac: float
    negative_frac: float
    positive_mass: float
    negative_mass: float
    sign_changes_frac: float


@dataclass(frozen=True)
class RegimeShares:
    """What one K calls the groups, by outcome.

    Attributes:
        k: level of the quantile.
        hard_frac: share of mixed groups, like the next two.
        easy_frac: share of mixed groups.
        fragile_frac: groups that change sides if one completion's outcome flips.
    """

    k: float
    hard_frac: float
    easy_frac: float
    fragile_frac: float


def compare_baselines(
    compositions: Counter[Composition], *, ks: Sequence[float] = DEFAULT_KS, divisor: Literal["n", "n-1"] = "n-1"
) -> list[BaselineShares]:
    """What mean, leave-one-out, median, shifted means and quantiles would have assigned.

    Args:
        compositions: how often each group composition occurs (`GroupStore.compositions`).
        ks: levels of the quantile, each computed exact and linear.
        divisor: of the variance.

    Returns:
        One line a baseline; empty where no group is mixed.

    Example:
        >>> table = compare_baselines(Counter({((0.0, 0), (0.0, 0), (0.0, 0), (1.0, 1)): 1}), ks=[0.4])
        >>> [(line.name, line.zero_frac) for line in table if line.name in ("mean", "quantile K=0.4")]
        [('mean', 0.0), ('quantile K=0.4', 0.75)]
    """
    rewards, group_ids, weights = _rows(compositions)
    if not len(rewards):
        return []
    mean = mean_advantages(rewards, group_ids, divisor=divisor)
    table = [_shares(name, estimate(rewards, group_ids), mean, weights) for name, estimate in _estimators(ks, divisor)]
    return table


def compare_regimes(compositions: Counter[Composition], *, ks: Sequence[float] = DEFAULT_KS) -> list[RegimeShares]:
    """How each K divides the mixed groups into hard and easy, and how many divide by the luck of one completion.

    Args:
        compositions: as above; groups with an unknown outcome are left out.
        ks: levels of the quantile.

    Returns:
        One line a K; empty where no group has known, mixed outcomes.

    Example:
        >>> half = ((0.0, 0),) * 2 + ((1.0, 1),) * 2
        >>> [(r.hard_frac, r.fragile_frac) for r in compare_regimes(Counter({half: 3}), ks=[0.5])]
        [(1.0, 1.0)]
    """
    counts: Counter[tuple[int, int]] = Counter()
    for composition, count in compositions.items():
        outcomes = [outcome for _, outcome in composition]
        if UNKNOWN not in outcomes and 0 < sum(outcomes) < len(outcomes):
            counts[len(outcomes), sum(outcomes)] += count
    total = sum(counts.values())
    table: list[RegimeShares] = []
    for k in ks if total else ():
        bound = 1 - fraction_meant(k)
        hard = fragile = 0
        for (size, right), count in counts.items():
            # exact: p <= 1 - K is right <= (1 - K) * size in whole numbers
            sides = {c <= bound * size for c in (right - 1, right, right + 1)}
            hard += count * (right <= bound * size)
            fragile += count * (len(sides) > 1)
        table.append(RegimeShares(k, hard / total, 1 - hard / total, fragile / total))
    return table


def name_logged_baseline(
    logged: list[tuple[int, float, float]], *, ks: Sequence[float] = DEFAULT_KS
) -> tuple[str, float] | None:
    """Which baseline gives the logged advantages, and the largest difference that remains.

    Args:
        logged: (group, reward, advantage) of complete groups; NaN rewards were not scored.
        ks: levels of the quantile to try.

    Returns:
        (name, largest absolute difference) of the best match; None without logged advantages.
    """
    if not logged:
        return None
    ids = torch.tensor([group for group, _, _ in logged])
    rewards = torch.tensor([reward for _, reward, _ in logged], dtype=torch.float64)
    wanted = torch.tensor([advantage for _, _, advantage in logged], dtype=torch.float64)
    found: list[tuple[float, str]] = []
    for divisor in ("n", "n-1"):
        for eps in (1e-6, 1e-4):
            settings = f"(std over {divisor}, eps {eps:g})"
            for name, estimate in _estimators(ks, divisor, eps):
                label = name if name == "leave one out" else f"{name} {settings}"
                found.append((float((estimate(rewards, ids) - wanted).abs().max()), label))
    for name, estimate in _unscaled(ks):
        found.append((float((estimate(rewards, ids) - wanted).abs().max()), f"{name} (no scale)"))
    difference, name = min(found, key=lambda pair: pair[0])
    return name, difference


def equivalent_ks(size: int) -> list[tuple[float, float]]:
    """At group size G only G values of K behave differently: K in (r/G, (r+1)/G] for r = 0..G-1."""
    return [(r / size, (r + 1) / size) for r in range(size)]


def _estimators(ks: Sequence[float], divisor: Literal["n", "n-1"], eps: float = 1e-6) -> list[tuple[str, Estimator]]:
    def below_mean(shift: float) -> Estimator:
        return lambda r, i: asymre_advantages(r, i, shift=shift, divisor=divisor, eps=eps)

    def quantile(k: float, method: Literal["exact", "linear"]) -> Estimator:
        return lambda r, i: quantile_advantages(r, i, k, method=method, divisor=divisor, eps=eps)

    return [
        ("mean", lambda r, i: mean_advantages(r, i, divisor=divisor, eps=eps)),
        ("leave one out", leave_one_out_advantages),
        ("mean - 0.1", below_mean(0.1)),
        ("mean + 0.1", below_mean(-0.1)),
        ("median", quantile(0.5, "linear")),
        *((f"quantile K={k:g}", quantile(k, "exact")) for k in ks),
        *((f"quantile K={k:g} linear", quantile(k, "linear")) for k in ks),
    ]


def _unscaled(ks: Sequence[float]) -> list[tuple[str, Estimator]]:
    def quantile(k: float) -> Estimator:
        return lambda r, i: quantile_advantages(r, i, k, scale="none")

    return [
        ("mean", lambda r, i: mean_advantages(r, i, scale="none")),
        *((f"quantile K={k:g}", quantile(k)) for k in ks),
    ]


def _rows(
    compositions: Counter[Composition],
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"], Float[Tensor, " n"]]:
    """One group of each composition whose rewards are mixed: rewards, ids, and how often each row occurs."""
    rewards: list[float] = []
    ids: list[int] = []
    weights: list[float] = []
    for i, (composition, count) in enumerate(compositions.items()):
        values = [reward for reward, _ in composition]
        if len(values) > 1 and values[0] != values[-1]:
            rewards += values
            ids += [i] * len(values)
            weights += [count] * len(values)
    return (
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(weights, dtype=torch.float64),
    )


def _shares(name: str, advantages: Tensor, mean: Tensor, weights: Tensor) -> BaselineShares:
    total = weights.sum()

    def share(x: Tensor) -> float:
        return float((weights * x).sum() / total)

    return BaselineShares(
        name=name,
        zero_frac=share(advantages == 0),
        positive_frac=share(advantages > 0),
        negative_frac=share(advantages < 0),
        positive_mass=share(advantages.clamp(min=0)),
        negative_mass=share((-advantages).clamp(min=0)),
        sign_changes_frac=share(advantages.sign() != mean.sign()),
    )
