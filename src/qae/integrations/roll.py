"""ROLL: quantile advantages where its group mean is subtracted.

    python -m qae.integrations.roll --k 0.4 examples/start_rlvr_pipeline.py --config_name ...

with `adv_estimator: grpo` (divided by the group's deviation), or `reinforce` with `norm_mean_type: group`; and with
`whiten_advantages: false`. The pipeline runs in this process, so `install()` reaches it.
"""

import inspect
import sys
from importlib import import_module
from typing import Any

from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import blocks, level, run_script
from qae.integrations.status import warn_if_experimental

FUNCTIONS = "roll.utils.functionals"
HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-6}
SCALES = {"group": "std", "batch": "batch", None: "none"}
PARAMETERS = ["response_level_rewards", "n_sample", "running_ctrl", "norm_mean_type", "norm_std_type"]


def install(k: float | None = None) -> None:
    """Replace ROLL's `reward_norm`; where the mean is not a group's it does what it did.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.

    Raises:
        RuntimeError: the function is not what it was.
    """
    warn_if_experimental("roll")
    functions: Any = import_module(FUNCTIONS)
    own = getattr(functions, "reward_norm", None)
    if own is None or list(inspect.signature(own).parameters) != PARAMETERS:
        raise RuntimeError(
            f"{FUNCTIONS}.reward_norm({', '.join(PARAMETERS)}) is not there: quantile advantages would not reach the "
            "trainer. Use ROLL 0.3, or a newer qae"
        )
    chosen = level(k)

    def reward_norm(
        response_level_rewards: Tensor,
        n_sample: int = -1,
        running_ctrl: Any = None,
        norm_mean_type: str | None = None,
        norm_std_type: str | None = None,
    ) -> Tensor:
        if norm_mean_type != "group":
            return own(response_level_rewards, n_sample, running_ctrl, norm_mean_type, norm_std_type)
        if norm_std_type not in SCALES:
            raise ValueError(f"norm_std_type={norm_std_type!r} with quantile advantages; use group, batch or null")
        rewards = response_level_rewards.float()
        group_ids = blocks(len(rewards), n_sample).to(rewards.device)
        return quantile_advantages(rewards, group_ids, chosen, scale=SCALES[norm_std_type], **HOST)  # pyright: ignore[reportArgumentType]

    functions.reward_norm = reward_norm


def main(arguments: list[str] | None = None) -> None:
    """Install, then run the ROLL script that is named.

    Args:
        arguments: of the command line.
    """
    run_script(f"python -m {__name__}", install, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    from qae.integrations.roll import main as run

    run()
