"""Baselines that leave the row itself out: the mean of the others (RLOO), and their quantile."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.scale import group_scale
from qae.checks import check_choice
from qae.groups import Divisor, Groups, Method


def leave_one_out_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus the mean of the other rewards of its group.

        A_i = R_i - 1/(n-1) sum_{j != i} R_j = n/(n-1) (R_i - mean_j(R_j))

    There is no division by a spread: the others of a lone success are all equal, and dividing by their
    standard deviation turns an advantage of 1 into a million.

    Rows that were not scored (NaN) get 0 and are outside their group. Groups of one and groups whose rewards
    are all equal get 0. No gradient passes.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        flat_tolerance: rewards no further apart than this count as equal, for noisy judges.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 1]), torch.tensor([0, 0, 0])
        >>> leave_one_out_advantages(rewards, group_ids).tolist()
        [0.5, -1.0, 0.5]

    Reference:
        Ahmadian et al., "Back to Basics", arXiv:2402.14740.
    """
    groups = Groups(rewards, group_ids, argument="rewards")
    size = groups.size().double()
    advantages = (groups.values - groups.mean()) * size / (size - 1)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def leave_one_out_quantile_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    method: Method = "exact",
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus the K-quantile of the other rewards of its group.

        A_i = (R_i - b_i) / (std_j(R_j) + eps),    b_i = inf { x : F_{j != i}(x) >= K }

    A baseline that does not see its own row leaves the expected update alone (without the division); in a small group
    the ordinary quantile does see it. The price is at the threshold: where the own row decides the regime, one class
    of the group is judged by b = 0 and the other by b = 1, so that both have an advantage or none has. The division
    is by the whole group's standard deviation, which is 0 only where all rewards are equal.

    Unscored rows, groups of one and groups of equal rewards get 0, as in `quantile_advantages`.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: level of the quantile, strictly between 0 and 1.
        method: "exact" or "linear", as in `quantile_advantages`, like all that follow.
        scale: "std" or "none".
        divisor: "n" or "n-1".
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
        >>> rewards, group_ids = torch.tensor([1.0, 1, 0]), torch.tensor([0, 0, 0])
        >>> leave_one_out_quantile_advantages(rewards, group_ids, k=0.4, scale="none").tolist()
        [1.0, 1.0, -1.0]
    """
    check_choice("scale", scale, ("std", "none"))
    groups = Groups(rewards, group_ids, argument="rewards")
    advantages = (groups.values - groups.quantile_of_others(k, method)) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)
