"""The run's own task as verl's reward function: loaded by verl's reward workers, not by us.

    reward.custom_reward_function.path=pkg://qae.engines.verl.reward
    +reward.custom_reward_function.reward_kwargs.task=RUN/verl/task.json

Completions that arrive together are graded together, so that graders with processes of their own use them all.
"""

import asyncio
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from qae.rewards import Grade
from qae.tasks import Item, Task, make_task

GATHER_SECONDS = 0.02


class Batcher:
    """Grades what was asked for within a moment in one call of the task."""

    def __init__(self, task: Task) -> None:
        """Grade with `task`."""
        self._task = task
        self._waiting: list[tuple[Item, str, asyncio.Future[Grade]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def grade(self, item: Item, completion: str) -> Grade:
        """The verdict on one completion."""
        done: asyncio.Future[Grade] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, completion, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await done

    async def _work(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                grades = await asyncio.to_thread(self._task.grade, [(item, text) for item, text, _ in batch])
            except Exception as error:
                for _, _, done in batch:
                    done.set_exception(error)
                continue
            for (_, _, done), grade in zip(batch, grades, strict=True):
                done.set_result(grade)


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], *, task: str, **_: Any
) -> dict[str, Any]:
    """Verl's call for one response.

    Args:
        data_source: not used; the task is the run's.
        solution_str: the completion, without special tokens.
        ground_truth: the gold answer.
        extra_info: id, level and prompt of the problem.
        task: the file with the run's task.

    Returns:
        score, the reward before overlong shaping; acc, the outcome, NaN if it was not scored; and for the records the
        grader's reason, the problem's id and its level.
    """
    item = Item(extra_info["id"], read_prompt(extra_info["prompt"]), ground_truth, extra_info["level"])
    grade = await batcher(task).grade(item, solution_str)
    return {
        "score": 0.0 if grade.reward is None else grade.reward,
        "acc": math.nan if grade.outcome is None else grade.outcome,
        "reason": grade.reason,
        "prompt_id": item.id,
        "level": item.level,
    }


def read_prompt(text: str) -> str | tuple[dict[str, str], ...]:
    """A prompt from its JSON.

    Example:
        >>> read_prompt('"1+1?"'), read_prompt('[{"role": "user", "content": "1+1?"}]')
        ('1+1?', ({'role': 'user', 'content': '1+1?'},))
    """
    prompt = json.loads(text)
    return prompt if isinstance(prompt, str) else tuple(prompt)


@lru_cache
def batcher(task: str) -> Batcher:
    """The task of a file, made once a process."""
    settings = json.loads(Path(task).read_text())
    return Batcher(make_task(settings["task"], settings["seed"]))
