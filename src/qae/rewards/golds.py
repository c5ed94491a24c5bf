"""Whether a grader can do anything with a set of gold answers, asked before anything is computed for them."""

from collections import Counter
from collections.abc import Sequence

from qae.rewards.function import FunctionGrader
from qae.rewards.grader import Grader
from qae.rewards.weighted import verifier_of

_LOOKED_AT_FIRST = 200


def none_usable(grader: Grader, golds: Sequence[str]) -> bool:
    """Whether a grader's verifier calls every one of the gold answers unusable.

    A reward function is not asked: it would see completions that nobody wrote.

    Args:
        grader: any.
        golds: at least one.

    Returns:
        True if no completion could ever be scored.

    Example:
        >>> from qae.rewards import make_grader
        >>> none_usable(make_grader("last_number"), ["see above", "4"]), none_usable(make_grader("exact"), [" "])
        (False, True)
    """
    verifier = verifier_of(grader)
    if isinstance(verifier, FunctionGrader):
        return False
    return _all_unusable(verifier, golds[:_LOOKED_AT_FIRST]) and _all_unusable(verifier, golds)


def _all_unusable(grader: Grader, golds: Sequence[str]) -> bool:
    reasons = Counter(grade.reason for grade in grader.grade([("", gold) for gold in golds]))
    counts = getattr(grader, "counts", None)
    if isinstance(counts, Counter):
        counts.clear()
    return reasons["unusable_gold"] == len(golds)
