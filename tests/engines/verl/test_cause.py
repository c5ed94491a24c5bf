"""What a failure is put down to."""

import time
from pathlib import Path

import pytest

from qae.engines.verl.cause import find_cause, worker_died

DIED = """\
(WorkerDict pid=13) RuntimeError: [gloo] Connection closed by peer
Traceback (most recent call last):
ray.exceptions.RayTaskError(ActorDiedError): ray::TaskRunnerV1.run() (pid=9, ip=127.0.0.1)
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict
\tactor_id: ab12
\tpid: 12
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The \
process is killed by SIGKILL by OOM killer due to high memory usage.
"""
CREATION = """\
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::WorkerDict()
ValueError: no such model
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


def test_the_death_of_a_worker_and_not_what_it_did_to_the_others(log: Path) -> None:
    assert cause(log, DIED) == (
        "a worker process died, WorkerDict (pid 12): Worker unexpectedly exits with a connection error code 2. "
        "End of file; killed, out of memory, or crashed"
    )
    assert worker_died(DIED) and not worker_died("step:1 - reward:0.5")


def test_an_error_in_a_workers_constructor_is_that_error(log: Path) -> None:
    assert not worker_died(CREATION)
    assert cause(log, CREATION) == "ValueError: no such model"


def test_rays_own_logs_are_searched(log: Path, tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-1.err").write_text("Traceback\nRuntimeError: no kernel image\n")
    assert cause(log, "starting\n") == "RuntimeError: no kernel image (in Ray's worker-1.err)"


def test_else_the_last_thing_said(log: Path) -> None:
    assert cause(log, "starting\nloading weights\n\n") == "it said last: loading weights"
    assert cause(log, "") == "it said nothing"
