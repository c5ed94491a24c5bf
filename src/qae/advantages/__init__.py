"""Advantage estimators: rewards and group ids in, one advantage for each completion out."""

from collections.abc import Callable

from torch import Tensor

from qae.advantages.leave_one_out import leave_one_out_advantages
from qae.advantages.mean import mean_advantages
from qae.advantages.quantile import outcome_quantile_advantages, quantile_advantages

ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "leave_one_out": leave_one_out_advantages,
    "mean": mean_advantages,
    "quantile": quantile_advantages,
}

__all__ = [
    "ADVANTAGES",
    "leave_one_out_advantages",
    "mean_advantages",
    "outcome_quantile_advantages",
    "quantile_advantages",
]
