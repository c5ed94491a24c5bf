"""scripts/greedy_eval.py on a study of one small run."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from qae.engines.dispatch import train
from qae.study.worker import FINISHED
from qae.trainer.config import TrainConfig

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_greedy_accuracy_of_a_study_s_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "study-one" / "runs" / "all" / "mean" / "seed-3"
    few = ["steps=1", "rollout.prompts=2", "update.minibatches=1", "task.levels=[1x1]", "eval.problems=0", "seed=3"]
    train(TrainConfig.load("tiny", *few), run_dir=run)
    (run / FINISHED).write_text("{}")
    monkeypatch.syspath_prepend(SCRIPTS)
    out = tmp_path / "greedy.json"
    argv = ["greedy_eval.py", str(tmp_path / "study-one"), "--problems", "8", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", argv)
    importlib.import_module("greedy_eval").main()
    (found,) = json.loads(out.read_text())["one"]
    assert (found["block"], found["arm"], found["seed"], found["problems"]) == ("all", "mean", 3, 8)
    assert found["greedy"] * 8 == int(found["greedy"] * 8) > 4, "sums of one digit are easy for the shipped policy"
