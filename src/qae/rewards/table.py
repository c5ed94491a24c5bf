"""The graders by name, and how a config asks for one."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qae.rewards.function import PREFIX, FunctionGrader
from qae.rewards.grader import Grader
from qae.rewards.math import MathGrader
from qae.rewards.simple import ExactGrader, NumericGrader, RegexGrader
from qae.rewards.text import LastNumberGrader
from qae.rewards.weighted import Part, WeightedGrader

GraderSpec = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
_PART_KEYS = ("weight", "none", "label")


def make_grader(spec: GraderSpec) -> Grader:
    """The grader that a config asks for.

    - a name: "math", "exact", "last_number", "numeric", "regex", or "python:module.function";
    - a mapping with `name` and the grader's own settings: {"name": "numeric", "tolerance": 0.01};
    - a list of those: their weighted sum, the verifier first; each may also have `weight` (1), `none` and `label`.

    None of a named grader leaves the row unscored, None of a function leaves out that term, unless `none` says
    otherwise.

    Args:
        spec: as above.

    Returns:
        The grader.

    Raises:
        ValueError: if the name or a setting is unknown or has a wrong value.

    Example:
        >>> make_grader({"name": "numeric", "tolerance": 0.5}).grade([("41.6", "42")])[0].outcome
        1.0
    """
    if isinstance(spec, str):
        return _single(spec, {})
    if isinstance(spec, Mapping):
        settings = dict(spec)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise ValueError(f"grader {dict(spec)} needs a name: {_choices()}")
        return _single(name, settings)
    return WeightedGrader([_part(part) for part in spec])


def _part(spec: str | Mapping[str, Any]) -> Part:
    settings: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    weight, none, label = (settings.pop(key, None) for key in _PART_KEYS)
    name = str(settings.get("name"))
    none = none or ("skip" if name.startswith(PREFIX) else "unscored")
    if none not in ("skip", "unscored"):
        raise ValueError(f"grader {name}: none={none!r} must be 'skip' or 'unscored'")
    weight = 1.0 if weight is None else weight
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise ValueError(f"grader {name}: weight={weight!r} must be a finite number")
    return Part(label or name, make_grader(settings), float(weight), none)


def _single(name: str, settings: dict[str, Any]) -> Grader:
    if name.startswith(PREFIX):
        made: Callable[..., Grader] = FunctionGrader
        arguments: tuple[Any, ...] = (name,)
    elif name in GRADERS:
        made, arguments = GRADERS[name], ()
    else:
        raise ValueError(f"grader {name!r} does not exist: {_choices()}")
    try:
        return made(*arguments, **settings)
    except TypeError as error:
        raise ValueError(f"grader {name!r} with settings {settings}: {error}") from error


def _choices() -> str:
    return f"choose from {', '.join(sorted(GRADERS))} or {PREFIX}module.function"


GRADERS: dict[str, Callable[..., Grader]] = {
    "exact": ExactGrader,
    "last_number": LastNumberGrader,
    "math": MathGrader,
    "numeric": NumericGrader,
    "regex": RegexGrader,
}
