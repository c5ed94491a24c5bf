"""SkyRL: the advantage estimator `qae` in its registry.

    python -m qae.integrations.skyrl --k 0.4 trainer.algorithm.advantage_estimator=qae ...

runs SkyRL's own entry point with the estimator registered. In an entry point of your own call `register()` before
`initialize_ray`, which ships the registry to the workers. SkyRL's configuration is closed, so K is given here.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import ids_of, level, only_trained, run_script
from qae.integrations.status import warn_if_experimental

REGISTRIES = ("skyrl.backends.skyrl_train.utils.ppo_utils", "skyrl_train.utils.ppo_utils")
HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-6}


def quantile_estimator(
    *,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any],
    k: float,
    grpo_norm_by_std: bool = True,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """SkyRL's estimator signature: advantages and returns, both [n t].

    Args:
        token_level_rewards: [n t] whose sum is a row's reward.
        response_mask: [n t] tokens to train on; a row without any is outside its group.
        index: [n] uid of each row's prompt.
        k: level of the quantile.
        grpo_norm_by_std: SkyRL's setting.
    """
    rewards = only_trained(token_level_rewards.sum(-1).float(), response_mask.bool().any(-1))
    scale = "std" if grpo_norm_by_std else "none"
    found = quantile_advantages(rewards, ids_of(index).to(rewards.device), k, scale=scale, **HOST)
    advantages = found[:, None] * response_mask
    return advantages, advantages


def register(k: float | None = None, *, name: str = "qae") -> str:
    """Put the estimator into SkyRL's registry; a name that is there already is replaced.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.
        name: for `trainer.algorithm.advantage_estimator`.

    Returns:
        The name.
    """
    warn_if_experimental("skyrl")
    registry = registry_module().AdvantageEstimatorRegistry
    if name in registry.list_available():
        registry.unregister(name)
    registry.register(name, partial(quantile_estimator, k=level(k)))
    return name


def registry_module() -> Any:
    """SkyRL's module of estimators, wherever this version keeps it.

    Raises:
        ModuleNotFoundError: SkyRL is not installed.
    """
    for name in REGISTRIES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name and name.startswith(error.name)):
                raise
    raise ModuleNotFoundError(f"SkyRL is not installed: none of {', '.join(REGISTRIES)} exists; pip install skyrl")


def main(arguments: list[str] | None = None) -> None:
    """Register, then run SkyRL's own entry point.

    Args:
        arguments: of the command line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    run_script(f"python -m {__name__}", register, given, module="skyrl.train.entrypoints.main_base")


if __name__ == "__main__":
    from qae.integrations.skyrl import main as run

    run()
