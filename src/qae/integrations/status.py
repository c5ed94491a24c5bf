"""How far each adapter was seen to work: written by the test that ran it, read by the docs and by the adapters."""

import json
import os
import warnings
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal, cast

RECORDED = Path(__file__).with_name("status.json")
RECORD_VARIABLE = "QAE_RECORD_HOSTS"

# on whose pages others stand too
FORKS = {"slime": ("miles",)}

Level = Literal["trained", "own code", "source read"]


class ExperimentalHostWarning(UserWarning):
    """This adapter's seam was read in the host's source but never executed."""


@dataclass(frozen=True)
class HostStatus:
    """What a test saw.

    Attributes:
        level: "trained" in it, ran the host's "own code" (with stubs, if any), or "source read".
        version: of the host.
        date: of the test.
        test: where it is.
        stubs: modules that stood in for what could not be installed.
        source: wheel, checkout and its commit.
    """

    level: Level
    version: str
    date: str
    test: str
    stubs: list[str] = field(default_factory=list[str])
    source: str = ""

    def sentence(self) -> str:
        """The status in words, as the host's page prints it.

        Example:
            >>> HostStatus("own code", "1.0", "2026-12-01", "tests/a.py", ["ray"]).sentence()
            "ran the host's own code, version 1.0, on 2026-12-01 (tests/a.py); stubs: ray"
        """
        did = {
            "trained": "trained in it",
            "own code": "ran the host's own code",
            "source read": "EXPERIMENTAL: its source was read, its code not executed",
        }[self.level]
        origin = f" ({self.source})" if self.source else ""
        stubs = f"; stubs: {', '.join(self.stubs)}" if self.stubs else ""
        where = f" ({self.test})" if self.test else ""
        return f"{did}, version {self.version}{origin}, on {self.date}{where}{stubs}"


def statuses() -> dict[str, HostStatus]:
    """Every recorded host.

    Returns:
        host -> status.
    """
    recorded = json.loads(RECORDED.read_text())
    return {name: HostStatus(**values) for name, values in cast(dict[str, dict[str, object]], recorded).items()}  # pyright: ignore[reportArgumentType]


def record(
    host: str, level: Level, version: str, test: str, *, stubs: list[str] | None = None, source: str = ""
) -> None:
    """Write a status, if the variable QAE_RECORD_HOSTS is set; tests call this after their last assertion.

    Args:
        host: name of the adapter.
        level: what was done.
        version: of the host.
        test: where.
        stubs: that stood in for missing modules.
        source: of the host's code.
    """
    if not os.environ.get(RECORD_VARIABLE):
        return
    status = HostStatus(level, version, date.today().isoformat(), test, sorted(stubs or []), source)
    known = {name: asdict(old) for name, old in statuses().items()} | {host: asdict(status)}
    RECORDED.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def status_line(host: str) -> str:
    """The line of a host's page that `scripts/host_pages.py` writes.

    Args:
        host: name of the adapter.
    """
    recorded = statuses()
    if host not in recorded:
        return "**Status**: EXPERIMENTAL: never run by our tests."
    forks = "".join(f" {fork}: {recorded[fork].sentence()}." for fork in FORKS.get(host, ()) if fork in recorded)
    return f"**Status**: {recorded[host].sentence()}.{forks}"


def warn_if_experimental(host: str) -> None:
    """Warn whoever uses an adapter whose seam no test has executed.

    Args:
        host: name of the adapter.
    """
    status = statuses().get(host)
    if status is None or status.level == "source read":
        seen = f"version {status.version} was read" if status else "no version was tried"
        warnings.warn(
            f"qae.integrations.{host} is experimental: {seen}, none was run. Look at the first step's advantages, and "
            "at `qae doctor --run` on a dump of them",
            ExperimentalHostWarning,
            stacklevel=3,
        )
