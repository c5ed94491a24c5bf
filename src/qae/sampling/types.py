"""What goes into a sampling engine and what comes out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How to draw completions.

    Attributes:
        max_tokens: longest completion in tokens.
        temperature: of the softmax; 0 means greedy.
        top_p: nucleus mass kept; 1 keeps all. For evaluation only: training samples from the full distribution.
        stop: strings that end a completion, beside the policy's EOS ids.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        prompt_index: index of its prompt in the call.
        token_ids: all sampled tokens, with the EOS token (or the tokens of the stop string) that ended it.
        text: decoded, without the EOS token and cut before the stop string.
        logprobs: [t] fp32 on the CPU, at the sampling temperature, of the full vocabulary.
        entropies: [t] fp32 on the CPU, in nats, exact, at the sampling temperature.
        truncated: True if it ran into `max_tokens`.
    """

    prompt_index: int
    token_ids: list[int]
    text: str
    logprobs: Tensor
    entropies: Tensor
    truncated: bool


Progress = Callable[[int, int, int], None]


@runtime_checkable
class Engine(Protocol):
    """Draws completions from a policy."""

    def generate(
        self,
        prompts: list[list[int]],
        row_prompt: list[int],
        row_keys: list[int],
        params: SamplingParams,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion per row, in row order.

        Args:
            prompts: token ids of each distinct prompt; computed once however many rows share it.
            row_prompt: for each row, the index of its prompt.
            row_keys: for each row, the 64-bit key of its random stream (`qae.sampling.rng.row_key`).
            params: how to draw.
            progress: called now and then with (finished rows, all rows, tokens so far).
        """
        ...

    def refresh(self) -> None:
        """Take over the policy's current weights. Call it after each update phase, before sampling."""
        ...
