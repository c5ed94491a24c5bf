"""One step of training from the rows that verl and TRL read, and from a reasoning-gym task, on a random model."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from qae.records import read_metrics, read_rollouts, rollout_files
from qae.trainer import loop
from qae.trainer.config import TrainConfig
from tasks.test_data_copies import trl_rows, verl_rows
from tiny_qwen3 import build_tiny_qwen3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny_qwen3(tmp_path_factory.mktemp("qwen3"))


def train(model, run_dir, *task):
    config = TrainConfig.load(
        {},
        f"policy.path={model}",
        "steps=1",
        "rollout.prompts=4",
        "rollout.group_size=4",
        "rollout.max_tokens=8",
        "algorithm.dynamic_sampling.max_refills=0",
        "update.minibatches=1",
        "eval.problems=2",
        "eval.samples=2",
        *task,
    )
    loop.train(config, run_dir=run_dir)
    metrics = read_metrics(run_dir)
    assert [m["step"] for m in metrics if "eval/pass@1" not in m] == [1]
    ((_, file),) = rollout_files(run_dir)
    return list(read_rollouts(file))


def by_parity(completions, **columns):
    """Every other completion is right, so that there is something to learn."""
    return [float(len(completion) % 2) for completion in completions]


def parity(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "made/up" and ground_truth.isdigit()
    return float(len(solution_str) % 2)


def test_from_a_verl_parquet(model, tmp_path):
    path = tmp_path / "verl.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(verl_rows(64)), path)
    rollouts = train(model, tmp_path / "run", f"task.path={path}", "task.grader=python:tasks.test_training.parity")
    assert len(rollouts) == 16 and {r.outcome for r in rollouts} == {0.0, 1.0}
    assert rollouts[0].prompt.startswith("user: What is")


def test_from_a_trl_jsonl(model, tmp_path):
    path = tmp_path / "trl.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in trl_rows(64)))
    rollouts = train(model, tmp_path / "run", f"task.path={path}", "task.grader=python:tasks.test_training.by_parity")
    assert {r.outcome for r in rollouts} == {0.0, 1.0}


def test_from_a_reasoning_gym_task(model, tmp_path, library):
    train(model, tmp_path / "run", "task=reasoning_gym", "task.dataset=chain_sum", "task.problems=100")
