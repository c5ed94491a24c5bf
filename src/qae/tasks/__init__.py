"""Tasks: where problems come from and how completions are graded."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qae.tasks.arithmetic import ArithmeticTask
from qae.tasks.data import DataTask
from qae.tasks.few_shot import FewShotArithmeticTask, WordedArithmeticTask
from qae.tasks.reasoning_gym import ReasoningGymTask
from qae.tasks.task import Item, Task

__all__ = ["TASKS", "Item", "Task", "make_task"]


def make_task(config: Mapping[str, Any], seed: int) -> Task:
    """The task that a config section describes.

    Args:
        config: `{"name": <one of TASKS>, ...}`; other keys are the task's options, nulls left out. A `path`
            without a name means `data`.
        seed: of the run.

    Returns:
        The task.

    Raises:
        ValueError: an unknown name or option (the text names the nearest right one), or a value of another type.

    Example:
        >>> make_task({"name": "arithmetic", "levels": ["1x1"]}, seed=0).train_item(0).level
        '1x1'
    """
    options = {key: value for key, value in config.items() if value is not None}
    name = options.pop("name", "data" if "path" in options else None)
    if name not in TASKS:
        near = _nearest(str(name), TASKS)
        raise ValueError(f"task.name: unknown task {name!r}{near}; tasks are {', '.join(TASKS)}")
    make = TASKS[name]
    known = {key: option for key, option in inspect.signature(make).parameters.items() if key != "seed"}
    for key, value in options.items():
        if key not in known:
            near = _nearest(key, known)
            raise ValueError(f"task.{key}: no option of task {name}{near}; options are {', '.join(known)}")
        if known[key].annotation is not inspect.Parameter.empty:
            options[key] = _of_type(known[key].annotation, key, value)
    return make(seed=seed, **options)


def _of_type(annotation: Any, key: str, value: object) -> Any:
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        wanted = " or ".join(dict.fromkeys(one["msg"] for one in error.errors()))
        raise ValueError(f"task.{key}={value!r}: {wanted}") from None


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


TASKS: dict[str, Callable[..., Task]] = {
    "arithmetic": ArithmeticTask,
    "few_shot_arithmetic": FewShotArithmeticTask,
    "worded_arithmetic": WordedArithmeticTask,
    "data": DataTask,
    "reasoning_gym": ReasoningGymTask,
}
