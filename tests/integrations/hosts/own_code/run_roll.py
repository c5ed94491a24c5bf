"""The `reward_postprocess` of ROLL, which calls the function that we replace."""

import sys
from pathlib import Path
from types import SimpleNamespace

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout))
stubs = Stubs(
    "ray", "tensordict", "codetiming", "dacite", "hydra", "megatron", "mcore_adapter", "vllm", "sglang", "deepspeed",
    "wandb",
    "swanlab", "more_itertools", "torch_npu", "peft", "datasets", "trl", "imageio", "einops", "diffusers", "langid",
    "nltk",
    "sympy", "tensorboard", "modelscope", "isort", "gem", "jsonlines", "accelerate", "pynvml", "transformer_engine",
    "lmdb",
)  # fmt: skip

import torch

from qae.integrations import roll

roll.install(0.4)
functions = sys.modules[roll.FUNCTIONS]
rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])


def through(**settings) -> list[float]:
    plain = {"adv_estimator": "grpo", "norm_mean_type": None, "norm_std_type": None, "reward_clip": None}
    config = SimpleNamespace(**{**plain, **settings})
    config.actor_infer = SimpleNamespace(generating_args=SimpleNamespace(num_return_sequences=4))
    data = SimpleNamespace(batch={"response_level_rewards": rewards})
    done, _ = functions.reward_postprocess(data, config, {})
    return done.batch["response_level_rewards"].tolist()


report(
    checkout,
    stubs,
    quantile=through(),
    unscaled=through(adv_estimator="reinforce", norm_mean_type="group"),
    batch=through(adv_estimator="reinforce", norm_mean_type="group", norm_std_type="batch"),
    untouched=through(adv_estimator="reinforce", norm_mean_type="batch"),
)
