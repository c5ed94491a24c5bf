"""Running, stopping, failing and going on, with workers that do not train."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import yaml

from fake_study import fake_study, write_runs
from qae.records import LOCK, alone
from qae.study import runner, view, worker
from qae.study.runner import StudyFailed, StudyStopped, open_study, run_study, states_of
from qae.study.worker import FINISHED, PLANNED
from qae.trainer.keys import ConfigError
from qae.trainer.loop import EntropyAlarm, NothingToLearn

# Stands in for `python -m qae.study.worker DIRECTORY`: counts its starts, and does what the file `do` says.
WORKER = textwrap.dedent("""
    import json, os, pathlib, sys
    run = pathlib.Path(sys.argv[-1])
    with (run / "starts").open("a") as file:
        file.write("x")
    do = pathlib.Path(os.environ["FAKE_WORKER"]).read_text()
    if do == "wait":
        sys.stdin.buffer.read()
        (run / "metrics.jsonl").write_text(json.dumps({"schema": 1, "step": 7}) + "\\n")
        sys.exit(75)
    if do == "fail" and "better" in str(run):
        sys.exit("broken")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    (run / "finished.json").write_text(json.dumps({"ended": "all steps", "step": 20}))
""")


@pytest.fixture
def do(tmp_path, monkeypatch):
    """Set what the fake workers do."""
    order = tmp_path / "do"
    monkeypatch.setenv("FAKE_WORKER", str(order))
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.02)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    start = subprocess.Popen

    def fake(command, **options):
        assert command[:3] == [sys.executable, "-m", "qae.study.worker"]
        return start([sys.executable, "-S", str(script), command[3]], **options)

    monkeypatch.setattr(runner.subprocess, "Popen", fake)
    return order.write_text


def starts(states):
    return [len((s.directory / "starts").read_text()) if (s.directory / "starts").exists() else 0 for s in states]


def conduct(states, *, look=lambda states: None, jobs=3):
    told = []
    run_study(states, jobs=jobs, look=look, tell=told.append)
    return told


def test_all_runs_are_done_once_and_never_again(do, tmp_path):
    do("finish")
    study = fake_study(seeds=1)
    told = conduct(open_study(study, tmp_path / "out"))
    assert sum(text.startswith("finished: ") for text in told) == 6
    again = open_study(study, tmp_path / "out")
    assert {state.state for state in again} == {"finished"}
    assert conduct(again) == []
    assert starts(again) == [1] * 6


def test_never_more_at_a_time_than_asked(do, tmp_path):
    do("finish")
    most = []
    conduct(
        open_study(fake_study(seeds=1), tmp_path / "out"),
        look=lambda states: most.append(sum(state.state == "running" for state in states)),
        jobs=2,
    )
    assert max(most) <= 2


def test_a_stopped_study_saves_its_runs_and_goes_on(do, tmp_path):
    do("wait")
    study = fake_study(seeds=1)
    states = open_study(study, tmp_path / "out")

    sent = []

    def stop(states):
        if not sent and sum(starts(states)) == 2:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StudyStopped, match=r"^stopped; the same command goes on from here$"):
        conduct(states, look=stop, jobs=2)
    assert [state.state for state in states_of(study, tmp_path / "out")] == ["begun"] * 2 + ["waiting"] * 4
    assert states[0].step == 7
    do("finish")
    told = conduct(open_study(study, tmp_path / "out"))
    assert sum(text.startswith("continues: ") for text in told) == 2
    assert starts(states) == [2, 2, 1, 1, 1, 1]


def test_a_failed_run_is_named_and_the_others_go_on(do, tmp_path):
    do("fail")
    study = fake_study(seeds=1)
    states = open_study(study, tmp_path / "out")
    with pytest.raises(
        StudyFailed, match=r"^2 of 6 runs failed, see .*better.seed-0.log\.txt.*; the same command tries"
    ):
        conduct(states)
    assert sum(state.state == "finished" for state in states) == 4
    failed = next(state for state in states if state.state == "failed")
    assert "broken" in (failed.directory / "log.txt").read_text()
    do("finish")
    conduct(open_study(study, tmp_path / "out"))
    assert {state.state for state in states_of(study, tmp_path / "out")} == {"finished"}


def test_a_run_with_other_settings_does_not_count(tmp_path):
    study = fake_study(seeds=1)
    write_runs(study, tmp_path)
    other = fake_study(seeds=1, overrides=["steps=30"])
    with pytest.raises(
        ConfigError, match=r"was made with other settings \(steps: 20, now 30\): remove it to do it again"
    ):
        states_of(other, tmp_path)


def test_a_study_keeps_what_was_written_down_first(tmp_path):
    open_study(fake_study(), tmp_path)
    states = open_study(fake_study(question="Another, before the first run?"), tmp_path)
    states[0].directory.mkdir(parents=True)
    (states[0].directory / PLANNED).write_text(yaml.safe_dump(states[0].run.config.model_dump(mode="json")))
    with pytest.raises(ConfigError, match=r"^question of the study is not what was written down before its first run"):
        open_study(fake_study(question="Another?"), tmp_path)


def test_progress_in_words_and_as_a_table(tmp_path):
    study = fake_study(seeds=2)
    states = write_runs(study, tmp_path)
    states[0].state, states[0].step = "running", 7
    states[1].state = "failed"
    line = view.progress_line(states)
    assert line == "10 of 12 runs finished, 1 failed; near/mean/seed-0 7/20"
    table = view.progress_table(states)
    assert [column.header for column in table.columns] == ["block", "arm", "seed 0", "seed 1"]
    assert len(table.rows) == 6


def test_a_worker_waits_until_the_run_is_free(tmp_path):
    """After a kill the old worker may still be saving when the new one begins."""
    fcntl = pytest.importorskip("fcntl")
    inside = []

    def enter():
        with alone(tmp_path, wait=True):
            inside.append(True)

    thread = threading.Thread(target=enter)
    with (tmp_path / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread.start()
        thread.join(0.2)
        assert not inside
    thread.join(10)
    assert inside


def test_a_worker_that_waits_for_another_stops_when_its_study_is_gone(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = subprocess.Popen([sys.executable, "-m", "qae.study.worker", str(tmp_path)], stdin=subprocess.PIPE)
        waiting.stdin.close()
        assert waiting.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("raised", "step", "ended"),
    [(NothingToLearn("flat"), 7, "nothing to learn"), (EntropyAlarm("up"), 9, "entropy"), (None, 20, "all steps")],
)
def test_a_run_killed_in_its_last_evaluation_is_not_trained_further(tmp_path, monkeypatch, raised, step, ended):
    config = fake_study(seeds=1).runs[0].config
    (tmp_path / worker.PLANNED).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"schema": 1, "step": step, "entropy": 0.1}) + "\n")
    trained = []

    def train(*args, **settings):
        trained.append(1)
        if raised:
            raise raised

    def killed(run_dir, config):
        raise KeyboardInterrupt

    monkeypatch.setattr("qae.engines.dispatch.train", train)
    monkeypatch.setattr(worker, "evaluate_stopped", killed)
    with pytest.raises(KeyboardInterrupt):
        worker.execute(tmp_path)
    assert not (tmp_path / FINISHED).exists()
    evaluated = []
    monkeypatch.setattr(worker, "evaluate_stopped", lambda run_dir, config: evaluated.append(run_dir))
    assert worker.execute(tmp_path) == 0
    assert trained == [1]
    assert evaluated == [tmp_path]
    assert json.loads((tmp_path / FINISHED).read_text()) == {"ended": ended, "step": step}


def test_a_worker_leaves_a_finished_run_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "execute", lambda run_dir: pytest.fail("it was run again"))
    (tmp_path / FINISHED).write_text(json.dumps({"ended": "all steps", "step": 1}))
    assert worker.main(tmp_path) == 0
