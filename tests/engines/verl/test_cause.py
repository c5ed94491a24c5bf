"""What a failure is put down to."""

import time
from pathlib import Path

import pytest

from qae.engines.verl.cause import find_cause, worker_died

DIED = """\
(TaskRunner pid=12) The actor died unexpectedly before finishing this task.
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: connection
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path / "log.txt"


def cause(log: Path, text: str) -> str:
    log.write_text(text)
    return find_cause(log, since=time.time() - 60)


def test_the_exception_under_rays_wrappers(log: Path) -> None:
    text = (
        "\x1b[36m(TaskRunner pid=3)\x1b[0m ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=3)\n"
        "(TaskRunner pid=3) omegaconf.errors.ConfigAttributeError: Key 'qae_k' is not in struct\n"
        "Traceback (most recent call last):\n"
    )
    assert cause(log, text) == "ConfigAttributeError: Key 'qae_k' is not in struct"


def test_the_death_of_a_worker(log: Path) -> None:
    found = cause(log, DIED)
    assert found.startswith("a worker process died: ") and "died unexpectedly" in found
    assert worker_died(DIED) and not worker_died("step:1 - reward:0.5")


def test_rays_own_logs_are_searched(log: Path, tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-1.err").write_text("Traceback\nRuntimeError: no kernel image\n")
    assert cause(log, "starting\n") == "RuntimeError: no kernel image (in Ray's worker-1.err)"


def test_else_the_last_thing_said(log: Path) -> None:
    assert cause(log, "starting\nloading weights\n\n") == "it said last: loading weights"
    assert cause(log, "") == "it said nothing"
