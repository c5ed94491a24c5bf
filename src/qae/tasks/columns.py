"""Which columns of a data set hold the problem and its gold answer, and what a gold answer is as text."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

PROMPT_COLUMNS = ("prompt", "problem", "question", "query", "instruction", "input")
ANSWER_COLUMNS = (
    "reward_model.ground_truth", "ground_truth", "answer", "expected_answer", "final_answer", "gold", "target",
    "label", "solution",
)  # fmt: skip
LEVEL_COLUMNS = ("level", "difficulty")


def guess_column(row: Mapping[str, Any], candidates: Sequence[str], what: str, where: str) -> str:
    """The first of the candidate names that a row has, whatever its capitals.

    Args:
        row: a row of the data.
        candidates: names in order of preference; dots go into nested columns.
        what: for the error: "prompt" or "answer".
        where: the data, for the error.

    Returns:
        The name as the row spells it.

    Raises:
        ValueError: none is there.

    Example:
        >>> guess_column({"ID": 1, "Problem": "1+1", "Answer": 2}, PROMPT_COLUMNS, "prompt", "data.jsonl")
        'Problem'
    """
    for name in candidates:
        if found := _spelling(row, name.split(".")):
            return found
    raise ValueError(
        f"{where}: no column looks like the {what} (tried {', '.join(candidates)}); its columns are "
        f"{', '.join(row)}; name the one to take"
    )


def has_column(row: Mapping[str, Any], candidates: Sequence[str]) -> str | None:
    """As `guess_column`, but None if no candidate is there."""
    return next((found for name in candidates if (found := _spelling(row, name.split(".")))), None)


def gold_text(value: object) -> str:
    """A gold answer as text: whole numbers without a decimal point, lists of one as their member, None as nothing.

    Example:
        >>> gold_text(27.0), gold_text(["42"]), gold_text(None), gold_text("033")
        ('27', '42', '', '033')
    """
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        members = cast(Sequence[object], value)
        return gold_text(members[0]) if len(members) == 1 else ", ".join(gold_text(member) for member in members)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _spelling(row: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    for name, value in row.items():
        if name.lower() != parts[0].lower():
            continue
        if len(parts) == 1:
            return name
        if isinstance(value, Mapping):
            inner = _spelling(cast(Mapping[str, Any], value), parts[1:])
            return inner and f"{name}.{inner}"
    return None
