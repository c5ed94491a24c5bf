"""What every grader answers to."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from qae.rewards.grade import Grade

Prompt = str | Sequence[Mapping[str, str]]


@runtime_checkable
class Grader(Protocol):
    """Grades completions against gold answers; safe to call from any thread."""

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold), in order.

        Args:
            pairs: completion and gold answer of each row [n].
            prompts: the prompt of each row [n]; only reward functions look at it.
            columns: further columns of the data, name -> [n]; only reward functions look at them.

        Returns:
            The verdicts [n].
        """
        ...

    def close(self) -> None:
        """End worker processes, if there are any; the grader may be used again and then starts new ones."""
        ...
