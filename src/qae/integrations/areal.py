"""AReaL: quantile advantages in the place of its reward normalisation.

    python -m qae.integrations.areal --k 0.4 examples/math/gsm8k_rl.py --config ...

with `actor.reward_norm.mean_level=group`, `actor.reward_norm.group_size` the samples of a prompt and
`actor.adv_norm=null`.

AReaL's actor calls `reward_norm` on the batch's rewards. `install()` puts a quantile there, with the divisor, eps and
group size of `actor.reward_norm`. It acts in this process: where AReaL starts the actor in workers of their own, import
`qae.integrations.areal` in them and call `install()` there.
"""

import sys
from importlib import import_module
from typing import Any

from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import blocks, level, run_script
from qae.integrations.status import warn_if_experimental

ACTOR = "areal.trainer.ppo.actor"
SCALES = {"group": "std", "batch": "batch", None: "none"}


class QuantileNormalization:
    """AReaL's normalisation interface: rewards [n] to advantages [n]."""

    def __init__(self, config: Any, k: float) -> None:
        """Take divisor, eps and group size from AReaL's NormConfig."""
        if config.mean_level != "group" or config.group_size < 2:
            raise ValueError(
                f"actor.reward_norm has mean_level={config.mean_level!r} and group_size={config.group_size}: a "
                "quantile needs groups; set mean_level=group and group_size to gconfig.n_samples"
            )
        self.k = k
        self.group_size = config.group_size
        self.options: dict[str, Any] = {
            "scale": SCALES[config.std_level],
            "divisor": "n-1" if config.std_unbiased else "n",
            "eps": config.eps,
        }

    def __call__(self, x: Tensor, **_: Any) -> Tensor:
        """Advantages of rewards, in blocks of `group_size`.

        Args:
            x: [n] rewards.
        """
        group_ids = blocks(len(x), self.group_size).to(x.device)
        return quantile_advantages(x.float(), group_ids, self.k, **self.options)


def install(k: float | None = None) -> None:
    """Let AReaL's actor use ours for `actor.reward_norm`; its `adv_norm` is left alone.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.

    Raises:
        RuntimeError: the actor has no such normalisation.
    """
    warn_if_experimental("areal")
    actor: Any = import_module(ACTOR)
    chosen = level(k)
    own = actor.PPOActor.__init__
    if "reward_norm" not in own.__code__.co_names:
        raise RuntimeError(
            f"{ACTOR}.PPOActor sets no reward_norm: quantile advantages would not reach the trainer. "
            "Use AReaL 1.0, or a newer qae"
        )

    def with_quantile(self: Any, config: Any, *args: Any, **keywords: Any) -> None:
        own(self, config, *args, **keywords)
        if config.reward_norm is None:
            raise ValueError("actor.reward_norm is null: set actor.reward_norm.mean_level=group and its group_size")
        if config.adv_norm is not None:
            raise ValueError("actor.adv_norm would whiten the advantages again; set actor.adv_norm=null")
        self.reward_norm = QuantileNormalization(config.reward_norm, chosen)

    actor.PPOActor.__init__ = with_quantile


def main(arguments: list[str] | None = None) -> None:
    """Install, then run the AReaL script that is named.

    Args:
        arguments: of the command line.
    """
    run_script(f"python -m {__name__}", install, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    from qae.integrations.areal import main as run

    run()
