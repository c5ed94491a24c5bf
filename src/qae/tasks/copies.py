"""The same problem more than once: one item for each, none for those whose copies contradict each other."""

from collections.abc import Sequence
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


def merge_copies(items: Sequence[Item]) -> tuple[list[Item], Copies]:
    """One item per problem, in order of first appearance; problems with contradicting answers are dropped.

    Problems are the same if their prompts are, apart from white space. Answers are the same if they have one
    spelling (`0.50` and `1/2`).

    Args:
        items: one per row.

    Returns:
        The items kept, and the counts.

    Example:
        >>> rows = [Item("a", "1+1", "2"), Item("a", "1+1 ", "2.0"), Item("b", "2+2", "4"), Item("b", "2+2", "5")]
        >>> kept, found = merge_copies(rows)
        >>> [item.prompt for item in kept], str(found)[:45]
        (['1+1'], '4 rows are 1 problems: 1 copies left out, 1 p')
    """
    groups: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        groups.setdefault(problem_key(item), []).append(place)
    kept: list[Item] = []
    contradicting = contradicting_rows = 0
    for places in groups.values():
        spellings = {items[place].answer for place in places}
        if len(spellings) > 1 and len({canonical(gold_answer(answer)) for answer in spellings}) > 1:
            contradicting += 1
            contradicting_rows += len(places)
        else:
            kept.append(items[places[0]])
    copies = len(items) - len(kept) - contradicting_rows
    return kept, Copies(len(items), len(kept), copies, contradicting, contradicting_rows)


def problem_key(item: Item) -> str:
    """The prompt as one text with single spaces: equal for copies of a problem."""
    prompt = item.prompt
    text = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    return " ".join(text.split())
