"""A TRL trainer on the shipped tiny policy, and rewards that the tests choose."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from qae.policies.source import TINY
from qae.tasks import make_task

PROMPTS = 64
# transformers warns of names that TRL still uses
MARKS = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FUNCTIONS = ("coin", "length", "right")


def dataset(size: int = PROMPTS):
    from datasets import Dataset

    task = make_task({"name": "arithmetic", "levels": ["1x1", "2x1"]}, seed=0)
    items = [task.train_item(i) for i in range(size)]
    return Dataset.from_list([{"prompt": item.prompt, "answer": item.answer} for item in items])


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number after the last #."""
    return [float(c.rsplit("#", 1)[-1].strip() == a) for c, a in zip(completions, answer, strict=True)]


def coin(completions: list[str], **_: Any) -> list[float]:
    """A reward that depends on the text alone: about a third of the completions."""
    return [float(random.Random(c).random() < 0.35) for c in completions]


def often_flat(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
    """Half of the prompts are all right, the others by chance."""
    return [1.0 if len(p) % 2 else c for p, c in zip(prompts, coin(completions), strict=True)]


def length(completions: list[str], **_: Any) -> list[float | None]:
    """A shaped reward that is None for some."""
    return [None if random.Random(c + "!").random() < 0.2 else -len(c) / 40 for c in completions]


def config(out: Path, **options: Any):
    from trl import GRPOConfig

    defaults: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": 16,
        "num_generations": 8,
        "max_completion_length": 24,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "log_completions": True,
        "learning_rate": 1e-4,
        "seed": 0,
    }
    return GRPOConfig(**{**defaults, **options})


def make_trainer(out: Path, host: Any = None, *, reward_funcs: Any = coin, data: Any = None, **options: Any):
    """`host` (default: ours) on the tiny policy; quantile settings and GRPOConfig's fields in one list."""
    from dataclasses import fields

    from qae.integrations.trl import QuantileGRPOTrainer, QuantileSettings

    host = host or QuantileGRPOTrainer
    own = {f.name for f in fields(QuantileSettings)} | {"advantage_function"}
    mine = {name: options.pop(name) for name in list(options) if name in own}
    return host(
        model=str(TINY),
        reward_funcs=reward_funcs,
        args=config(out, **options),
        train_dataset=dataset() if data is None else data,
        **mine,
    )


def table(out: Path, step: int) -> dict[str, list[Any]]:
    """The completions that TRL wrote after a step."""
    return pq.read_table(out / "completions" / f"completions_{step:05d}.parquet").to_pydict()


def logged(out: Path, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards [n f] (NaN for None) and advantages [n] of a table."""
    columns = table(out, step)
    rewards = [[float("nan") if x is None else x for x in columns[name]] for name in FUNCTIONS if name in columns]
    return torch.tensor(rewards).T, torch.tensor(columns["advantage"])


def gradients(trainer: Any) -> list[torch.Tensor]:
    """Train, and return the flat gradient of every optimiser step."""
    from transformers import TrainerCallback

    found: list[torch.Tensor] = []

    class Record(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())

    trainer.add_callback(Record())
    trainer.train()
    return found
