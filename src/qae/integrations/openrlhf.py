"""OpenRLHF: quantile advantages where its experience maker subtracts the group's mean.

    python -m qae.integrations.openrlhf --k 0.4 --algo.advantage.estimator group_norm ...

stands for `python -m openrlhf.cli.train_ppo_ray`. The trainer is a Ray actor, so the change is made in every worker
as it starts. `group_norm` divides by the group's standard deviation, `dr_grpo` does not; other estimators are refused,
since OpenRLHF whitens their advantages over the batch afterwards.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qae.advantages import quantile_advantages
from qae.integrations.rows import level, only_trained, run_script
from qae.integrations.status import warn_if_experimental

HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-9}
SCALES = {"group_norm": "std", "dr_grpo": "none"}
MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
TRAINER = "openrlhf.trainer.ppo_trainer"
# what OpenRLHF's own launcher passes to Ray where nobody else has started it
RAY_DEFAULTS = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}


def quantile_maker(host: type, k: float) -> type:
    """A subclass of OpenRLHF's experience maker.

    It runs the host's own method and changes one thing in it: the shaped reward that `compute_reward` is handed for
    each row. Length penalties, reward clipping, KL and returns stay the host's.

    Args:
        host: `RemoteExperienceMaker`, or a subclass.
        k: level of the quantile.
    """
    base: Any = host
    module: Any = import_module(MAKER)

    class QuantileExperienceMaker(base):
        """OpenRLHF's experience maker with quantile advantages."""

        def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
            """As the host's, over our baseline."""
            estimator = self.strategy.args.algo.advantage.estimator
            if estimator not in SCALES:
                raise ValueError(
                    f"--algo.advantage.estimator {estimator} with quantile advantages: OpenRLHF would subtract or "
                    "whiten them again; use group_norm (divided by the group's deviation) or dr_grpo (not divided)"
                )
            pending: list[Tensor] = []
            own = module.compute_reward

            def compute_reward(reward: Tensor, *args: Any, **keywords: Any) -> Tensor:
                if not pending:  # at the first call: length penalties are in the rewards by now
                    size = self.strategy.args.rollout.n_samples_per_prompt
                    pending.extend(reversed(_advantages(experiences, size, k, SCALES[estimator])))
                return own(pending.pop().to(reward), *args, **keywords)

            module.compute_reward = compute_reward
            try:
                made = super().compute_advantages_and_returns(experiences)
            finally:
                module.compute_reward = own
            if pending:
                raise RuntimeError(
                    "OpenRLHF did not ask compute_reward for every experience: quantile advantages did not reach all "
                    "rows. Use OpenRLHF 0.11, or a newer qae"
                )
            return made

    return QuantileExperienceMaker


def install(k: float | None = None) -> None:
    """Let OpenRLHF's trainer build our experience maker, in this process.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.

    Raises:
        RuntimeError: the class is not where it was.
    """
    warn_if_experimental("openrlhf")
    trainer: Any = import_module(TRAINER)
    host = getattr(trainer, "RemoteExperienceMaker", None)
    if (
        host is None
        or not hasattr(host, "compute_advantages_and_returns")
        or not hasattr(import_module(MAKER), "compute_reward")
    ):
        raise RuntimeError(
            f"{TRAINER}.RemoteExperienceMaker.compute_advantages_and_returns is not there: quantile advantages would "
            "not reach the trainer. Use OpenRLHF 0.11, or a newer qae"
        )
    trainer.RemoteExperienceMaker = quantile_maker(host, level(k))


def start_ray(k: float) -> None:
    """Start Ray as OpenRLHF does, with `install` run in every worker.

    Args:
        k: level of the quantile.
    """
    ray: Any = import_module("ray")
    variables = {name: os.environ.get(name, value) for name, value in RAY_DEFAULTS.items()}
    ray.init(
        runtime_env={
            "env_vars": {**variables, "QAE_K": str(k)},
            "worker_process_setup_hook": f"{__name__}.install",
        }
    )


def _advantages(experiences: Sequence[Any], size: int, k: float, scale: str) -> list[Tensor]:
    """[b] for each experience; rows without an action to train on are outside their group."""
    rewards = torch.cat([experience.rewards for experience in experiences]).float()
    trained = torch.cat([experience.action_mask.bool().any(-1) for experience in experiences])
    rows = torch.tensor([row for experience in experiences for row in experience.index])
    group_ids = (rows // size).to(rewards.device)
    found = quantile_advantages(only_trained(rewards, trained), group_ids, k, scale=scale, **HOST)  # pyright: ignore[reportArgumentType]
    return list(found.split([len(experience.index) for experience in experiences]))


def main(arguments: list[str] | None = None) -> None:
    """Start Ray, then run OpenRLHF's own launcher.

    Args:
        arguments: of the command line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    run_script(f"python -m {__name__}", start_ray, given, module="openrlhf.cli.train_ppo_ray")


if __name__ == "__main__":
    from qae.integrations.openrlhf import main as run

    run()
