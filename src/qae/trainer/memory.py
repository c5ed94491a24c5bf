"""Largest memory of this process, as a whole and phase by phase."""

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# Resetting the kernel's mark lowers what getrusage says too, so the largest one is kept here.
_largest_before_resets = [0.0]


@dataclass
class Peak:
    """What `phase_peak` found.

    Attributes:
        mb: largest memory in 2^20 bytes, once the phase is over; None where neither the kernel nor CUDA tells.
    """

    mb: float | None = None


@contextmanager
def phase_peak(device: torch.device) -> Generator[Peak]:
    """Measure the largest memory of what runs inside; phases follow one another and are not nested.

    On CUDA it is what tensors held on the device, on Linux the resident memory of the whole process, weights and
    libraries included. Elsewhere it is None.

    Example:
        >>> with phase_peak(torch.device("cpu")) as peak:
        ...     numbers = torch.zeros(1000)
        >>> peak.mb is None or peak.mb > 0
        True
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    resettable = device.type == "cpu" and _reset_mark()
    try:
        yield peak
    finally:
        if device.type == "cuda":
            peak.mb = torch.cuda.max_memory_allocated(device) / 2**20
        elif resettable:
            peak.mb = resident_mb("VmHWM")


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in 2^20 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(_largest_before_resets[0], peak / 2**20 if sys.platform == "darwin" else peak / 2**10)


def resident_mb(field: str = "VmRSS") -> float:
    """VmRSS (now) or VmHWM (largest since the last reset) of this process in 2^20 bytes; Linux only."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 2**10
    raise ValueError(f"{_STATUS} has no field {field!r}; choose VmRSS or VmHWM")


def _reset_mark() -> bool:
    """Set the kernel's high-water mark to what is resident now; False where it cannot be set."""
    if not _CLEAR.exists():
        return False
    before = peak_memory_mb()
    try:
        _CLEAR.write_text("5")
    except OSError:  # a sandbox may forbid it
        return False
    _largest_before_resets[0] = before
    return True
