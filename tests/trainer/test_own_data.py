"""A user's own problems, reward function and model directory, end to end: what `qwen3-0.6b-gsm8k` does with the Hub."""

import json

import pytest
from transformers import AutoModelForCausalLM

from qae.records import read_metrics, read_rollouts
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError
from qae.trainer.loop import train
from tiny_qwen3 import build_tiny_qwen3


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory with a model, 40 problems in GSM8K's columns, and a module with a reward."""
    build_tiny_qwen3(tmp_path / "model")
    problems = [
        {"question": f"What is {i} + {i + 1}?", "answer": f"It is {i}+{i + 1}\n#### {2 * i + 1}"} for i in range(40)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    (tmp_path / "my_reward.py").write_text(
        "def short_words(completion, answer):\n    assert answer.startswith('It is')\n"
        "    return float(sum(map(str.isalpha, completion)) >= 6)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_data_reward_and_model_train(project):
    recipe = "qwen3-0.6b-gsm8k"
    config = TrainConfig.load(
        recipe,
        "policy.path=model",
        "task.path=problems.jsonl",
        "task.grader=python:my_reward.short_words",
        "task.eval_path=null",
        "task.subset=null",
        "task.heldout=0.2",
        "algorithm.overlong.buffer_tokens=4",
        "rollout.prompts=4",
        "rollout.group_size=4",
        "rollout.max_tokens=16",
        "update.minibatches=2",
        "update.lr=1e-3",
        "steps=2",
        "eval.problems=3",
        "eval.samples=2",
    )
    run = train(config, run_dir=project / "run")
    steps = [m for m in read_metrics(run) if "reward" in m]
    assert [m["groups/kept"] for m in steps] == [4, 4]
    assert all(m["grad_norm"] > 0 and m["logprob_gap_max"] < 1e-3 for m in steps)
    rollout = next(read_rollouts(run / "rollouts" / "000001.jsonl"))
    assert rollout.prompt.startswith("system: Solve the problem step by step.") or "What is" in rollout.prompt
    assert AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "000002").config.model_type == "qwen3"


def test_a_failing_reward_names_itself_and_the_row(project):
    (project / "broken_reward.py").write_text("def f(completion, answer):\n    raise KeyError('oops')\n")
    config = TrainConfig.load(
        {},
        "policy.path=model",
        "task.path=problems.jsonl",
        "task.prompt=question",
        "task.grader=python:broken_reward.f",
        "eval.problems=0",
        "rollout.max_tokens=8",
    )
    with pytest.raises(RuntimeError, match=r"broken_reward\.f"):
        train(config, run_dir=project / "run")


class Notes:
    def __init__(self):
        self.texts = []

    def event(self, name, /, **data):
        if name == "note":
            self.texts.append(data["text"])


def own_config(*task):
    return TrainConfig.load(
        {}, "policy.path=model", "task.path=problems.jsonl", "task.grader=python:my_reward.short_words", "steps=1",
        "rollout.prompts=2", "rollout.group_size=2", "rollout.max_tokens=8", "update.minibatches=1",
        "eval.problems=4", "eval.samples=2", *task,
    )  # fmt: skip


@pytest.fixture
def long_and_double(project):
    """The project's problems, one of them twice, and one that no context holds."""
    path = project / "problems.jsonl"
    long = json.dumps({"question": "Why? " * 1_000, "answer": "It is so.\n#### 1"})
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n" + long + "\n")
    return project


def test_what_was_left_out_of_the_data_is_said(long_and_double):
    notes = Notes()
    train(own_config("task.long_prompts=drop"), run_dir=long_and_double / "run", observer=notes)
    assert "problems.jsonl: 42 rows are 41 problems: 1 copies left out" in notes.texts
    assert any("1 of 41 prompts have more than" in text and "are left out" in text for text in notes.texts)


def test_a_prompt_anywhere_in_the_data_that_is_too_long_is_refused_before_the_run(long_and_double):
    with pytest.raises(ConfigError, match=r"1 of 41 prompts have more than .*set task\.long_prompts=drop"):
        train(own_config(), run_dir=long_and_double / "run")
    assert not (long_and_double / "run").exists()


def test_without_held_out_problems_there_is_no_evaluation(project):
    notes = Notes()
    run = train(own_config("task.heldout=0"), run_dir=project / "run", observer=notes)
    assert "no problem is held out: the run is not evaluated" in notes.texts
    assert [m["step"] for m in read_metrics(run)] == [1]


def test_completions_longer_than_the_context_are_refused(project):
    with pytest.raises(ConfigError, match=r"rollout.max_tokens=100000 after prompts of up to .*: set at most \d+"):
        train(own_config("rollout.max_tokens=100000"), run_dir=project / "run")
