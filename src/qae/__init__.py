"""Quantile Advantage Estimation (arXiv:2509.22611) for reinforcement learning on verifiable rewards.

Names are loaded on first use (PEP 562), so that `import qae` and `qae --help` do not import torch.
"""

import importlib
from typing import Any

_HOME = {
    "ADVANTAGES": "qae.advantages",
    "LOSSES": "qae.losses",
    "TrainConfig": "qae.trainer.config",
    "asymre_advantages": "qae.advantages",
    "cispo_policy_loss": "qae.losses",
    "clip_cov_policy_loss": "qae.losses",
    "clipped_policy_loss": "qae.losses",
    "fixed_advantages": "qae.advantages",
    "group_mean": "qae.groups",
    "group_quantile": "qae.groups",
    "group_size": "qae.groups",
    "group_std": "qae.groups",
    "kl_cov_policy_loss": "qae.losses",
    "leave_one_out_advantages": "qae.advantages",
    "leave_one_out_quantile_advantages": "qae.advantages",
    "maj_at_k": "qae.evaluation.estimators",
    "mean_advantages": "qae.advantages",
    "neg_mask_advantages": "qae.advantages",
    "pass_at_k": "qae.evaluation.estimators",
    "pos_mask_advantages": "qae.advantages",
    "predicted_entropy_change": "qae.entropy",
    "quantile_advantages": "qae.advantages",
    "random_mask_advantages": "qae.advantages",
    "regime_table": "qae.entropy",
    "sapo_policy_loss": "qae.losses",
    "sequence_mean": "qae.reduce",
    "sequence_policy_loss": "qae.losses",
    "sequence_sum": "qae.reduce",
    "sequence_sum_norm": "qae.reduce",
    "token_entropy": "qae.logprobs",
    "token_mean": "qae.reduce",
    "train": "qae.engines.dispatch",
    "w_reinforce_advantages": "qae.advantages",
    "write_report": "qae.report",
}

__version__ = "0.1.0"
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import the module that holds `name` on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'qae' has no attribute {name!r}; public names are {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, for tab completion."""
    return [*__all__, "__version__"]
