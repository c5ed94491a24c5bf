"""What a run writes and how it is read back: JSONL that survives a kill at any moment.

    config.yaml             the resolved config
    metrics.jsonl           one object a step; one an evaluation ("eval/..." keys, after that step)
    rollouts/000012.jsonl   one object a completion of step 12

A line is appended whole and synced, a file appears whole (temporary file, then rename). A line that a crash
cut short is skipped and counted by the readers. NaN and infinity are written as null, as JSON has no word for
them.
"""

import json
import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, cast

SCHEMA = 1
# One JSON object: a line of metrics or rollouts, or a kept summary.
Record = dict[str, Any]

# Parts of a run's configuration that do not change what it computes, but for the order of additions in threads.
BESIDES_THE_EXPERIMENT = ("track", "watch", "checkpoint", "records", "threads")

LOCK = ".lock"
# Directories that this process holds, so that it may enter again.
_held: set[Path] = set()

Regime = Literal["hard", "easy", "flat", "unscored"]


class SchemaError(ValueError):
    """The records were written by a newer qae than this one."""


class RunBusy(RuntimeError):
    """Another process is writing the run."""


@dataclass
class Rollout:
    """One completion of one step.

    Attributes:
        step: the rollout batch it belongs to, from 1.
        prompt_id: canonical id of its problem.
        group: index of its group within the step.
        prompt: what the policy saw, as text.
        completion: what the policy wrote.
        tokens: its length in tokens.
        reward: after shaping; None if it was never scored.
        outcome: the verifier's 1.0 or 0.0; None if it was never scored.
        advantage: what the update used.
        regime: of its group.
        truncated: it ran into the token limit.
        entropy_mean_nats: mean over its tokens, at the sampling temperature.
        level: difficulty label of its problem.
        token_ids: its tokens, for a sampled few completions only, like the next three.
        logprobs: [t] in nats, at the sampling temperature.
        entropies_nats: [t] exact, at the sampling temperature.
        token_texts: [t] each token as text, so that a reader needs no tokenizer.
    """

    step: int
    prompt_id: str
    group: int
    prompt: str
    completion: str
    tokens: int
    reward: float | None
    outcome: float | None
    advantage: float
    regime: Regime
    truncated: bool
    entropy_mean_nats: float | None = None
    level: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    entropies_nats: list[float] | None = None
    token_texts: list[str] | None = None


_ROLLOUT_FIELDS = {f.name for f in fields(Rollout)}


@dataclass
class ReadTally:
    """What a reader met: pass one in to learn how many lines were broken.

    Attributes:
        lines: lines read, empty ones left out.
        broken: lines that were no whole record, and were skipped.
        where: "file:line" of the first few broken ones.
    """

    lines: int = 0
    broken: int = 0
    where: list[str] = field(default_factory=list[str])

    def skip(self, path: Path, number: int) -> None:
        """Count one broken line."""
        self.broken += 1
        if len(self.where) < 5:
            self.where.append(f"{path.name}:{number}")


@contextmanager
def alone(run_dir: Path, *, wait: bool) -> Generator[None]:
    """Hold a run directory, so that no two processes write it. Whoever holds it already enters again freely.

    The lock is on RUN/.lock, which holds the process's id; it is gone when the process is, however it ends. Where
    files cannot be locked (Windows, some network disks) nothing is held.

    Args:
        run_dir: made if missing; unmade if nothing was written to it.
        wait: whether to wait until the directory is free.

    Raises:
        RunBusy: another process holds the directory, and `wait` is False.

    Example:
        >>> import tempfile
        >>> with alone(Path(tempfile.mkdtemp()), wait=False):
        ...     pass
    """
    where, made = run_dir.resolve(), not run_dir.exists()
    if os.name != "posix" or where in _held:
        yield
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOCK).open("a+", encoding="ascii") as lock:
        _take(lock, run_dir, wait=wait)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        _held.add(where)
        try:
            yield
        finally:
            _held.discard(where)
            with suppress(OSError):  # it may be gone by now
                if made and [path.name for path in run_dir.iterdir()] == [LOCK]:
                    (run_dir / LOCK).unlink()
                    run_dir.rmdir()


def _take(lock: IO[str], run_dir: Path, *, wait: bool) -> None:
    import fcntl  # of POSIX only

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip()
        raise RunBusy(
            f"another process{f' (pid {holder})' if holder else ''} is writing {run_dir}: wait for it, or stop it"
        ) from None
    except OSError:
        pass  # a disk without locks


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `data` so that `path` holds either its old content or all of the new, even through a power cut.

    Args:
        path: the file; its directory is made if missing.
        data: bytes, or text that is written as UTF-8.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "notes" / "a.txt"
        >>> atomic_write(target, "whole")
        >>> target.read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)


def to_json(value: Any) -> str:
    """One line of JSON: NaN and infinity as null, NumPy and torch scalars as numbers, text as ASCII.

    ASCII escapes keep lone surrogates, null bytes and exotic line ends inside their line.

    Args:
        value: nested dicts, lists, strings, numbers, None.

    Example:
        >>> to_json({"loss": float("nan"), "lr": 1e-4})
        '{"loss": null, "lr": 0.0001}'
    """
    return json.dumps(_plain(value), allow_nan=False)


