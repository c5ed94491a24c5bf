"""Which files under a path are rollouts, which are scalars, and which are neither."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qae.audit.rows import is_rollout


@dataclass
class Sources:
    """Files by what they hold."""

    rollouts: list[Path] = field(default_factory=list[Path])
    tables: list[Path] = field(default_factory=list[Path])
    scalars: list[Path] = field(default_factory=list[Path])
    unknown: list[Path] = field(default_factory=list[Path])


def find_sources(paths: list[Path]) -> Sources:
    """Look at files, and at all files under directories.

    Of a run directory of qae only its own records are taken. A file named by the caller that holds neither rollouts
    nor scalars is `unknown`; inside directories such files are passed over. Of several trainer_state.json (one a
    checkpoint) the last is taken: it holds the whole history.

    Args:
        paths: files and directories.

    Returns:
        The files found, in natural order of their names.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found = Sources()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; give the directory that a run printed, or a file or directory of its logs"
            )
        for file in sorted(_walk(path), key=_natural) if path.is_dir() else [path]:
            _sort(file, found, named=file == path)
    states = [path for path in found.scalars if path.name == "trainer_state.json"]
    found.scalars = [path for path in found.scalars if path not in states[:-1]]
    return found


def _walk(directory: Path) -> Iterator[Path]:
    metrics = directory / "metrics.jsonl"
    if metrics.is_file() and (directory / "config.yaml").is_file():
        # a run of ours: what verl or a tracker left beside its records says the same again
        yield from (metrics, *(directory / "rollouts").glob("*.jsonl"))
        return
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts 9.jsonl before 10.jsonl."""
    digits = "".join(c if c.isdigit() else " " for c in path.name).split()
    return [(0, str(path.parent)), *((int(d), "") for d in digits), (0, path.name)]


def _sort(path: Path, found: Sources, *, named: bool) -> None:
    name = path.name
    if ".tfevents." in name or path.suffix == ".wandb" or name == "trainer_state.json":
        found.scalars.append(path)
    elif path.suffix == ".parquet" and (named or name.startswith("completions_")):
        found.tables.append(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        kind = _kind_of_jsonl(path)
        (found.rollouts if kind == "rollouts" else found.scalars if kind == "scalars" else found.unknown).append(path)
    elif path.suffix == ".csv" and named:
        found.scalars.append(path)
    elif named:
        found.unknown.append(path)


def _kind_of_jsonl(path: Path) -> str:
    """By the first few whole lines."""
    with path.open("rb") as file:
        for _, line in zip(range(20), file, strict=False):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if is_rollout(record):
                return "rollouts"
            if isinstance(record, dict) and ("step" in record or "_step" in record):
                return "scalars"
    return "unknown"
