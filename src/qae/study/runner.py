"""Arms x seeds in parallel processes, one thread each; killed at any moment, it goes on where it was."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

import yaml

from qae.records import atomic_write
from qae.study.plan import PlannedRun, Study, check_kept
from qae.study.worker import FINISHED, PLANNED, TO_BE_CONTINUED
from qae.trainer.keys import ConfigError

State = Literal["waiting", "begun", "running", "finished", "failed"]
POLL_SECONDS = 0.5
TAIL_BYTES = 65_536
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class StudyFailed(RuntimeError):
    """Some runs of the study failed; the others are finished."""


class StudyStopped(Exception):
    """The study was asked to stop; its runs saved their state."""


@dataclass
class RunState:
    """Where one run stands.

    Attributes:
        run: as planned.
        directory: of the run.
        state: finished and failed are as they sound, begun has a checkpoint or records but no process.
        step: last step recorded.
        pass_rate: last held-out pass@1.
        kept: what a kept summary says of a finished run whose directory is elsewhere.
    """

    run: PlannedRun
    directory: Path
    state: State = "waiting"
    step: int = 0
    pass_rate: float | None = None
    kept: dict[str, Any] | None = None
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def look(self) -> None:
        """Read step and pass@1 from the end of the run's metrics."""
        for line in reversed(_last_lines(self.directory / "metrics.jsonl")):
            self.step = max(self.step, line.get("step", 0))
            if "eval/pass@1" in line:
                self.pass_rate = line["eval/pass@1"]
                break


def open_study(study: Study, out: Path) -> list[RunState]:
    """Where each run of a study stands in its directory, which is made and gets study.yaml if it is new.

    Raises:
        ConfigError: the directory holds another study, or a run with other settings.
    """
    kept = out / "study.yaml"
    if kept.is_file() and any((out / "runs").glob(f"*/*/*/{PLANNED}")):  # before its first run it may still change
        check_kept(study, yaml.safe_load(kept.read_text(encoding="utf-8")))
    text = yaml.safe_dump(study.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    atomic_write(kept, text)
    return states_of(study, out)


def states_of(study: Study, out: Path) -> list[RunState]:
    """Where each run stands; reads only.

    Raises:
        ConfigError: a run was made with other settings.
    """
    states = [RunState(run, out / "runs" / run.label) for run in study.runs]
    for state in states:
        _refuse_other(state)
        if (state.directory / FINISHED).is_file():
            state.state = "finished"
        elif (state.directory / "metrics.jsonl").is_file():
            state.state = "begun"
        state.look()
    return states


def run_study(
    states: list[RunState], *, jobs: int, look: Callable[[list[RunState]], None], tell: Callable[[str], None]
) -> None:
    """Do what is left of the runs, `jobs` at a time, in order.

    Args:
        states: from `open_study`.
        jobs: processes at a time, of one thread each.
        look: called with the states about twice a second.
        tell: told of each run that begins, ends or fails.

    Raises:
        StudyStopped: after Ctrl-C or SIGTERM, once every run has saved itself.
        StudyFailed: some runs failed.
    """
    waiting = [state for state in states if state.state in ("waiting", "begun")]
    running: list[RunState] = []
    with _stop_request() as stopping:
        while (waiting and not stopping()) or running:
            while waiting and len(running) < jobs and not stopping():
                state = waiting.pop(0)
                tell(f"{'continues' if state.state == 'begun' else 'begins'}: {state.run.label}")
                _start(state)
                running.append(state)
            for state in list(running):
                if _ended(state, tell):
                    running.remove(state)
            if stopping():
                _end(running)
            look(states)
            sleep(POLL_SECONDS)
        if stopping():
            raise StudyStopped("stopped; the same command goes on from here")
    failed = [state for state in states if state.state == "failed"]
    if failed:
        logs = ", ".join(str(state.directory / "log.txt") for state in failed[:3])
        raise StudyFailed(f"{len(failed)} of {len(states)} runs failed, see {logs}; the same command tries them again")


def _start(state: RunState) -> None:
    state.directory.mkdir(parents=True, exist_ok=True)
    settings = state.run.config.model_dump(mode="json")
    atomic_write(state.directory / PLANNED, yaml.safe_dump(settings, sort_keys=False))
    environment = os.environ | dict.fromkeys(THREAD_LIMITS, "1")
    with (state.directory / "log.txt").open("ab") as log:
        state.process = subprocess.Popen(
            [sys.executable, "-m", "qae.study.worker", str(state.directory)],
            stdin=subprocess.PIPE,  # closed when this process is gone: the run then saves and stops
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the study only, which asks the runs to stop
        )
    state.state = "running"


def _ended(state: RunState, tell: Callable[[str], None]) -> bool:
    state.look()
    code = state.process.poll() if state.process else 0
    if code is None:
        return False
    if state.process and state.process.stdin:
        state.process.stdin.close()
    if code == 0:
        state.state = "finished"
        rate = "" if state.pass_rate is None else f", pass@1 {state.pass_rate:.3f}"
        tell(f"finished: {state.run.label}{rate}")
    elif code in (TO_BE_CONTINUED, -signal.SIGTERM):
        state.state = "begun"
    else:
        state.state = "failed"
        tell(f"failed (exit code {code}): {state.run.label}; see {state.directory / 'log.txt'}")
    return True


def _end(running: list[RunState]) -> None:
    """Ask each run, once, to save and stop."""
    for state in running:
        if state.process and state.process.stdin and not state.process.stdin.closed:
            state.process.stdin.close()


@contextmanager
def _stop_request() -> Generator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask for a stop; within a second the same again changes nothing, later it kills."""
    asked: list[float] = []

    def ask(number: int, frame: Any) -> None:
        if asked and monotonic() - asked[0] > 1:
            raise KeyboardInterrupt
        asked.append(monotonic())

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_other(state: RunState) -> None:
    """A run that was made with other settings must not count as this one."""
    planned = state.directory / PLANNED
    if not planned.is_file():
        return
    made = yaml.safe_load(planned.read_text(encoding="utf-8"))
    now = json.loads(state.run.config.model_dump_json())
    differing = sorted(key for key in {*made, *now} if made.get(key) != now.get(key))
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{state.directory} was made with other settings ({key}: {made.get(key)!r}, now {now.get(key)!r}): "
            "remove it to do it again, or give another --out"
        )


def _last_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().splitlines()
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off at the start of the tail, or being written
        if isinstance(record, dict):
            found.append(record)
    return found
