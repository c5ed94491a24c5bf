"""What a host's check says: one line for each thing it looked at. Standard library only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of `qae doctor`.

    Attributes:
        status: "ok", "note" for what is worth knowing and harms nothing, "fault" for what has to be mended.
        what: the thing that was looked at.
        found: what it is.
        remedy: the next step, for a fault.
    """

    status: Literal["ok", "note", "fault"]
    what: str
    found: str
    remedy: str = ""


def has_fault(findings: Iterable[Finding]) -> bool:
    """Whether anything has to be mended.

    Args:
        findings: of one check.

    Example:
        >>> has_fault([Finding("ok", "trl", "1.16.0"), Finding("note", "vllm", "not installed")])
        False
    """
    return any(finding.status == "fault" for finding in findings)
