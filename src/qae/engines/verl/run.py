"""`engine=verl`: prepare a run, start verl, watch it, and leave our run directory behind.

RUN/config.yaml, metrics.jsonl, rollouts/    as every run has them, written while verl goes on
RUN/checkpoints/000020                       links to the Hugging Face models in verl's checkpoints
RUN/verl/                                    what verl reads and writes: data, dumps, checkpoints, log.txt
RUN/verl/command.sh                          the command, for a cluster or Slurm
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from qae.engines.verl.cause import find_cause, worker_died
from qae.engines.verl.data import assumed_prompts, prepare
from qae.engines.verl.overrides import Place, Prompts, command, environment, shell
from qae.engines.verl.records import eval_metrics, last_outputs, read_dump, rollout_records, step_metrics
from qae.engines.verl.refusals import departures, refuse
from qae.records import RunWriter, atomic_write, read_metrics
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError
from qae.trainer.loop import Interrupted, Observer

POLL_SECONDS = 0.5
DUMP_SECONDS = 30.0
# Ray usually ends a run whose worker died; one that still waits after this is ended by us.
GRACE_SECONDS = 60.0
STOP_SECONDS = 30.0


class VerlError(RuntimeError):
    """verl ended with an error; the text says which, and how to go on."""


def train(
    config: TrainConfig,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    observer: Observer | None = None,
) -> Path:
    """Run a configuration on verl. Arguments and result as in `qae.trainer.loop.train`.

    Raises:
        ConfigError: something that verl cannot do, or verl is not installed.
        VerlError: verl failed.
        Interrupted: after Ctrl-C or SIGTERM; what verl had saved can be resumed.
    """
    tell: Callable[..., None] = observer.event if observer else lambda *_, **__: None
    refuse(config)
    place = Place(_directory(config, run_dir, resume))
    tell("phase", phase="load", done=0, total=0, tokens=0)
    writer, saved = RunWriter(place.run_dir), saved_step(place)
    if resume is not None and saved >= config.steps:
        raise ConfigError(
            f"{resume} has already done its {config.steps} steps; go on with `qae train --resume {resume} steps=N`, N "
            f"greater than {config.steps}"
        )
    _forget_after(place, writer, saved)
    prompts = prepare(config, place)
    writer.write_config(yaml.safe_dump({**config.model_dump(mode="json"), "about": _about()}, sort_keys=False))
    script = f"#!/bin/sh\n{shell(config, place, prompts)}\n"
    atomic_write(place.root / "command.sh", script)
    tell("start", config=config, run_dir=place.run_dir, resumed_step=saved or None)
    for text in (*prompts.notes, *departures(config)):
        tell("note", text=text)
    if saved and saved not in {line["step"] for line in read_metrics(place.run_dir)}:
        tell("warning", text=f"verl saved step {saved} and died before it reported it: metrics.jsonl lacks that step")
    if config.engine.prepare_only:
        tell("note", text=f"prepared, not run (engine.prepare_only=true): sh {place.root / 'command.sh'}")
        tell("end", before=None, after=None, run_dir=place.run_dir, checkpoint=None, seconds=0.0)
        return place.run_dir
    if find_spec("verl") is None:
        raise ConfigError(
            f"engine=verl needs verl in this environment: pip install 'qae[verl]' (or run {place.root / 'command.sh'} "
            "where it is)"
        )
    tell("note", text=f"verl and Ray take about a minute to start; what they print goes to {place.log}")
    tell("phase", phase="launch", done=0, total=0, tokens=0)
    _Watch(config, place, prompts, writer, tell).run()
    return place.run_dir


def plan(config: TrainConfig, run_dir: Path | None = None) -> tuple[list[str], str]:
    """For a dry run: what the run does otherwise than the local engine, and the command.

    Raises:
        ConfigError: something that verl cannot do.
    """
    refuse(config)
    place = Place((run_dir or Path("runs") / f"{config.name}-<time>").absolute())
    return list(departures(config)), shell(config, place, assumed_prompts(config))


def saved_step(place: Place) -> int:
    """The step of verl's newest whole checkpoint; 0 if there is none."""
    mark = place.checkpoints / "latest_checkpointed_iteration.txt"
    return int(mark.read_text()) if mark.is_file() else 0


