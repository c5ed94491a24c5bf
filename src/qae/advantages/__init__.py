"""Advantage estimators: rewards and group ids in, one advantage for each completion out."""

from collections.abc import Callable

from torch import Tensor

from qae.advantages.leave_one_out import leave_one_out_advantages, leave_one_out_quantile_advantages
from qae.advantages.mean import mean_advantages
from qae.advantages.quantile import outcome_quantile_advantages, quantile_advantages
from qae.advantages.random_mask import random_mask_advantages
from qae.advantages.shifted import asymre_advantages, fixed_advantages
from qae.advantages.two_sided import neg_mask_advantages, pos_mask_advantages, w_reinforce_advantages

ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "asymre": asymre_advantages,
    "fixed": fixed_advantages,
    "leave_one_out": leave_one_out_advantages,
    "leave_one_out_quantile": leave_one_out_quantile_advantages,
    "mean": mean_advantages,
    "neg_mask": neg_mask_advantages,
    "pos_mask": pos_mask_advantages,
    "quantile": quantile_advantages,
    "random_mask": random_mask_advantages,
    "w_reinforce": w_reinforce_advantages,
}

__all__ = [
    "ADVANTAGES",
    "asymre_advantages",
    "fixed_advantages",
    "leave_one_out_advantages",
    "leave_one_out_quantile_advantages",
    "mean_advantages",
    "neg_mask_advantages",
    "outcome_quantile_advantages",
    "pos_mask_advantages",
    "quantile_advantages",
    "random_mask_advantages",
    "w_reinforce_advantages",
]
