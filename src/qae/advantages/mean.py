"""The mean baseline: GRPO, Dr. GRPO and MaxRL, which differ in what they divide by."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.scale import group_scale
from qae.checks import check_choice
from qae.groups import Divisor, Groups


def mean_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    scale: Literal["std", "batch", "mean", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus the mean of its group, over the group's standard deviation, over its mean, or as it is.

        A_i = (R_i - mean_j(R_j)) / (std_j(R_j) + eps)      scale="std"    GRPO, arXiv:2402.03300
        A_i = (R_i - mean_j(R_j)) / (mean_j(R_j) + eps)     scale="mean"   MaxRL, arXiv:2602.02710
        A_i =  R_i - mean_j(R_j)                            scale="none"   Dr. GRPO, arXiv:2503.20783

    Rows that were not scored (NaN) get 0 and are outside their group. Groups of one and groups whose rewards
    are all equal get 0, decided by equality of the rewards, not by a standard deviation. No gradient passes.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        scale: what to divide by; "batch" is the standard deviation of all scored rewards (TRL's
            scale_rewards="batch"); "mean" needs rewards that are never negative.
        divisor: of the variance: "n", or "n-1" as in verl and TRL.
        eps: added to the standard deviation or mean, in the unit of the reward: 1e-6 in verl, 1e-4 in TRL.
        flat_tolerance: rewards no further apart than this count as equal, for noisy judges.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, a reward is infinite, or negative if scale is "mean".

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0, 0, 0])
        >>> mean_advantages(rewards, group_ids, scale="none").tolist()
        [0.75, -0.25, -0.25, -0.25]
        >>> mean_advantages(rewards, group_ids, scale="mean", eps=0).tolist()
        [3.0, -1.0, -1.0, -1.0]

    Reference:
        GRPO is equation 3 of arXiv:2402.03300.
    """
    check_choice("scale", scale, ("std", "batch", "mean", "none"))
    groups = Groups(rewards, group_ids, argument="rewards")
    if scale == "mean" and bool((groups.values < 0).any()):
        row = int((groups.values < 0).nonzero()[0])
        raise ValueError(
            f"rewards[{row}]={float(groups.values[row])} must be at least 0, as scale='mean' divides by the mean "
            "reward; pass 0/1 outcomes, or scale='std'"
        )
    advantages = (groups.values - groups.mean()) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)