class _Watch:
    """One verl process and what is read of it while it runs."""

    def __init__(
        self, config: TrainConfig, place: Place, prompts: Prompts, writer: RunWriter, tell: Callable[..., None]
    ) -> None:
        self.config, self.place, self.writer, self.tell = config, place, writer, tell
        self.arguments = command(config, place, prompts, python=sys.executable)
        self.env = os.environ | environment(config, place)
        lines = read_metrics(place.run_dir)
        self.seconds_before = float(lines[-1].get("seconds") or 0.0) if lines else 0.0
        self.first = next((line for line in lines if "eval/pass@1" in line), None)
        self.last: dict[str, Any] | None = None
        self.read, self.log_read = 0, 0
        self.began, self.died_at = time.time(), 0.0

    def run(self) -> None:
        """Start verl and stay with it to its end."""
        put_aside(self.place.log)
        with self.place.log.open("wb") as log, _asked_to_stop() as asked:
            process = subprocess.Popen(
                self.arguments, env=self.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                while process.poll() is None and not asked():
                    time.sleep(POLL_SECONDS)
                    self.follow()
                    if self.is_stuck():
                        break
            finally:
                still = process.poll() is None
                if still:
                    _end(process)
        self.follow()
        if asked():
            raise Interrupted(f"stopped. {self.how_to_go_on()}")
        if process.returncode != 0 or still:
            cause = find_cause(self.place.log, since=self.began)
            raise VerlError(f"verl failed: {cause}. {self.how_to_go_on()} The whole log: {self.place.log}")
        self.tell(
            "end",
            before=self.first,
            after=self.last,
            run_dir=self.place.run_dir,
            checkpoint=None,
            seconds=self.seconds(),
        )

    def follow(self) -> None:
        """Take in what verl's file logger has written since."""
        if not self.place.metrics.exists():
            return
        with self.place.metrics.open("rb") as file:
            file.seek(self.read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read += len(line)
                record = json.loads(line)
                self.take(int(record["step"]), record["data"])

    def take(self, step: int, data: dict[str, Any]) -> None:
        """Turn one step of verl's into ours."""
        if step > 0:
            rows = last_outputs(_wait_for(self.place.rollouts / f"{step}.jsonl"))
            metrics = step_metrics(self.config, step, rows, data, seconds=self.seconds())
            if self.config.records.rollouts:
                self.writer.write_rollouts(step, rollout_records(step, rows))
            self.writer.append_metrics(metrics)
            self.tell("step", metrics=metrics)
        if any(name.startswith("val-") for name in data) and self.config.eval.problems:
            rows = last_outputs(_wait_for(self.place.validations / f"{step}.jsonl"))
            self.last = eval_metrics(step, rows, seconds=self.seconds())
            self.first = self.first or self.last
            self.writer.append_metrics(self.last)
            self.tell("eval", metrics=self.last)
        link_checkpoints(self.place)
        if step < self.config.steps:
            self.tell("phase", phase="sample", done=0, total=0, tokens=0)

    def is_stuck(self) -> bool:
        """Whether a worker died some time ago and the run has not ended over it."""
        with self.place.log.open("rb") as log:
            log.seek(self.log_read)
            text = log.read().decode("utf-8", "replace")
            self.log_read = log.tell()
        if worker_died(text) and not self.died_at:
            self.died_at = time.time()
        return bool(self.died_at) and time.time() - self.died_at > GRACE_SECONDS

    def seconds(self) -> float:
        """Since the run's first start, over all sessions."""
        return self.seconds_before + time.time() - self.began

    def how_to_go_on(self) -> str:
        """What to type to continue."""
        again = f"`qae train --resume {self.place.run_dir}`"
        saved = saved_step(self.place)
        if saved:
            return f"Continue from step {saved} with {again}."
        return f"There is no checkpoint yet; start again with {again}."


def put_aside(path: Path) -> None:
    """Rename a file that an earlier session left, so that nothing in it is taken for this one's."""
    if path.exists():
        numbers = range(1, 1 + len(list(path.parent.glob(f"{path.stem}*{path.suffix}"))))
        free = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in numbers)
        path.rename(next(name for name in free if not name.exists()))


def link_checkpoints(place: Place) -> None:
    """Let RUN/checkpoints/NNNNNN be the Hugging Face models in verl's checkpoints; links to deleted ones go."""
    links = place.run_dir / "checkpoints"
    for step_dir in place.checkpoints.glob("global_step_*"):
        model = step_dir / "actor" / "huggingface"
        link = links / f"{int(step_dir.name.rpartition('_')[2]):06d}"
        if any(model.glob("*.safetensors")) and not link.is_symlink():
            links.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(model, links), target_is_directory=True)
    for link in links.glob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink()


def _directory(config: TrainConfig, run_dir: Path | None, resume: Path | None) -> Path:
    if resume is not None:
        return resume.absolute()
    directory = run_dir or Path("runs") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if (directory / "metrics.jsonl").exists():
        raise ConfigError(f"{directory} already holds a run: give another directory, or --resume {directory}")
    return directory.absolute()


def _forget_after(place: Place, writer: RunWriter, step: int) -> None:
    """Drop what verl will write again: records, dumps and metrics beyond its checkpoint."""
    writer.truncate_after(step if step else -1)
    for dumps in (place.rollouts, place.validations):
        for path in dumps.glob("*.jsonl"):
            if int(path.stem) > step or not step:
                path.unlink()
    place.metrics.unlink(missing_ok=True)


def _wait_for(path: Path) -> list[dict[str, Any]]:
    """The rows of a dump that is about to appear."""
    until = time.monotonic() + DUMP_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise VerlError(f"verl reported a step, but {path} did not appear within {DUMP_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS / 5)
    return read_dump(path)


@contextmanager
def _asked_to_stop() -> Generator[Callable[[], bool]]:
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the driver to end, so that Ray takes its workers with it; then end it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def _about() -> dict[str, Any]:
    return {
        **{name: found for name in ("qae", "torch", "transformers", "verl", "ray") if (found := _version(name))},
        "python": platform.python_version(),
        "date": datetime.now().isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
