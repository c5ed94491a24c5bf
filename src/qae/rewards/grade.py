"""The verdict of a grader on one completion."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grade:
    """What a grader says of one completion.

    Attributes:
        outcome: 1.0 correct, 0.0 wrong, None if it could not be scored (unusable gold, failed grader).
        reward: what training sees before overlong shaping; equals `outcome` unless the grader gives partial
            credit. None as above.
        reason: one word for the count in the log: "correct", "wrong", "unparseable", "timeout",
            "unusable_gold", ...
    """

    outcome: float | None
    reward: float | None
    reason: str = ""
