"""OpenRLHF's own experience maker computing advantages and returns, ours in its place in the trainer's module."""

import sys
from pathlib import Path
from types import SimpleNamespace

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout))
stubs = Stubs(
    "ray", "pylatexenc", "deepspeed", "flash_attn", "vllm", "peft", "optree", "torchmetrics", "wandb",
    "bitsandbytes", "loralib",
    "pynvml", "ring_flash_attn", "transformers_stream_generator", "liger_kernel", "jsonlines", "einops", "isort",
    "datasets",
    "accelerate", "levenshtein", "fastapi", "tensorboard", "torchdata", "aiohttp",
)  # fmt: skip

import torch

from qae.integrations import openrlhf

openrlhf.install(0.4)
trainer = sys.modules[openrlhf.TRAINER]
maker_module = sys.modules[openrlhf.MAKER]
Experience = maker_module.Experience


def arguments(estimator: str):
    return SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False),
            kl=SimpleNamespace(init_coef=0.0),
        ),
        rollout=SimpleNamespace(n_samples_per_prompt=4, max_new_tokens=16),
        reward=SimpleNamespace(
            clip_range=(-10, 10), overlong_buffer_len=None, overlong_penalty_factor=1.0, stop_properly_penalty_coef=None
        ),
    )


def experiences():
    """Two prompts of four, balanced into two micro-batches by length, so that rows are out of order."""
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
    made = []
    for index in ([5, 0, 7], [1, 2, 3, 4, 6]):
        mask = torch.ones(len(index), 3, dtype=torch.bool)
        fields = {
            "index": index,
            "rewards": rewards[index].clone(),
            "action_mask": mask,
            "kl": torch.zeros(len(index), 3),
        }
        fields |= {"response_length": torch.full((len(index),), 3), "truncated": torch.zeros(len(index)), "info": {}}
        made.append(Experience(**fields))
    return made


def advantages(cls: type, estimator: str) -> list[float]:
    maker = cls.__new__(cls)
    maker.strategy = SimpleNamespace(args=arguments(estimator))
    maker.args = maker.strategy.args
    maker.advantage_estimator = estimator
    maker.kl_ctl = SimpleNamespace(value=0.0)
    found = torch.empty(8)
    for experience in maker.compute_advantages_and_returns(experiences()):
        assert (experience.advantages == experience.advantages[:, :1]).all()
        found[experience.index] = experience.advantages[:, 0]
    return found.tolist()


ours, host = trainer.RemoteExperienceMaker, maker_module.RemoteExperienceMaker
try:
    advantages(ours, "reinforce_baseline")
    refusal = ""
except ValueError as error:
    refusal = str(error)
report(
    checkout,
    stubs,
    quantile=advantages(ours, "group_norm"),
    unscaled=advantages(ours, "dr_grpo"),
    own_mean=advantages(host, "group_norm"),
    refusal=refusal,
)
