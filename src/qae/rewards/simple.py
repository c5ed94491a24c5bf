"""Graders without computer algebra: exact text, a number within a tolerance, a regular expression."""

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from qae.rewards.clean import clean
from qae.rewards.extract import DEFAULT_METHODS, extract_answer
from qae.rewards.grade import Grade
from qae.rewards.grader import Prompt
from qae.rewards.number import read_number
from qae.rewards.values import read_value

_CORRECT, _WRONG = Grade(1.0, 1.0, "correct"), Grade(0.0, 0.0, "wrong")
_UNPARSEABLE, _UNUSABLE = Grade(0.0, 0.0, "unparseable"), Grade(None, None, "unusable_gold")


class ExactGrader:
    """The answer must be the gold answer, character for character, apart from blanks at both ends.

    Args:
        extract: methods of extraction (`qae.rewards.extract`); empty takes the whole completion.
        ignore_case: whether capital and small letters are the same.

    Example:
        >>> [g.outcome for g in ExactGrader().grade([(" Paris", "Paris"), ("paris", "Paris"), ("x", "")])]
        [1.0, 0.0, None]
    """

    def __init__(self, *, extract: Sequence[str] = (), ignore_case: bool = False):
        if extract:
            extract_answer("", extract)
        self._extract = tuple(extract)
        self._ignore_case = ignore_case

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold); an empty gold is unusable."""
        return [self._grade(completion, gold) for completion, gold in pairs]

    def vote(self, completion: str) -> str | None:
        """The answer as it is compared, for counting votes (maj@k), or None."""
        answer = extract_answer(completion, self._extract) if self._extract else completion
        return None if answer is None else self._compared(answer)

    def close(self) -> None:
        """Nothing to end."""

    def _grade(self, completion: str, gold: str) -> Grade:
        if not gold.strip():
            return _UNUSABLE
        given = self.vote(completion)
        if given is None:
            return _UNPARSEABLE
        return _CORRECT if given == self._compared(gold) else _WRONG

    def _compared(self, text: str) -> str:
        return text.strip().casefold() if self._ignore_case else text.strip()


class NumericGrader:
    """The answer must be a number within a tolerance of the gold number.

        |answer - gold| <= max(tolerance, relative_tolerance * |gold|)

    Args:
        tolerance: absolute.
        relative_tolerance: as a fraction of the gold number.
        extract: methods of extraction.

    Raises:
        ValueError: if a tolerance is negative or not finite.

    Example:
        >>> grader = NumericGrader(tolerance=0.01)
        >>> [g.reason for g in grader.grade([("about 3.14", "3.1416"), ("3.2", "3.1416"), ("pi", "3.1416")])]
        ['correct', 'wrong', 'unparseable']
    """

    def __init__(
        self,
        *,
        tolerance: float = 1e-6,
        relative_tolerance: float = 0.0,
        extract: Sequence[str] = DEFAULT_METHODS,
    ):
        for name, value in (("tolerance", tolerance), ("relative_tolerance", relative_tolerance)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be a finite number >= 0")
        extract_answer("", extract)
        # as written: 0.07 is 7/100, and no number is too large for a fraction
        self._tolerance, self._relative = Fraction(str(tolerance)), Fraction(str(relative_tolerance))
        self._extract = tuple(extract)

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold); a gold that is no number is unusable."""
        return [self._grade(completion, gold) for completion, gold in pairs]

    def vote(self, completion: str) -> str | None:
        """The exact value of the answer, for counting votes (maj@k), or None."""
        given = self._given(completion)
        return None if given is None else str(given)

    def close(self) -> None:
        """Nothing to end."""

    def _grade(self, completion: str, gold: str) -> Grade:
        expected = _number(gold)
        if expected is None:
            return _UNUSABLE
        given = self._given(completion)
        if given is None:
            return _UNPARSEABLE
        allowed = max(self._tolerance, self._relative * abs(expected))
        return _CORRECT if abs(given - expected) <= allowed else _WRONG

    def _given(self, completion: str) -> Any:
        answer = extract_answer(completion, self._extract)
        return None if answer is None else _number(answer)


class RegexGrader:
    """The last match of a pattern in the completion is the answer; it must equal the gold answer.

    The answer is the group named `answer`, else the first group, else the whole match. The pattern runs over
    text that a model wrote: avoid nested repetition such as `(a+)+`, which can take for ever.

    Args:
        pattern: regular expression of the `re` module.
        ignore_case: whether capital and small letters are the same, in the pattern and in the answer.

    Raises:
        ValueError: if the pattern is not valid.

    Example:
        >>> grader = RegexGrader(pattern="final: (?P<answer>[a-z]+)")
        >>> [g.reason for g in grader.grade([("final: yes", "yes"), ("final: no", "yes"), ("yes", "yes")])]
        ['correct', 'wrong', 'unparseable']
    """

    def __init__(self, *, pattern: str, ignore_case: bool = False):
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        groups = self._pattern.groupindex
        self._group = groups.get("answer", 1 if self._pattern.groups else 0)
        self._ignore_case = ignore_case

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold); an empty gold is unusable."""
        return [self._grade(completion, gold) for completion, gold in pairs]

    def vote(self, completion: str) -> str | None:
        """The answer as it is compared, for counting votes (maj@k), or None."""
        answer = None
        for match in self._pattern.finditer(completion):
            answer = match[self._group]
        return None if answer is None else self._compared(answer)

    def close(self) -> None:
        """Nothing to end."""

    def _grade(self, completion: str, gold: str) -> Grade:
        if not gold.strip():
            return _UNUSABLE
        given = self.vote(completion)
        if given is None:
            return _UNPARSEABLE
        return _CORRECT if given == self._compared(gold) else _WRONG

    def _compared(self, text: str) -> str:
        return text.strip().casefold() if self._ignore_case else text.strip()


def _number(text: str) -> Any:
    """The exact value of an answer that is a number, in any spelling that the math grader reads too."""
    number = read_number(clean(text))
    value = number or (read_value(text) if len(text) < 1_000 else None)
    return getattr(value, "value", None)
