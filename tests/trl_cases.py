"""A TRL trainer on the shipped tiny policy, and rewards that the tests choose."""

import random
from pathlib import Path
from typing import Any

from qae.policies.source import TINY
from qae.tasks import make_task

PROMPTS = 64


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
