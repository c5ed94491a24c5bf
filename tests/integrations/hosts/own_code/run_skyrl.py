"""SkyRL's dispatch of advantage estimators, with ours in its registry."""

import sys
import typing
from pathlib import Path

import typing_extensions

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path[:0] = [str(checkout), str(checkout / "skyrl-gym")]
stubs = Stubs(
    "ray",
    "cloudpathlib",
    "skyrl_gym",
    "pandas",
    "loguru",
    "transformer_engine",
    "peft",
    "wandb",
    "hydra",
    "torchdata",
    "vllm",
    "flash_attn",
)
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # pydantic insists; the stub list names it
    stubs.used.add("typing.TypedDict of Python 3.12")

import numpy as np
import torch

from qae.integrations import skyrl

ppo = skyrl.registry_module()
rewards = torch.tensor([1.0, 0, 1, 0, 0, 1, 1, 5])
uids = np.array(["a", "a", "b", "a", "a", "b", "b", "a"], dtype=object)
mask = torch.ones(8, 3)
mask[7] = 0  # a rollout without a token to train on
tokens = torch.zeros(8, 3)
tokens[:, -1] = rewards
skyrl.register(0.4)
skyrl.register(0.9, name="qae_high")


def dispatch(name: str, **options):
    found, _ = ppo.compute_advantages_and_returns(tokens.clone(), mask, uids, name, config=None, **options)
    return found[:, 0].tolist()


report(
    checkout,
    stubs,
    quantile=dispatch("qae"),
    high=dispatch("qae_high"),
    unscaled=dispatch("qae", grpo_norm_by_std=False),
    own_mean=dispatch("grpo"),
    listed="qae" in ppo.AdvantageEstimatorRegistry.list_available(),
)
