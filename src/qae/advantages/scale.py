"""What an advantage is divided by."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qae.checks import check_at_least
from qae.groups import Divisor, Groups


def group_scale(
    groups: Groups, scale: Literal["std", "batch", "mean", "none"], divisor: Divisor, eps: float
) -> Float[Tensor, " n"]:
    """The unit of each row's advantage: its group's or the batch's standard deviation, its group's mean, or 1.

    Args:
        groups: the rewards.
        scale: "std", "batch", "mean" or "none".
        divisor: of the variance, "n" or "n-1".
        eps: added to the standard deviation or mean, in the unit of the reward. 0 is allowed: a group without
            spread gets advantage 0 whatever it is divided by.

    Returns:
        [n] float64.

    Raises:
        ValueError: `eps` is negative or `divisor` unknown.

    Example:
        >>> groups = Groups(torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0, 0, 0]))
        >>> group_scale(groups, "mean", "n", 0.0).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    check_at_least("eps", eps, 0)
    match scale:
        case "std":
            return groups.std(divisor) + eps
        case "batch":
            batch = Groups(groups.values, torch.zeros_like(groups.values, dtype=torch.int64))
            return batch.std(divisor) + eps
        case "mean":
            return groups.mean() + eps
        case "none":
            return torch.ones_like(groups.values)
