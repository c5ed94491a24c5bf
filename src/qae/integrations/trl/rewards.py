"""From TRL's rewards, one column a function, to our estimators and back. TRL's divisor and eps, its rule for None."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qae.advantages import mean_advantages, outcome_quantile_advantages, quantile_advantages
from qae.groups import group_flat, group_std
from qae.integrations.trl.settings import QuantileSettings

HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-4}
SCALES = {"group": "std", "batch": "batch", "none": "none", True: "std", False: "none"}

Estimator = Callable[..., Tensor]


def group_ids_of(rows: int, group_size: int) -> Int[Tensor, " n"]:
    """TRL's groups are runs of `group_size` rows in gathered order."""
    return torch.arange(rows) // group_size


def total_rewards(rewards: Float[Tensor, "n f"], weights: Float[Tensor, " f"]) -> Float[Tensor, " n"]:
    """The weighted sum of the functions that scored a row; NaN where none did.

    Args:
        rewards: [n f] NaN where a function returned None.
        weights: [f] of the functions.
    """
    return (rewards * weights).nansum(1).masked_fill(rewards.isnan().all(1), torch.nan)


def estimate(
    rewards: Float[Tensor, "n f"],
    weights: Float[Tensor, " f"],
    group_ids: Int[Tensor, " n"],
    estimator: Estimator,
    *,
    scale_rewards: str,
    aggregation: str,
) -> Float[Tensor, " n"]:
    """Advantages in the two ways in which TRL combines several reward functions.

    Under "normalize_then_sum" each function has a baseline of its own and the weighted sum is divided by the batch's
    standard deviation. TRL also subtracts the sum's mean over the batch, which is 0 for mean baselines; for others it
    would be a second baseline and is left out.

    Args:
        rewards: [n f] one column a reward function.
        weights: [f] of the functions.
        group_ids: [n].
        estimator: `mean_advantages`, or another with the same arguments.
        scale_rewards: TRL's "group", "batch" or "none".
        aggregation: TRL's "sum_then_normalize" or "normalize_then_sum".

    Returns:
        [n] advantages; 0 for rows that no function scored.
    """
    if aggregation == "sum_then_normalize":
        return estimator(total_rewards(rewards, weights), group_ids, scale=SCALES[scale_rewards], **HOST)
    columns = torch.stack([estimator(column, group_ids, scale="std", **HOST) for column in rewards.unbind(1)], 1)
    total = total_rewards(columns.masked_fill(rewards.isnan(), torch.nan), weights)
    whole = torch.zeros_like(group_ids)
    return (total / (group_std(total, whole, divisor=HOST["divisor"]) + HOST["eps"])).nan_to_num()


def quantile_estimator(settings: QuantileSettings) -> Estimator:
    """`quantile_advantages` with the user's K, method and tolerance.

    Args:
        settings: of the trainer.
    """

    def estimator(rewards: Tensor, group_ids: Tensor, **options: Any) -> Tensor:
        return quantile_advantages(
            rewards,
            group_ids,
            settings.quantile_k,
            method=settings.quantile_method,  # pyright: ignore[reportArgumentType]
            flat_tolerance=settings.flat_tolerance,
            **options,
        )

    return estimator


def gated_by_outcome(
    rewards: Float[Tensor, "n f"],
    weights: Float[Tensor, " f"],
    group_ids: Int[Tensor, " n"],
    settings: QuantileSettings,
    *,
    outcome: int,
    scale_rewards: str,
) -> Float[Tensor, " n"]:
    """Quantile advantages whose gate sees one reward function; the others are penalties beside it.

    Args:
        rewards: [n f] one column a reward function.
        weights: [f] of the functions.
        group_ids: [n].
        settings: of the trainer.
        outcome: the column of the outcome.
        scale_rewards: TRL's "group" or "none".
    """
    others = rewards.clone()
    others[:, outcome] = 0.0
    return outcome_quantile_advantages(
        rewards[:, outcome] * weights[outcome],
        (others * weights).nansum(1),
        group_ids,
        settings.quantile_k,
        method=settings.quantile_method,  # pyright: ignore[reportArgumentType]
        flat_tolerance=settings.flat_tolerance,
        scale=SCALES[scale_rewards],  # pyright: ignore[reportArgumentType]
        **HOST,
    )


def flat_rows(
    rewards: Float[Tensor, "n f"],
    weights: Float[Tensor, " f"],
    group_ids: Int[Tensor, " n"],
    *,
    outcome: int | None,
    aggregation: str,
    tolerance: float,
) -> Bool[Tensor, " n"]:
    """Rows whose group has nothing to compare: in its outcome, its total, or each of its functions.

    Args:
        rewards: [n f] one column a reward function.
        weights: [f] of the functions.
        group_ids: [n].
        outcome: the column that decides, if one does.
        aggregation: TRL's way of combining functions.
        tolerance: largest spread that counts as equal.
    """
    if outcome is not None:
        return group_flat(rewards[:, outcome], group_ids, tolerance=tolerance)
    if aggregation == "sum_then_normalize":
        return group_flat(total_rewards(rewards, weights), group_ids, tolerance=tolerance)
    return torch.stack([group_flat(column, group_ids, tolerance=tolerance) for column in rewards.unbind(1)]).all(0)


def is_hosts_own(
    host: Float[Tensor, " m"],
    rewards: Float[Tensor, "n f"],
    weights: Float[Tensor, " f"],
    group_ids: Int[Tensor, " n"],
    rows: slice,
    *,
    scale_rewards: str,
    aggregation: str,
) -> bool:
    """Whether TRL's own advantages are the mean-baseline ones of these rewards, groups and rows.

    If they are, then the order, the grouping, the weights, the rule for None and this process's rows are what this
    adapter takes them for. Flat groups are not compared: there TRL divides a rounding residue.

    Args:
        host: [m] this process's advantages as TRL computed them.
        rewards: [n f] of all processes.
        weights: [f] of the functions.
        group_ids: [n].
        rows: this process's rows.
        scale_rewards: TRL's setting.
        aggregation: TRL's setting.
    """
    options: dict[str, Any] = {"scale_rewards": scale_rewards, "aggregation": aggregation}
    ours = estimate(rewards, weights, group_ids, mean_advantages, **options)
    flat = flat_rows(rewards, weights, group_ids, outcome=None, aggregation=aggregation, tolerance=0.0)
    mixed = ~flat[rows]
    return bool(torch.isclose(ours[rows][mixed], host[mixed].to(ours.dtype), rtol=1e-3, atol=1e-3).all())
