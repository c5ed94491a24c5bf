"""Tunix (JAX): the advantage estimator `qae`.

    from qae.integrations.tunix import register
    register(k=0.4)
    GRPOConfig(advantage_estimator="qae", ...)

Works for GRPOConfig, DAPOConfig and the agentic GRPOConfig; Tunix hands an estimator rewards and the group size only.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import blocks, level
from qae.integrations.status import warn_if_experimental

HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-6}


def register(k: float | None = None, *, name: str = "qae") -> str:
    """Put the estimator into Tunix's registry.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.
        name: for `advantage_estimator`.

    Returns:
        The name.
    """
    warn_if_experimental("tunix")
    registry: Any = import_module("tunix.rl.function_registry")
    numpy: Any = import_module("numpy")
    chosen = level(k)

    def estimator(rewards: Any, num_generations: int) -> Any:
        values = torch.from_numpy(numpy.asarray(rewards, dtype=numpy.float32).copy())
        return quantile_rows(values, num_generations, chosen).numpy()

    registry.register_advantage_estimator(name)(estimator)
    return name


def quantile_rows(rewards: Tensor, group_size: int, k: float) -> Tensor:
    """Advantages [n] of rewards [n] in runs of `group_size`, over Tunix's standard deviation.

    Args:
        rewards: [n] float.
        group_size: rows of a group.
        k: level of the quantile.

    Example:
        >>> quantile_rows(torch.tensor([1.0, 0, 0, 0]), 4, 0.4)
        tensor([2.0000, 0.0000, 0.0000, 0.0000])
    """
    return quantile_advantages(rewards, blocks(len(rewards), group_size), k, **HOST)