def from_json(line: str | bytes, source: str) -> dict[str, Any]:
    """Read one record.

    Args:
        line: one line of JSON.
        source: named in the error message.

    Returns:
        The record.

    Raises:
        ValueError: it is no JSON object with a step, or it is cut short.
        SchemaError: a newer qae wrote it.

    Example:
        >>> from_json('{"schema": 99, "step": 1}', "metrics.jsonl")
        Traceback (most recent call last):
        ...
        qae.records.SchemaError: metrics.jsonl has schema 99; this qae reads up to 1. Upgrade qae to read it.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"{source}: expected a JSON object, got {type(record).__name__}")
    record = cast(dict[str, Any], record)
    schema = record.get("schema", SCHEMA)
    if not isinstance(schema, int):
        raise ValueError(f"{source}: schema is {schema!r}, expected a whole number")
    if schema > SCHEMA:
        raise SchemaError(f"{source} has schema {schema}; this qae reads up to {SCHEMA}. Upgrade qae to read it.")
    if not isinstance(record.get("step"), int):
        raise ValueError(f"{source}: no whole number under 'step'")
    return record


class RunWriter:
    """Writes one run directory."""

    def __init__(self, run_dir: Path) -> None:
        """Open `run_dir`, made if missing. A metrics line that a crash cut short is closed off."""
        self.run_dir = run_dir
        self.metrics_path = run_dir / "metrics.jsonl"
        (run_dir / "rollouts").mkdir(parents=True, exist_ok=True)
        _end_last_line(self.metrics_path)

    def write_config(self, yaml_text: str) -> None:
        """Write config.yaml."""
        atomic_write(self.run_dir / "config.yaml", yaml_text)

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl and sync it.

        Args:
            metrics: numbers by name, with "step".

        Raises:
            ValueError: there is no "step".
        """
        if not isinstance(metrics.get("step"), int):
            raise ValueError(f"metrics need a whole number under 'step', got {metrics.get('step')!r}")
        line = to_json({"schema": SCHEMA, **metrics}) + "\n"
        with self.metrics_path.open("ab") as file:
            file.write(line.encode("ascii"))
            file.flush()
            os.fsync(file.fileno())

    def write_rollouts(self, step: int, rollouts: Iterable[Rollout]) -> Path:
        """Write the completions of `step`, replacing what was there.

        Per-token floats are kept to 6 significant digits, and fields that are None are left out.

        Args:
            step: the rollout batch.
            rollouts: its completions.

        Returns:
            The file written.
        """
        path = rollout_path(self.run_dir, step)
        atomic_write(path, "".join(to_json({"schema": SCHEMA, **_slim(r)}) + "\n" for r in rollouts))
        return path

    def truncate_after(self, step: int) -> None:
        """Drop what a resumed run writes again: records beyond `step`, broken lines, temporary files.

        Args:
            step: the last step to keep; evaluations after it stay.
        """
        if self.metrics_path.exists():
            kept = "".join(to_json(record) + "\n" for record in read_metrics(self.run_dir) if record["step"] <= step)
            atomic_write(self.metrics_path, kept)
        for number, path in rollout_files(self.run_dir):
            if number > step:
                path.unlink()
        for leftover in [*self.run_dir.glob(".*.tmp"), *(self.run_dir / "rollouts").glob(".*.tmp")]:
            leftover.unlink()


def read_metrics(run_dir: Path, *, tally: ReadTally | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in file order; an empty list if there is no such file yet.

    Args:
        run_dir: the run directory.
        tally: counts lines and broken lines, if given.

    Returns:
        One dict a line.

    Raises:
        SchemaError: a newer qae wrote it.
    """
    path = run_dir / "metrics.jsonl"
    return list(_read_records(path, tally)) if path.exists() else []


def read_rollouts(path: Path, *, tally: ReadTally | None = None) -> Iterator[Rollout]:
    """The completions in one rollout file, one at a time. Unknown fields are ignored, broken lines skipped.

    Args:
        path: a file of `rollouts/`.
        tally: counts lines and broken lines, if given.

    Yields:
        Rollouts in file order.

    Raises:
        SchemaError: a newer qae wrote it.
    """
    tally = tally if tally is not None else ReadTally()
    for record in _read_records(path, tally):
        try:
            yield Rollout(**{name: value for name, value in record.items() if name in _ROLLOUT_FIELDS})
        except TypeError:
            tally.skip(path, tally.lines)


def change_text(change: Mapping[str, Any]) -> str:
    """A setting that a resumed run changed (about.changes of its config.yaml), in words.

    Args:
        change: step, key, before, now.

    Example:
        >>> change_text({"step": 6, "key": "update.lr", "before": 0.1, "now": 0.2})
        'update.lr was 0.1 up to step 6 and is 0.2 now'
    """
    return "{key} was {before} up to step {step} and is {now} now".format_map(change)


def rollout_path(run_dir: Path, step: int) -> Path:
    """Where the completions of `step` lie."""
    return run_dir / "rollouts" / f"{step:06d}.jsonl"


def rollout_files(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, file) of every rollout file, by step."""
    paths = (run_dir / "rollouts").glob("*.jsonl")
    return sorted((int(path.stem), path) for path in paths if path.stem.isdigit())


def _read_records(path: Path, tally: ReadTally | None) -> Iterator[dict[str, Any]]:
    tally = tally if tally is not None else ReadTally()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            tally.lines += 1
            try:
                record = from_json(line, f"{path.name} line {number}")
            except SchemaError:
                raise
            except (ValueError, RecursionError):
                tally.skip(path, number)
                continue
            yield record


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast(list[Any], value)]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a record holds numbers, strings, lists and dicts, not {type(value).__name__}")


def _slim(rollout: Rollout) -> dict[str, Any]:
    record = {name: value for name, value in asdict(rollout).items() if value is not None}
    for name in ("logprobs", "entropies_nats"):
        if name in record:
            record[name] = [float(f"{x:.6g}") for x in record[name]]
    # reward and outcome stay even when None: "never scored" is a fact, not a missing field
    return {"reward": None, "outcome": None, **record}


def _end_last_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return  # Windows cannot open a directory for syncing
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
