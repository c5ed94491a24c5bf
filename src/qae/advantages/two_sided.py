"""A weight on successes and a weight on failures: the paper's POS-mask and NEG-mask, and W-REINFORCE.

All three are one sum. With l and h the lowest and the highest reward of a group,

    A_i = w_pos (R_i - l) + w_neg (R_i - h)

gives a 0/1 success w_pos and a failure -w_neg. The quantile baseline itself has (w_pos, w_neg) = (1, 0) on a hard
prompt and (0, 1) on an easy one.
"""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.scale import group_scale
from qae.checks import check_at_least, check_choice
from qae.groups import Divisor, Groups


def pos_mask_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Every failure is penalised; successes are reinforced on hard prompts only.

        A_i = (1{p <= 1-K} (R_i - l) + (R_i - h)) / (std_j(R_j) + eps),    l, h: lowest and highest of the group

    The quantile's gate without its half on failures: what is left out are the positives of easy prompts. Against
    `quantile_advantages` it shows what the negatives of hard prompts do.

    Unscored rows, groups of one and groups of equal rewards get 0, as in `quantile_advantages`.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: level of the quantile that calls a prompt easy, as in `quantile_advantages`, like all that follow.
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
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.arange(8) // 4
        >>> pos_mask_advantages(rewards, group_ids, k=0.4, scale="none").tolist()
        [1.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, -1.0]

    Reference:
        arXiv:2509.22611, figure 6.
    """
    check_choice("scale", scale, ("std", "none"))
    groups = Groups(rewards, group_ids, argument="rewards")
    hard = groups.quantile(k) <= groups.smallest()
    advantages = ((groups.values - groups.smallest()).where(hard, 0.0) + groups.values - groups.largest()) / (
        group_scale(groups, scale, divisor, eps)
    )
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def neg_mask_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Every success is reinforced; failures are penalised on easy prompts only.

        A_i = ((R_i - l) + 1{p > 1-K} (R_i - h)) / (std_j(R_j) + eps),    l, h: lowest and highest of the group

    The mirror image of `pos_mask_advantages`: what is left out are the negatives of hard prompts.

    Unscored rows, groups of one and groups of equal rewards get 0, as in `quantile_advantages`.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: level of the quantile that calls a prompt easy, as in `quantile_advantages`, like all that follow.
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
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.arange(8) // 4
        >>> neg_mask_advantages(rewards, group_ids, k=0.4, scale="none").tolist()
        [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, -1.0]

    Reference:
        arXiv:2509.22611, figure 6.
    """
    check_choice("scale", scale, ("std", "none"))
    groups = Groups(rewards, group_ids, argument="rewards")
    easy = groups.quantile(k) > groups.smallest()
    advantages = (groups.values - groups.smallest() + (groups.values - groups.largest()).where(easy, 0.0)) / (
        group_scale(groups, scale, divisor, eps)
    )
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def w_reinforce_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    positive_weight: float = 0.1,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Failures weigh 1, successes `positive_weight`, whatever the pass rate.

        A_i = lambda (R_i - l) + (R_i - h),    l, h: lowest and highest of the group

    On 0/1 rewards a success gets lambda and a failure -1; there is no division by a spread. One departure from the
    paper: groups whose rewards are all equal get 0, as with every estimator here, where the paper goes on learning
    from groups that are all right or all wrong. Unscored rows and groups of one get 0.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        positive_weight: lambda, at least 0; 0 learns from failures only (the paper's NSR).
        flat_tolerance: rewards no further apart than this count as equal.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 1]), torch.zeros(4, dtype=torch.int64)
        >>> w_reinforce_advantages(rewards, group_ids, positive_weight=0.25).tolist()
        [0.25, -1.0, -1.0, 0.25]

    Reference:
        Zhu et al., "The Surprising Effectiveness of Negative Reinforcement", arXiv:2506.01347.
    """
    check_at_least("positive_weight", positive_weight, 0)
    groups = Groups(rewards, group_ids, argument="rewards")
    advantages = positive_weight * (groups.values - groups.smallest()) + groups.values - groups.largest()
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)
