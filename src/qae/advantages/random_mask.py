"""A control: the mean baseline on as many completions as the quantile keeps, chosen by chance."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.mean import mean_advantages
from qae.advantages.quantile import quantile_advantages
from qae.groups import Divisor, group_index, group_size


def random_mask_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    row_keys: Int[Tensor, " n"] | None = None,
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Mean advantages, of which each group keeps m at random, where m is how many the K-quantile would keep.

        A_i = n/m 1{i is among the m rows of smallest key} (R_i - mean_j(R_j)) / (std_j(R_j) + eps)

    As sparse as `quantile_advantages`, group by group, but blind to sign and difficulty. The factor n/m keeps the
    expectation over the choice at the mean's advantages, so that only noise and sparsity differ from it.

    The function draws nothing itself: chance is in `row_keys`, and equal keys give equal masks. Unscored rows, groups
    of one and groups of equal rewards get 0.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: level of the quantile that is imitated, strictly between 0 and 1.
        row_keys: [n] a random integer for each row, new ones for each step; the trainer derives them from seed, step
            and row. Required.
        scale: "std" or "none".
        divisor: of the variance: "n" or "n-1".
        eps: added to the standard deviation.
        flat_tolerance: rewards no further apart than this count as equal.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: there are no keys or not one a row, an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> rewards, group_ids = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
        >>> keys = torch.tensor([12, 5, 99, 7])
        >>> random_mask_advantages(rewards, group_ids, k=0.4, row_keys=keys, scale="none").tolist()
        [0.0, -1.0, 0.0, 0.0]
    """
    if row_keys is None or row_keys.shape != rewards.shape:
        got = "none" if row_keys is None else f"shape {list(row_keys.shape)} for rewards of shape {list(rewards.shape)}"
        raise ValueError(
            f"random_mask needs row_keys, one random integer for each completion, and got {got}; pass for example "
            "torch.randint(2**62, rewards.shape, generator=...), new ones for each step"
        )
    kept = (
        quantile_advantages(rewards, group_ids, k, scale="none", flat_tolerance=flat_tolerance, min_size=min_size) != 0
    )
    advantages = mean_advantages(rewards.double(), group_ids, scale=scale, divisor=divisor, eps=eps)
    group = group_index(group_ids)
    # By group, within it scored rows first, and those by key.
    order = row_keys.argsort(stable=True)
    for by in (rewards.isnan(), group):
        order = order[by[order].long().argsort(stable=True)]
    rows = torch.bincount(group)
    count = torch.zeros_like(rows).index_add_(0, group, kept.long())[group]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (rows.cumsum(0) - rows)[group][order]
    factor = group_size(rewards, group_ids) / count.clamp(min=1).double()
    return (advantages * factor).where(rank < count, 0.0).to(rewards.dtype)
