"""Baselines that are no statistic of the group alone: the mean shifted down (AsymRE), and a constant."""

import math
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.scale import group_scale
from qae.checks import check_choice
from qae.groups import Divisor, Groups


def asymre_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    shift: float = 0.1,
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus a baseline that lies `shift` below the mean of its group.

        A_i = (R_i - (mean_j(R_j) - shift)) / (std_j(R_j) + eps)

    Off-policy, a baseline below the mean of the behaviour policy is the safe side; at the mean or above it the policy
    can lose its support (the paper's phase transition). A shift of 0 is `mean_advantages`.

    Unscored rows, groups of one and groups of equal rewards get 0, as with every estimator here; the paper's own
    baseline would give the last +shift.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        shift: how far below the mean, in the unit of the reward; negative is above it.
        scale: "std" divides as GRPO does, so that only the baseline differs from it; "none" is AsymRE itself.
        divisor: of the variance: "n" or "n-1".
        eps: added to the standard deviation.
        flat_tolerance: rewards no further apart than this count as equal.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
        >>> asymre_advantages(rewards, group_ids, shift=0.25, scale="none").tolist()
        [1.0, 0.0, 0.0, 0.0]

    Reference:
        Arnal et al., "Asymmetric REINFORCE for off-policy reinforcement learning", arXiv:2506.20520.
    """
    check_choice("scale", scale, ("std", "none"))
    _check_finite("shift", shift)
    groups = Groups(rewards, group_ids, argument="rewards")
    advantages = (groups.values - groups.mean() + shift) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def fixed_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    baseline: float = 0.0,
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus one constant, in units of the group's standard deviation.

        A_i = (R_i - b) / (std_j(R_j) + eps)

    On 0/1 rewards b = 0 learns from successes only and b = 1 from failures only: the two ends between which the
    quantile chooses for each prompt. They are what a K below 1/n and a K above 1 - 1/n give.

    Unscored rows, groups of one and groups of equal rewards get 0, as with every estimator here.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        baseline: b, in the unit of the reward.
        scale: "std" or "none".
        divisor: of the variance: "n" or "n-1".
        eps: added to the standard deviation.
        flat_tolerance: rewards no further apart than this count as equal.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
        >>> fixed_advantages(rewards, group_ids, baseline=1, scale="none").tolist()
        [0.0, -1.0, -1.0, -1.0]
    """
    check_choice("scale", scale, ("std", "none"))
    _check_finite("baseline", baseline)
    groups = Groups(rewards, group_ids, argument="rewards")
    advantages = (groups.values - baseline) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def _check_finite(argument: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{argument}={value} must be a finite number, in the unit of the reward")
