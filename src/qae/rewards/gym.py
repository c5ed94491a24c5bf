"""Scores of reasoning-gym's tasks. Their code evaluates what the model wrote, so it runs in killable processes."""

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from qae.rewards.pool import KillablePool
from qae.rewards.worker import TIMEOUT, deadline

UNPARSEABLE = "unparseable"
_TIMEOUT_SECONDS = 5.0
_MEMORY_MB = 1_024


class GymScorer:
    """Scores answers by a reasoning-gym task, each within a deadline; no answer can hang or end the caller.

    Args:
        name: of the task in reasoning-gym.
        settings: of that task, as plain JSON.
        problems: size of the task.
        workers: processes, started at the first answer.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], problems: int, workers: int = 2):
        self._task = (name, json.dumps(settings), problems)
        self._pool = KillablePool(workers, _TIMEOUT_SECONDS, _MEMORY_MB, load=load_library)

    def scores(self, questions: Sequence[tuple[Mapping[str, Any], str]]) -> list[float | str]:
        """The score of each (entry of the task, answer), or "unparseable" or "timeout"."""
        return self._pool.run(score, [(*self._task, *question) for question in questions])


def load_library() -> None:
    """Import reasoning-gym before the memory of the process is capped."""
    importlib.import_module("reasoning_gym")


def score(
    name: str, settings: str, problems: int, entry: dict[str, Any], answer: str, cpu_seconds: float
) -> float | Literal["unparseable", "timeout"]:
    """The task's score of an answer; "unparseable" if its code fails on it, "timeout" if memory runs out."""
    # the entry comes from the caller: some tasks draw from sets, whose order another process does not share
    dataset = make_dataset(name, settings, problems)
    with deadline(cpu_seconds):
        try:
            return float(dataset.score_answer(answer, entry))
        except MemoryError:
            return TIMEOUT
        except BaseException:  # the library evaluates the answer as code: anything may be raised, SystemExit too
            return UNPARSEABLE


@lru_cache(maxsize=4)
def make_dataset(name: str, settings: str, problems: int) -> Any:
    """The data set of a task."""
    library = importlib.import_module("reasoning_gym")
    return library.create_dataset(name, seed=0, size=problems, **json.loads(settings))
