"""The run's task as verl's reward function."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from qae.engines.verl.data import row
from qae.engines.verl.reward import compute_score
from qae.tasks import Item, make_task
from qae.trainer.config import TrainConfig


def written(tmp_path: Path, config: TrainConfig) -> str:
    path = tmp_path / "task.json"
    path.write_text(json.dumps({"task": config.task.model_dump(mode="json"), "seed": config.seed}))
    return str(path)


def scores(config: TrainConfig, path: str, item: Item, completions: list[str]) -> list[dict[str, Any]]:
    columns = row(config, item, 0)

    async def ask() -> list[dict[str, Any]]:
        calls = [
            compute_score(
                columns["data_source"], text, columns["reward_model"]["ground_truth"], columns["extra_info"], task=path
            )
            for text in completions
        ]
        return await asyncio.gather(*calls)

    return asyncio.run(ask())


def test_the_shipped_task(tmp_path: Path) -> None:
    config = TrainConfig.load("tiny")
    item = make_task(config.task.model_dump(), config.seed).train_item(0)
    right, wrong = scores(config, written(tmp_path, config), item, [f"hm#{item.answer}", "hm"])
    assert (right["score"], right["acc"], right["reason"]) == (1.0, 1.0, "correct")
    assert (wrong["score"], wrong["acc"], wrong["reason"]) == (0.0, 0.0, "unparseable")
    assert right["prompt_id"] == item.id and right["level"] == item.level


@pytest.mark.parametrize(("completion", "score", "acc"), [("is 7", 1.0, 1.0), ("is 8", 0.0, 0.0), ("", 0.0, math.nan)])
def test_a_grader_of_the_users_own(
    completion: str, score: float, acc: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "my_grader.py"
    module.write_text(
        "def word_of(completion, answer):\n    return float(answer in completion) if completion else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"what is {i}?", "answer": str(i)}) + "\n" for i in range(40)))
    config = TrainConfig.load({"task": {"path": str(data), "grader": "python:my_grader.word_of", "chat": False}})
    task = make_task(config.task.model_dump(), config.seed)
    item = next(task.train_item(i) for i in range(40) if task.train_item(i).answer == "7")
    (found,) = scores(config, written(tmp_path, config), item, [completion])
    assert found["score"] == score
    assert found["acc"] == acc or (math.isnan(acc) and math.isnan(found["acc"]))
