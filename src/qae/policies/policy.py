"""What every part of the package means by a policy."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class PolicyError(ValueError):
    """A policy that cannot be loaded: names what was asked for, what was looked for and the next step."""


@dataclass(frozen=True)
class Policy:
    """A causal language model with all that sampling and training need to know about it.

    Attributes:
        model: the trainable model; its parameters are fp32 master weights whatever `compute_dtype` is.
        tokenizer: its tokenizer.
        eos_ids: every token id that ends a completion (generation config and tokenizer together).
        pad_id: token id for padding; may equal an EOS id, so padding is always masked by length, never by id.
        context_tokens: longest prompt + completion in tokens.
        name: the path or id that it was loaded from.
        compute_dtype: dtype of matrix products in sampling and training (bfloat16 where a probe found it faster).
        device: where the model lives.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    pad_id: int
    context_tokens: int
    name: str
    compute_dtype: torch.dtype
    device: torch.device
