"""DAPO's dynamic sampling for TRL: groups without anything to compare give their place to fresh prompts."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Batch = dict[str, Any]
_PAD_LEFT = ("prompt_ids", "prompt_mask")


def reason_against(trainer: Any) -> str | None:
    """Why this trainer cannot refill, or None.

    Args:
        trainer: a GRPOTrainer.
    """
    rows = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    if rows % trainer.num_generations:
        return (
            f"per_device_train_batch_size * steps_per_generation is {rows}, no multiple of num_generations="
            f"{trainer.num_generations}: a group would lie on two processes. Make it a multiple"
        )
    if not hasattr(trainer.train_dataset, "__len__"):
        return "the training set is a stream, which has no further prompts to draw. Use a map-style dataset"
    return None


def draw_prompts(size: int, count: int, seed: int, step: int, refill: int) -> list[int]:
    """Rows of the training set for one refill, over all processes: the same ones whenever a run repeats this step.

    Args:
        size: of the training set.
        count: how many to draw.
        seed: of the run.
        step: optimiser steps so far.
        refill: how many refills this step had before.

    Example:
        >>> sorted(draw_prompts(4, 4, seed=0, step=7, refill=0))
        [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(hash((seed, step, refill)) & (2**63 - 1))
    order = torch.randperm(size, generator=generator).tolist()
    return [order[i % size] for i in range(count)]


def take_rows(batch: Batch, rows: Bool[Tensor, " n"] | Int[Tensor, " m"]) -> Batch:
    """Some rows of a batch; what has no rows is kept.

    Args:
        batch: TRL's batch.
        rows: which.

    Raises:
        ValueError: the batch holds something other than tensors.
    """
    odd = [name for name, value in batch.items() if not torch.is_tensor(value)]
    if odd:
        raise ValueError(
            f"dynamic_sampling_refills handles text only, and this batch has {', '.join(odd)}; "
            "set dynamic_sampling_refills=0"
        )
    return {name: value if value.dim() == 0 else value[rows.to(value.device)] for name, value in batch.items()}


def join_batches(batches: Sequence[Batch], pad_id: int) -> Batch:
    """Batches of different widths as one, padded like TRL's: prompts left, completions right.

    Args:
        batches: with the same keys.
        pad_id: of the tokenizer.
    """
    joined: Batch = {}
    for name, first in batches[0].items():
        parts = [batch[name] for batch in batches]
        if first.dim() == 0:
            joined[name] = first
            continue
        if first.dim() == 2:
            width = max(part.shape[1] for part in parts)
            fill = pad_id if name.endswith("_ids") else 0
            parts = [_pad(part, width, fill, left=name in _PAD_LEFT) for part in parts]
        joined[name] = torch.cat(parts)
    return joined


def _pad(part: Tensor, width: int, fill: int, *, left: bool) -> Tensor:
    missing = width - part.shape[1]
    return torch.nn.functional.pad(part, (missing, 0) if left else (0, missing), value=fill)
