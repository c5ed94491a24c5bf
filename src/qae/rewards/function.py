"""Reward functions of the user: `python:module.function`, in the shapes that TRL and verl call."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from qae.rewards.grade import Grade
from qae.rewards.grader import Prompt

PREFIX = "python:"
Style = Literal["trl", "verl", "verl_batch", "pair"]

_SHAPES = (
    "f(completions, **columns) -> list (TRL), compute_score(data_source, solution_str, ground_truth, "
    "extra_info=None) -> number or dict (verl), or f(completion, answer) -> number"
)


class RewardFunctionError(RuntimeError):
    """A user's reward function failed or returned something that is not a reward."""


class FunctionGrader:
    """Grades with a function of the user, whose shape is recognised by its parameters.

    - `completions` among them: TRL. Called once with lists: `completions`, `prompts`, `answer` and every further
      column, as far as the function takes them. With chat prompts each completion is a list of one assistant
      message, as in TRL. It returns a list of numbers or None.
    - `solution_str`: verl. Called for each row with `data_source`, `solution_str`, `ground_truth`, `extra_info`, as
      far as it takes them. It returns a number, or a dict with `score` and optionally `acc`. `solution_strs`: the
      same with lists.
    - two required parameters of other names: called for each row as f(completion, answer).

    None or NaN means "not scored": the row stays out of its group. The outcome is 1 where the reward (or
    verl's `acc`) is above `correct_above`, so rewards of 0/1 and of -1/1 both give the outcome one expects.

    Args:
        function: the function, or its name as `python:module.function`.
        correct_above: rewards above this count as correct.
        style: the shape, if it is not to be recognised: "trl", "verl", "verl_batch" or "pair".

    Raises:
        ValueError: if the name cannot be resolved or the parameters fit no shape.

    Example:
        >>> def is_long(completion, answer):
        ...     return 1.0 if len(completion) > 3 else 0.0
        >>> [grade.reward for grade in FunctionGrader(is_long).grade([("four", ""), ("two", "")])]
        [1.0, 0.0]
    """

    def __init__(self, function: str | Callable[..., Any], *, correct_above: float = 0.5, style: Style | None = None):
        self.name = function if isinstance(function, str) else _name_of(function)
        self._function = load_function(function) if isinstance(function, str) else function
        self._correct_above = correct_above
        self._parameters, self._takes_any = _parameters(self._function, self.name)
        self.style: Style = style or _style(self._function, self.name)

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold); a failing function raises RewardFunctionError with its row."""
        if not pairs:
            return []
        given = dict(columns or {})
        if self.style == "trl":
            values = self._batch(self._trl_columns(pairs, prompts, given), pairs)
        elif self.style == "verl_batch":
            values = self._batch(self._verl_columns(pairs, given, plural=True), pairs)
        elif self.style == "verl":
            table = self._verl_columns(pairs, given, plural=False)
            values = [
                self._call(row, pairs, **{name: column[row] for name, column in table.items()})
                for row in range(len(pairs))
            ]
        else:
            values = [self._call(row, pairs, *pair) for row, pair in enumerate(pairs)]
        return [self._to_grade(value, row, pairs) for row, value in enumerate(values)]

    def close(self) -> None:
        """Nothing to end."""

    def _trl_columns(
        self, pairs: Sequence[tuple[str, str]], prompts: Sequence[Prompt] | None, given: dict[str, Any]
    ) -> dict[str, Sequence[Any]]:
        prompts = prompts if prompts is not None else [""] * len(pairs)
        texts = [completion for completion, _ in pairs]
        completions: list[Any] = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for text, prompt in zip(texts, prompts, strict=True)
        ]
        golds = [gold for _, gold in pairs]
        listed = [prompt if isinstance(prompt, str) else [dict(m) for m in prompt] for prompt in prompts]
        table = {"answer": golds} | given | {"prompts": listed, "completions": completions}
        if "solution" in self._parameters:
            table.setdefault("solution", golds)
        return self._taken(table)

    def _verl_columns(
        self, pairs: Sequence[tuple[str, str]], given: dict[str, Any], *, plural: bool
    ) -> dict[str, Sequence[Any]]:
        n = len(pairs)
        table = {
            "data_source": given.get("data_source", [""] * n),
            "solution_str": [completion for completion, _ in pairs],
            "ground_truth": [gold for _, gold in pairs],
            "extra_info": given.get("extra_info", [None] * n),
        }
        if plural:
            names = {"extra_info": "extra_infos"}
            table = {names.get(name, name + "s"): column for name, column in table.items()}
        return self._taken(table)

    def _taken(self, table: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        return {name: c for name, c in table.items() if self._takes_any or name in self._parameters}

    def _batch(self, table: dict[str, Sequence[Any]], pairs: Sequence[tuple[str, str]]) -> Sequence[Any]:
        try:
            values = self._function(**table)
        except (Exception, SystemExit) as error:
            raise RewardFunctionError(
                f"reward function {self.name} failed on a batch of {len(pairs)} rows (it takes all rows at "
                f"once, so the row is not known; first completion {_short(pairs[0][0])}): {_said(error)}"
            ) from error
        if hasattr(values, "tolist"):
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise RewardFunctionError(
                f"reward function {self.name} returned {type(values).__name__} for {len(pairs)} rows; "
                "return a list with one number or None for each"
            )
        listed = cast(Sequence[Any], values)
        if len(listed) != len(pairs):
            raise RewardFunctionError(
                f"reward function {self.name} returned {len(listed)} rewards for {len(pairs)} rows; "
                "return one for each, None where a row cannot be scored"
            )
        return listed

    def _call(self, row: int, pairs: Sequence[tuple[str, str]], *values: Any, **named: Any) -> Any:
        try:
            return self._function(*values, **named)
        except (Exception, SystemExit) as error:
            raise RewardFunctionError(
                f"reward function {self.name} failed on row {row} (completion {_short(pairs[row][0])}, "
                f"answer {_short(pairs[row][1])}): {_said(error)}"
            ) from error

    def _to_grade(self, value: Any, row: int, pairs: Sequence[tuple[str, str]]) -> Grade:
        score, verdict = value, value
        if isinstance(value, Mapping):
            fields = cast(Mapping[str, Any], value)
            if "score" not in fields:
                raise RewardFunctionError(
                    f"reward function {self.name} returned a dict without 'score' on row {row}: {sorted(fields)}"
                )
            score = fields["score"]
            verdict = fields.get("acc", score)
        reward = self._number(score, row, pairs)
        level = self._number(verdict, row, pairs)
        if reward is None or level is None:
            return Grade(None, None, "unscored")
        correct = level > self._correct_above
        return Grade(float(correct), reward, "correct" if correct else "wrong")

    def _number(self, value: Any, row: int, pairs: Sequence[tuple[str, str]]) -> float | None:
        if value is None:
            return None
        number = _float(value)
        if math.isinf(number):
            raise RewardFunctionError(
                f"reward function {self.name} returned {_short(value)} on row {row} (completion "
                f"{_short(pairs[row][0])}); return a finite number, or None if the row cannot be scored"
            )
        return None if math.isnan(number) else number


def _float(value: Any) -> float:
    """A number, or an array or tensor of one, as a float; infinity for anything else."""
    try:
        scalar = value if isinstance(value, Real) or not hasattr(value, "item") else value.item()
        return float(scalar) if isinstance(scalar, Real) else math.inf
    # an array or tensor of several, or an integer beyond any float
    except (ValueError, RuntimeError, OverflowError):
        return math.inf


def load_function(name: str) -> Callable[..., Any]:
    """The function behind `python:module.function`; modules of the working directory are found too.

    Args:
        name: `python:package.module.function`.

    Returns:
        The function.

    Raises:
        ValueError: if module or function cannot be found, or it is not callable.

    Example:
        >>> load_function("python:math.sqrt")(9.0)
        3.0
    """
    path = name.removeprefix(PREFIX)
    module_name, _, function_name = path.rpartition(".")
    if not name.startswith(PREFIX) or not module_name or not function_name:
        raise ValueError(f"reward function {name!r} must be written python:module.function")
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"reward function {name!r}: cannot import {module_name!r} from {here} or the installed packages: {error}"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    function = getattr(module, function_name, None)
    if function is None:
        known = ", ".join(sorted(n for n, v in vars(module).items() if inspect.isfunction(v))) or "none"
        raise ValueError(
            f"reward function {name!r}: module {module_name!r} has no {function_name!r}; functions: {known}"
        )
    if not callable(function):
        raise ValueError(f"reward function {name!r} is a {type(function).__name__}, not a function")
    return cast(Callable[..., Any], function)


def _parameters(function: Callable[..., Any], name: str) -> tuple[set[str], bool]:
    """Names that can be given by keyword, and whether any other may be given too."""
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"reward function {name} is async; give a plain function that returns the rewards")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set(), False
    keyword = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return keyword, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _style(function: Callable[..., Any], name: str) -> Style:
    names, _ = _parameters(function, name)
    if "completions" in names:
        return "trl"
    if "solution_strs" in names:
        return "verl_batch"
    if "solution_str" in names:
        return "verl"
    try:
        signature = inspect.signature(function)
        signature.bind("completion", "answer")
        return "pair"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"reward function {name} has parameters {_shown(function)}, which fits none of: {_SHAPES}"
        ) from error


def _shown(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(unknown)"


def _name_of(function: Callable[..., Any]) -> str:
    return f"{PREFIX}{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:40] + "..." + text[-30:]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
