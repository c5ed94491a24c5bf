"""Several graders at once: a weighted sum with a stated rule for what could not be scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qae.rewards.grade import Grade
from qae.rewards.grader import Grader, Prompt


@dataclass(frozen=True)
class Part:
    """One term of a weighted sum.

    Attributes:
        name: for the log.
        grader: the grader.
        weight: its weight; may be negative or 0 (graded and logged, not rewarded).
        none: what a verdict of None does: "unscored" leaves the whole row unscored, "skip" leaves out this
            term.
    """

    name: str
    grader: Grader
    weight: float = 1.0
    none: Literal["unscored", "skip"] = "unscored"


def verifier_of(grader: Grader) -> Grader:
    """The grader whose outcome counts: the first of a weighted sum, any other itself."""
    return verifier_of(grader.parts[0].grader) if isinstance(grader, WeightedGrader) else grader


class WeightedGrader:
    """Weighted sum of several graders.

        reward_i = sum over parts p with a verdict of weight_p * reward_ip

    The outcome is the first part's that has one, so put the verifier first. A part whose rule is "skip" and
    that gives None adds nothing (TRL's rule for a function that does not apply to a row); weights are not
    renormalised. A row without any verdict, or with a None under the rule "unscored", stays unscored.

    A sum forgets its terms: rewards (1, 0) and (0, 1) become the same row. `grade_parts` keeps them apart,
    for an advantage of each reward of its own.

    Args:
        parts: the terms, the verifier first.

    Raises:
        ValueError: if there is no part, or two have the same name.

    Example:
        >>> from qae.rewards.function import FunctionGrader
        >>> right = FunctionGrader(lambda completion, answer: completion == answer)
        >>> short = FunctionGrader(lambda completions: [len(c) < 9 for c in completions])
        >>> grader = WeightedGrader([Part("right", right), Part("short", short, weight=0.25)])
        >>> grader.grade([("4", "4"), ("5", "4")])[0].reward
        1.25
    """

    def __init__(self, parts: Sequence[Part]):
        names = [part.name for part in parts]
        if not parts:
            raise ValueError("a weighted sum of rewards needs at least one grader")
        if len(set(names)) < len(names):
            raise ValueError(f"graders of a weighted sum need names of their own, got {names}: set 'label'")
        self.parts = tuple(parts)

    def grade_parts(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> dict[str, list[Grade]]:
        """The verdicts of each part by its name, each one per row, unweighted."""
        return {p.name: p.grader.grade(pairs, prompts=prompts, columns=columns) for p in self.parts}

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per row, the weighted sum of the parts."""
        verdicts = self.grade_parts(pairs, prompts=prompts, columns=columns)
        return [self._combine([verdicts[p.name][row] for p in self.parts]) for row in range(len(pairs))]

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.grader.close()

    def _combine(self, row: Sequence[Grade]) -> Grade:
        reward, leading = 0.0, None
        for part, grade in zip(self.parts, row, strict=True):
            if grade.reward is None:
                if part.none == "unscored":
                    return Grade(None, None, grade.reason)
                continue
            leading = leading or grade
            reward += part.weight * grade.reward
        if leading is None:
            return Grade(None, None, row[0].reason)
        return Grade(leading.outcome, reward, leading.reason)
