"""The same problem more than once: one item for each, none for those whose copies contradict each other."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qae.rewards.compare import canonical, gold_answer
from qae.tasks.task import Item


@dataclass(frozen=True)
class Copies:
    """What was found.

    Attributes:
        rows: rows read.
        problems: distinct problems kept.
        copies: rows dropped because the problem was there already.
        contradicting: problems dropped because their copies have different answers.
        contradicting_rows: the rows of those.
    """

    rows: int
    problems: int
    copies: int
    contradicting: int
    contradicting_rows: int

    def __str__(self) -> str:
        """One line for the log; empty if every row is a problem of its own."""
        if self.problems == self.rows:
            return ""
        text = f"{self.rows:,} rows are {self.problems:,} problems: {self.copies:,} copies left out"
        if self.contradicting:
            text += (
                f", {self.contradicting:,} problems ({self.contradicting_rows:,} rows) dropped because their copies "
                "have different answers"
            )
        return text


@dataclass
class _Problem:
    first: Item
    answers: set[str]
    rows: int


def merge_copies(items: Iterable[Item]) -> tuple[list[Item], Copies]:
    """One item per problem, in order of first appearance; problems with contradicting answers are dropped.

    Problems are the same if their prompts are, apart from white space. Answers are the same if they have one
    spelling (`0.50` and `1/2`). Copies are let go as they come, so a stream of a hundred copies of everything needs
    no more memory than its problems.

    Args:
        items: one per row.

    Returns:
        The items kept, and the counts.

    Example:
        >>> rows = [Item("a", "1+1", "2"), Item("a", "1+1 ", "2.0"), Item("b", "2+2", "4"), Item("b", "2+2", "5")]
        >>> kept, found = merge_copies(rows)
        >>> [item.prompt for item in kept], found.copies, found.contradicting
        (['1+1'], 1, 1)
    """
    problems: dict[str, _Problem] = {}
    for item in items:
        key = problem_text(item.prompt)
        if (known := problems.get(key)) is None:
            problems[key] = _Problem(item, {item.answer}, 1)
        else:
            known.answers.add(item.answer)
            known.rows += 1
    kept: list[Item] = []
    dropped: list[_Problem] = []
    for problem in problems.values():
        if len(problem.answers) > 1 and len({canonical(gold_answer(answer)) for answer in problem.answers}) > 1:
            dropped.append(problem)
        else:
            kept.append(problem.first)
    rows = sum(problem.rows for problem in problems.values())
    lost = sum(problem.rows for problem in dropped)
    return kept, Copies(rows, len(kept), rows - len(kept) - lost, len(dropped), lost)


def problem_id(prompt: str | Sequence[Mapping[str, str]]) -> str:
    r"""A short id of a problem: copies have the same, however their white space differs.

    Example:
        >>> problem_id("What is  1+1?") == problem_id("What is 1+1?\n")
        True
    """
    return hashlib.sha256(problem_text(prompt).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def problem_text(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """A prompt as one text with single spaces."""
    text = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    return " ".join(text.split())
