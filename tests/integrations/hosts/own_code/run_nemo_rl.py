"""NeMo-RL's own estimator class and its own factory, with ours before it."""

import sys
from pathlib import Path
from types import SimpleNamespace

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout))
stubs = Stubs(
    "ray", "torchdata", "transformers", "tensordict", "hydra", "wandb", "uvicorn", "zmq", "pynvml", "math_verify",
    "PIL",
    instead=tuple(
        f"nemo_rl.{part}"
        for part in (
            "data", "data_plane", "distributed", "environments", "experience", "models", "utils", "weight_sync",
        )
    ),
)  # fmt: skip

import nemo_rl.algorithms.grpo as grpo
import torch

from qae.integrations.nemo_rl import install

install(0.4)
prompts = torch.tensor([[5, 6], [7, 0], [5, 6], [5, 6], [5, 6], [7, 0], [7, 0]])
rewards = torch.tensor([1.0, 1, 0, 0, 0, 1, 0])
mask = torch.ones(7, 4)


def config(**settings):
    estimator = SimpleNamespace(normalize_rewards=True, use_leave_one_out_baseline=False, **settings)
    return SimpleNamespace(grpo=SimpleNamespace(adv_estimator=estimator), loss_fn=SimpleNamespace())


def advantages(**settings):
    estimator = grpo._create_advantage_estimator(config(**settings))
    found = estimator.compute_advantage(prompt_ids=prompts, rewards=rewards, mask=mask, repeated_batch={})
    return type(estimator).__name__, found[:, 0].tolist()


report(
    checkout,
    stubs,
    quantile=advantages(name="qae", k=0.4),
    high=advantages(name="qae", k=0.9),
    fallback=advantages(name="qae"),
    own_mean=advantages(name="grpo"),
)
