"""What every part of the package means by a task and its items."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade


@dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
        id: canonical and stable: equal problems have equal ids.
        prompt: raw text, or chat messages ({"role", "content"}).
        answer: the gold answer, as text.
        level: difficulty label for the tables; empty if the task has none.
    """

    id: str
    prompt: str | tuple[dict[str, str], ...]
    answer: str
    level: str = ""


@runtime_checkable
class Task(Protocol):
    """A source of problems with a grader.

    Attributes:
        name: for logs.
        stop: strings that end a completion, beside the policy's EOS ids.
        size: number of training items, None for an endless generator.
    """

    name: str
    stop: tuple[str, ...]
    size: int | None

    def train_item(self, i: int) -> Item:
        """Training item i >= 0: a pure function of (seed, i) (a finite set is reshuffled each pass)."""
        ...

    def heldout_items(self, count: int) -> list[Item]:
        """The first `count` held-out items (fewer if there are no more), always the same, never training items."""
        ...

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """One verdict per (item, completion), in order."""
        ...

    def encode(self, item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the item's prompt."""
        ...
