"""What runs inside a grading process: limits on time and memory, then the verdict."""

import importlib
import logging
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from qae.rewards.compare import Verdict, formulas_in, judge, latex_of
from qae.rewards.number import Number
from qae.rewards.values import Formula, read_value

TIMEOUT = "timeout"
TIMEOUT_SIGNAL = getattr(signal, "SIGPROF", None)


def start(load: Callable[[], None], memory_mb: int) -> None:
    """Prepare a fresh process: load what it needs, so that no answer pays for it, then cap its memory.

    Args:
        load: imports what the tasks need.
        memory_mb: megabytes that the process may use beyond that (Linux).
    """
    load()
    sys.setrecursionlimit(3_000)
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if TIMEOUT_SIGNAL is not None:
        # its default action ends the process at once, even while one long C call holds the interpreter
        signal.signal(TIMEOUT_SIGNAL, signal.SIG_DFL)


def load_algebra() -> None:
    """Import computer algebra and parse one formula."""
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _symbolic().read_formula("x^2+1")


def check_gold(gold: str, cpu_seconds: float) -> bool:
    """Whether every formula of a gold answer can be read."""
    symbolic = _symbolic()
    with deadline(cpu_seconds):
        try:
            for formula in formulas_in(read_value(gold)):
                symbolic.read_formula(formula.latex)
        except (symbolic.Unreadable, MemoryError):
            return False
    return True


def check_answer(gold: str, answer: str, cpu_seconds: float) -> Verdict | Literal["timeout"]:
    """The verdict on an answer, for a gold answer that can be read; "timeout" if memory runs out."""
    symbolic = _symbolic()

    def same_formula(expected: Formula | Number, given: Formula | Number) -> bool:
        numbers = [value if isinstance(value, Number) else None for value in (expected, given)]
        try:
            return symbolic.same_formula(latex_of(expected), latex_of(given), *numbers)
        except MemoryError:
            raise
        except (Exception, RecursionError) as error:
            # sympy raises almost anything on formulas that it cannot handle: shown to be neither right nor wrong
            raise symbolic.Unreadable(answer) from error

    with deadline(cpu_seconds):
        try:
            return judge(gold, answer, same_formula)
        except symbolic.Unreadable:
            return "unparseable"
        except MemoryError:
            return TIMEOUT


def _symbolic() -> Any:
    """Computer algebra is imported here and not above: the parent process imports this module too."""
    return importlib.import_module("qae.rewards.symbolic")


@contextmanager
def deadline(cpu_seconds: float) -> Generator[None]:
    """End this process if the block takes more CPU time."""
    if TIMEOUT_SIGNAL is None:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
