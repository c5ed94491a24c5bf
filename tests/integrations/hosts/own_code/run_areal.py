"""AReaL's own actor computing advantages, with our normalisation in its place."""

import sys
import typing
from pathlib import Path
from types import SimpleNamespace

import typing_extensions

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout))
stubs = Stubs(
    "ray", "httpx", "einops", "torchdata", "uvloop", "hydra", "aiohttp", "datasets", "openai", "colorlog", "aiofiles",
    "pynvml", "tensorboardX", "wandb", "trackio", "swanlab", "lark", "PIL", "zmq", "numba", "orjson", "tensordict",
    "requests",
    instead=("areal.experimental", "areal.infra", "areal.engine", "areal.utils.logging", "areal.utils.printing"),
)  # fmt: skip
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict

import torch

from qae.integrations import areal

areal.install(0.4)
actor = sys.modules[areal.ACTOR]
from areal.api.cli_args import NormConfig


def config(**options):
    norm = NormConfig(mean_level="group", std_level="group", group_size=4)
    plain = {
        "reward_bias": 0.0, "reward_scaling": 1.0, "reward_clip": 20.0, "kl_ctl": 0.0, "kl_estimator": "k1",
        "adv_norm": None, "reward_norm": norm, "discount": 1.0, "gae_lambda": 1.0, "mask_no_eos_with_zero": False,
        "temperature": 1.0, "m2_threshold": None, "overlong_reward_penalty": False, "use_decoupled_loss": False,
        "recompute_logprob": False, "prox_logp_method": "recompute",
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **options})


def make(**options):
    actor.PPOActor._log_configuration = lambda self: None
    return actor.PPOActor(config(**options), None)


rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])


def batch():
    mask = torch.ones(8, 5)
    mask[:, :2] = 0
    return {
        "input_ids": torch.ones(8, 5, dtype=torch.int64), "attention_mask": torch.ones(8, 5, dtype=torch.int64),
        "loss_mask": mask, "logprobs": torch.zeros(8, 5), "rewards": rewards.clone(), "versions": torch.zeros(8, 5),
    }  # fmt: skip


def through_actor(which) -> list[float]:
    compute = getattr(which, "_compute_advantages", None) or which.compute_advantages
    found = compute(batch())["advantages"]
    return found[:, 1].tolist()


refusals = []
for wrong in ({"adv_norm": NormConfig()}, {"reward_norm": None}):
    try:
        make(**wrong)
    except ValueError as error:
        refusals.append(str(error))
ours = make()
quantile = through_actor(ours)
ours.reward_norm = actor.Normalization(config().reward_norm)
report(checkout, stubs, quantile=quantile, own_mean=through_actor(ours), refusals=refusals)
