"""What benchmark scripts share: where they ran, medians, one JSON object, and how to be left out."""

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

# As in automake: `make bench` reports a script that ends with this code as left out, not as failed.
SKIPPED = 77


def parser(doc: str | None, *, alternations: int = 5) -> argparse.ArgumentParser:
    """A parser with `--alternations` and `--out`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--alternations", type=int, default=alternations)
    made.add_argument("--out", type=Path, help="also write the JSON there")
    return made


def add_trl(made: argparse.ArgumentParser) -> None:
    """`--trl-python`, by default $TRL_PYTHON."""
    made.add_argument(
        "--trl-python",
        metavar="PYTHON",
        default=os.environ.get("TRL_PYTHON") or None,
        help="interpreter of an environment that has trl 1.16 and qae; default $TRL_PYTHON",
    )


def environment(*packages: str) -> dict[str, Any]:
    """Versions, processor, cores, and how busy the machine is."""
    return {
        "versions": {"python": platform.python_version()} | {p: v for p in packages if (v := _version(p))},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def finish(result: dict[str, Any], out: Path | None) -> None:
    """Print the result, and write it too if asked to."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


def matrix_gflops(dtype: Any, *, rows: int, inner: int, outer: int, seconds: float = 0.5) -> float:
    """10^9 operations a second of a product [rows inner] x [inner outer] on the threads in use: the best call."""
    import torch

    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, outer).to(dtype)
    best, began = math.inf, perf_counter()
    while perf_counter() - began < seconds:
        started = perf_counter()
        a @ b
        best = min(best, perf_counter() - started)
    return 2 * rows * inner * outer / best / 1e9


def skip(why: str) -> NoReturn:
    """Leave this script out of `make bench`."""
    print(f"skipped: {why}", file=sys.stderr)
    raise SystemExit(SKIPPED)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, greatest and number of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """The ratios of neighbouring measurements."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def give_back() -> None:
    """Return freed memory to the kernel, where that can be asked for."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
