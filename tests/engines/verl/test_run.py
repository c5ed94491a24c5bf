"""`engine=verl` around a program that writes what verl writes: records, failure with its cause, resume."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from qae.audit import audit_paths
from qae.engines.dispatch import train
from qae.engines.verl import run as verl_run
from qae.engines.verl.run import VerlError, plan
from qae.records import read_metrics, read_rollouts, rollout_path
from qae.report import write_report
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

FAKE = Path(__file__).parent / "fake_verl.py"
Start = Callable[..., TrainConfig]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """A configuration of so many steps, run by the fake."""

    def make(steps: int = 3, *, die_after: int | None = None, words: tuple[str, ...] = ()) -> TrainConfig:
        def fake(config: Any, place: Any, prompts: Any, *, python: str = "") -> list[str]:
            words = [sys.executable, str(FAKE), str(place.root), str(config.steps)]
            return [*words, str(die_after)] if die_after else words

        monkeypatch.setattr(verl_run, "command", fake)
        monkeypatch.setattr(verl_run, "find_spec", lambda name: object() if name == "verl" else None)
        monkeypatch.setattr(verl_run, "POLL_SECONDS", 0.02)
        small = ("rollout.prompts=4", "rollout.group_size=4", "update.minibatches=2", "eval.problems=3")
        return TrainConfig.load(
            "tiny", "engine=verl", "engine.platform=cpu", "engine.workers=2", f"steps={steps}", *small, *words
        )

    return make


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **data: Any) -> None:
        self.events.append((name, data))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [data for heard, data in self.events if heard == name]


def test_a_run_leaves_our_run_directory(start: Start, tmp_path: Path) -> None:
    heard = Heard()
    run = train(start(), run_dir=tmp_path / "run", observer=heard)
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
    step = lines[1]
    assert step["outcome"] == pytest.approx(8 / 12) and step["reward"] == step["outcome"]
    assert step["regime/hard_frac"] == step["regime/easy_frac"] == step["regime/flat_frac"] == pytest.approx(1 / 3)
    assert step["advantage/positive_frac"] == pytest.approx(1 / 12)
    assert step["advantage/zero_frac_mixed"] == pytest.approx(6 / 8)
    assert step["entropy/wrong"] == 0.5 and step["entropy/correct"] == 1.5
    assert step["completions/clipped_ratio"] == 0.25 and step["tokens/sampled"] == 3 * (2 + 3 + 4 + 5)
    assert step["loss"] == pytest.approx(0.1) and step["rollout/probs_diff_max"] == 1e-7
    evaluation = lines[-1]
    assert evaluation["eval/pass@1"] == pytest.approx((0.25 + 0.75 + 1) / 3) and evaluation["eval/pass@4"] == 1
    assert evaluation["eval/rates"] == {"p0": 0.25, "p1": 0.75, "p2": 1.0}
    rollouts = list(read_rollouts(rollout_path(run, 2)))
    assert len(rollouts) == 12 and rollouts[0].completion == "the last output"
    assert yaml.safe_load((run / "config.yaml").read_text())["engine"]["name"] == "verl"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000001", "000002", "000003"]
    assert (run / "checkpoints" / "000003" / "model.safetensors").read_bytes() == b"weights"
    assert [data["metrics"]["step"] for data in heard.of("step")] == [1, 2, 3]
    assert len(heard.of("eval")) == 2 and heard.of("end")[0]["run_dir"] == run
    assert any("warm-up" in data["text"] for data in heard.of("note"))


def test_report_and_audit_read_it(start: Start, tmp_path: Path) -> None:
    run = train(start(), run_dir=tmp_path / "run")
    assert write_report([run], run / "report.html").stat().st_size > 10_000
    assert audit_paths([run / "rollouts"])


def test_the_data_is_ours_in_verls_columns(start: Start, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from qae.tasks import make_task

    config = start(1)
    run = train(config, run_dir=tmp_path / "run")
    rows = pq.read_table(run / "verl" / "train.parquet").to_pylist()
    task = make_task(config.task.model_dump(), config.seed)
    assert [row["extra_info"]["id"] for row in rows[:4]] == [task.train_item(i).id for i in range(4)]
    assert rows[0]["prompt"] == [{"role": "user", "content": task.train_item(0).prompt}]
    assert rows[0]["reward_model"]["ground_truth"] == task.train_item(0).answer
    heldout = pq.read_table(run / "verl" / "heldout.parquet").to_pylist()
    assert [row["extra_info"]["id"] for row in heldout] == [item.id for item in task.heldout_items(3)]
    assert json.loads((run / "verl" / "task.json").read_text())["task"]["name"] == "arithmetic"


def test_a_failure_names_its_cause_and_the_next_step(start: Start, tmp_path: Path) -> None:
    with pytest.raises(VerlError) as caught:
        train(start(4, die_after=2), run_dir=tmp_path / "run")
    assert "verl failed: ValueError: the answer is no number. Continue from step 2 with `qae train --resume " in str(
        caught.value
    )
    assert str(caught.value).endswith("verl/log.txt")


def test_it_resumes_from_the_checkpoint_without_gap_or_double(start: Start, tmp_path: Path) -> None:
    with pytest.raises(VerlError):
        train(start(4, die_after=2), run_dir=tmp_path / "run")
    heard = Heard()
    run = train(start(4), resume=tmp_path / "run", observer=heard)
    assert [line["step"] for line in read_metrics(run)] == [0, 1, 2, 3, 4, 4]
    assert heard.of("start")[0]["resumed_step"] == 2
    seconds = [line["seconds"] for line in read_metrics(run)]
    assert seconds == sorted(seconds)


def test_the_death_of_an_earlier_sessions_worker_does_not_end_this_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VerlError):
        train(start(4, die_after=2), run_dir=tmp_path / "run")
    log = tmp_path / "run" / "verl" / "log.txt"
    log.write_text("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n")
    monkeypatch.setattr(verl_run, "GRACE_SECONDS", 0.0)
    run = train(start(4), resume=tmp_path / "run")
    assert [line["step"] for line in read_metrics(run)][-1] == 4
    assert "died unexpectedly" in (run / "verl" / "log.1.txt").read_text()
    assert "died" not in log.read_text()


def test_a_step_that_was_saved_and_not_reported_is_said(start: Start, tmp_path: Path) -> None:
    with pytest.raises(VerlError):
        train(start(4, die_after=2), run_dir=tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    heard = Heard()
    train(start(4), resume=tmp_path / "run", observer=heard)
    assert [data["text"] for data in heard.of("warning")] == [
        "verl saved step 2 and died before it reported it: metrics.jsonl lacks that step"
    ]


def test_a_run_that_waits_for_a_dead_worker_is_ended(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = start(1)
    program = "import time; print('The actor is dead because its worker process has died.', flush=True); time.sleep(60)"
    monkeypatch.setattr(verl_run, "command", lambda *_, **__: [sys.executable, "-c", program])
    monkeypatch.setattr(verl_run, "GRACE_SECONDS", 0.2)
    with pytest.raises(VerlError, match=r"a worker process died.* There is no checkpoint yet"):
        train(config, run_dir=tmp_path / "run")


def test_a_finished_run_says_how_to_go_on(start: Start, tmp_path: Path) -> None:
    run = train(start(2), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"has already done its 2 steps; go on with .* steps=N"):
        train(start(2), resume=run)


def test_a_run_directory_is_not_written_over(start: Start, tmp_path: Path) -> None:
    train(start(1), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run"):
        train(start(1), run_dir=tmp_path / "run")


def test_prepare_only_writes_the_command_and_runs_nothing(start: Start, tmp_path: Path) -> None:
    heard = Heard()
    run = train(start(2, words=("engine.prepare_only=true",)), run_dir=tmp_path / "run", observer=heard)
    script = (run / "verl" / "command.sh").read_text()
    assert script.startswith("#!/bin/sh\n") and f"data.train_files={run}/verl/train.parquet" in script
    assert not (run / "verl" / "log.txt").exists()
    assert any("prepared, not run" in data["text"] for data in heard.of("note"))


def test_without_verl_it_says_what_to_install(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = start(1)
    monkeypatch.setattr(verl_run, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine=verl needs verl in this environment: pip install 'qae\[verl\]'"):
        train(config, run_dir=tmp_path / "run")


def test_a_dry_run_shows_the_command(start: Start) -> None:
    said, command = plan(start(3))
    assert any("warm-up" in sentence for sentence in said)
    assert "python -m verl.trainer.main_ppo" in command and "algorithm.adv_estimator=qae" in command
