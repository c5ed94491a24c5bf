"""Policy losses [n t] -> [n t], unreduced: `qae.reduce` divides. `LOSSES` is the one table of their names."""

from collections.abc import Callable

from torch import Tensor

from qae.losses.cispo import cispo_policy_loss
from qae.losses.clip_cov import clip_cov_policy_loss, clip_cov_selection
from qae.losses.clipped import clip_fractions, clipped_policy_loss
from qae.losses.kl_cov import kl_cov_policy_loss, kl_cov_selection
from qae.losses.objective import objective_warning
from qae.losses.ratio import MAX_LOG_RATIO
from qae.losses.reference_kl import kl_penalty_k3
from qae.losses.sapo import sapo_policy_loss
from qae.losses.sequence import sequence_policy_loss

__all__ = [
    "LOSSES",
    "MAX_LOG_RATIO",
    "cispo_policy_loss",
    "clip_cov_policy_loss",
    "clip_cov_selection",
    "clip_fractions",
    "clipped_policy_loss",
    "kl_cov_policy_loss",
    "kl_cov_selection",
    "kl_penalty_k3",
    "objective_warning",
    "sapo_policy_loss",
    "sequence_policy_loss",
]

LOSSES: dict[str, Callable[..., Tensor]] = {
    "clip": clipped_policy_loss,
    "sequence": sequence_policy_loss,
    "clip_cov": clip_cov_policy_loss,
    "kl_cov": kl_cov_policy_loss,
    "cispo": cispo_policy_loss,
    "sapo": sapo_policy_loss,
}
