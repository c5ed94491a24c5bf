"""The last number of a completion against a gold number, as GSM8K is graded."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from qae.rewards.grade import Grade
from qae.rewards.grader import Prompt

_NUMBER = re.compile(r"(?<![\w.)])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_END_OF_THINKING = "</think>"


class LastNumberGrader:
    r"""1 if the last number of the completion equals the gold number; thinking (`</think>`) is not the answer.

    The gold is a number alone, or what follows the last `####` in it (GSM8K); anything else is unusable.
    Commas between thousands and zeros at the end of a decimal make no difference.

    Example:
        >>> pairs = [("48/2 = 24, so 72.", "48 + 24 = <<72>>\n#### 72"), ("1,000", "1000"), ("5", "see solution")]
        >>> [grade.outcome for grade in LastNumberGrader().grade(pairs)]
        [1.0, 1.0, None]
    """

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold)."""
        return [_compared(last_number(completion), _gold_number(gold)) for completion, gold in pairs]

    def vote(self, completion: str) -> str | None:
        """The last number in one spelling, for counting votes (maj@k), or None."""
        number = last_number(completion)
        return None if number is None else str(number.normalize())

    def close(self) -> None:
        """Nothing to end."""


def last_number(completion: str) -> Decimal | None:
    """The last number after the thinking block, or None; an unfinished thinking block holds no answer.

    Args:
        completion: the text.

    Returns:
        The number.

    Example:
        >>> [str(last_number(text)) for text in ("x = 3-5", "it costs $1,250.50.", "<think>7", "none")]
        ['5', '1250.50', 'None', 'None']
    """
    before, closed, after = completion.rpartition(_END_OF_THINKING)
    text = after if closed else completion
    if not closed and "<think>" in before + completion:
        return None
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _gold_number(gold: str) -> Decimal | None:
    text = gold.rpartition("####")[2].strip().lstrip("$").rstrip("%").strip()
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _compared(found: str | Decimal | None, gold: str | Decimal | None) -> Grade:
    if gold is None:
        return Grade(None, None, "unusable_gold")
    if found is None:
        return Grade(0.0, 0.0, "unparseable")
    return Grade(1.0, 1.0, "correct") if found == gold else Grade(0.0, 0.0, "wrong")
