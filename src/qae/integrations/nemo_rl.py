"""NeMo-RL: `grpo.adv_estimator.name=qae`, with `grpo.adv_estimator.k=0.4` beside it.

    python -m qae.integrations.nemo_rl examples/run_grpo.py --config ... grpo.adv_estimator.name=qae

NeMo-RL chooses its estimator in one function without a registry; `install()` puts ours before it. Its groups are equal
prompts, token by token: two rows of a data set with the same text are one group.
"""

import inspect
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import level, only_trained, run_script
from qae.integrations.status import warn_if_experimental

HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-6}
FACTORY = "_create_advantage_estimator"


class QuantileAdvantageEstimator:
    """NeMo-RL's estimator interface.

    Attributes:
        last_metrics: logged by NeMo-RL after each call.
    """

    def __init__(self, estimator_config: Any, loss_config: Any) -> None:
        """Read `k` and `normalize_rewards` from the configuration."""
        self.k = level(getattr(estimator_config, "k", None))
        self.scale = "std" if getattr(estimator_config, "normalize_rewards", True) else "none"
        self.last_metrics: dict[str, float] = {}

    def compute_advantage(self, prompt_ids: Tensor, rewards: Tensor, mask: Tensor, **_: Any) -> Tensor:
        """Advantages [n s].

        Args:
            prompt_ids: [n p] the prompts' tokens, padded; equal rows are one group.
            rewards: [n].
            mask: [n s] tokens to train on; a row without any is outside its group.
        """
        group_ids = torch.unique(prompt_ids, dim=0, return_inverse=True)[1].to(rewards.device)
        scored = only_trained(rewards.float(), mask.bool().any(-1))
        found = quantile_advantages(scored, group_ids, self.k, scale=self.scale, **HOST)  # pyright: ignore[reportArgumentType]
        self.last_metrics = {"k": self.k, "advantage/zero_frac": float((found == 0).float().mean())}
        return found[:, None].expand(mask.shape)


def install(k: float | None = None) -> None:
    """Let NeMo-RL's factory know the name `qae`, in every module that holds it.

    Args:
        k: used where the configuration has no `grpo.adv_estimator.k`.

    Raises:
        RuntimeError: the factory is not where it was.
    """
    warn_if_experimental("nemo_rl")
    grpo: Any = import_module("nemo_rl.algorithms.grpo")
    own = getattr(grpo, FACTORY, None)
    if own is None or list(inspect.signature(own).parameters) != ["master_config"]:
        raise RuntimeError(
            f"nemo_rl.algorithms.grpo.{FACTORY}(master_config) is not there: this NeMo-RL chooses its estimator "
            "elsewhere, and quantile advantages would not reach it. Use NeMo-RL 0.6, or a newer qae"
        )
    fallback = level(k)

    def with_quantile(master_config: Any) -> Any:
        settings = master_config.grpo.adv_estimator
        if settings.name != "qae":
            return own(master_config)
        if getattr(settings, "k", None) is None:
            settings.k = fallback
        print(f"  using quantile advantages (qae), K={settings.k}")  # noqa: T201  # NeMo-RL's own factory prints too
        return QuantileAdvantageEstimator(settings, master_config.loss_fn)

    for name, module in list(sys.modules.items()):
        if name.startswith("nemo_rl.") and getattr(module, FACTORY, None) is own:
            setattr(module, FACTORY, with_quantile)


def main(arguments: list[str] | None = None) -> None:
    """Install, then run the NeMo-RL script that is named.

    Args:
        arguments: of the command line.
    """
    run_script(f"python -m {__name__}", install, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    from qae.integrations.nemo_rl import main as run

    run()
