"""Why a verl run failed: found in what it printed and in Ray's own logs, said in one line."""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

# Wrappers that say that something failed elsewhere, not what.
WRAPPERS = ("RayTaskError", "ActorDiedError", "RayActorError", "WorkerCrashedError", "TaskUnschedulableError")
_PREFIX = re.compile(r"^\s*(?:\x1b\[[0-9;]*m)*(?:\((?P<who>[^)]*)\)\s*)?(?:\x1b\[[0-9;]*m)*\s?")
_EXCEPTION = re.compile(
    r"^(?:ray\.exceptions\.)?(?P<kind>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit))(?:\([\w.]+\))?: (?P<text>\S.*)$"
)
# What Ray says of an actor whose process is gone; one that failed in its own constructor is another matter.
_DEATH = re.compile(
    r"ActorDiedError: .*unexpectedly|worker process has died|worker died or was killed|unexpected system"
)
_CLASS, _PID = re.compile(r"class_name: \S*?(\w+)$", re.MULTILINE), re.compile(r"^\s*pid: (\d+)$", re.MULTILINE)
_DETAIL = re.compile(
    r"exit detail: (.+?)(?: There are some potential root causes\.| Some common causes include|$)", re.MULTILINE
)
_LOGS = ("worker-*.err", "worker-*.out", "raylet.err", "raylet.out", "gcs_server.err")
_TAIL_BYTES = 200_000


def find_cause(log: Path, *, since: float) -> str:
    """One line: the exception that began it, or the death of a worker, or the last thing that was printed.

    Args:
        log: all that the run printed.
        since: when it began, to tell its Ray logs from others'.
    """
    lines = list(_tail(log))
    text = "\n".join(lines)
    if worker_died(text):
        return _death(text)
    thrown = _first_exception(lines)
    if thrown:
        return thrown
    for path in ray_logs(since):
        thrown = _first_exception(_tail(path))
        if thrown:
            return f"{thrown} (in Ray's {path.name})"
    spoken = [line for line in lines if line.strip()]
    return f"it said last: {spoken[-1].strip()[:300]}" if spoken else "it said nothing"


def worker_died(text: str) -> bool:
    """Whether some lines tell of the death of a process that the run cannot do without."""
    return _DEATH.search(text) is not None


def ray_logs(since: float) -> list[Path]:
    """Ray's logs of the newest session that began after `since`, those of workers first."""
    root = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
    sessions = [path for path in root.glob("session_2*") if path.is_dir() and path.stat().st_mtime >= since]
    if not sessions:
        return []
    logs = max(sessions, key=lambda path: path.stat().st_mtime) / "logs"
    return [path for pattern in _LOGS for path in sorted(logs.glob(pattern)) if path.stat().st_size]


def _first_exception(lines: Iterable[str]) -> str | None:
    """The first exception of the last traceback that is no wrapper of another."""
    found: list[str] = []
    for line in lines:
        match = _EXCEPTION.match(line)
        if match and not any(name in line.split(":")[0] for name in WRAPPERS):
            kind = match["kind"].rpartition(".")[2]
            found.append(f"{kind}: {match['text'][:400]}")
    return found[0] if found else None


def _death(text: str) -> str:
    """Which process died, as far as Ray says, and what it says of the reason."""
    kind, pid, detail = (pattern.search(text) for pattern in (_CLASS, _PID, _DETAIL))
    who = f"{kind[1]}" if kind else "one of Ray's"
    number = f" (pid {pid[1]})" if pid else ""
    why = f": {detail[1].strip()[:200].rstrip('.')}" if detail else ""
    return f"a worker process died, {who}{number}{why}; killed, out of memory, or crashed"


def _tail(path: Path) -> Iterator[str]:
    """The last lines, without Ray's prefixes and colours."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    for line in text.splitlines():
        yield _PREFIX.sub("", line).replace("\x1b[0m", "").rstrip()
