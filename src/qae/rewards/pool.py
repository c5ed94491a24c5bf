"""Processes that may be killed at any moment without losing an answer."""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from qae.rewards.worker import TIMEOUT, TIMEOUT_SIGNAL, load_algebra, start

WALL_FACTOR = 12
"""Wall-clock backstop in multiples of the CPU deadline: a busy machine must not change verdicts."""

_MOST_DEATHS = 3
_MOST_REBUILDS = 5
_TASKS_PER_WORKER = 5_000
_main_lock = threading.Lock()


class KillablePool:
    """Runs functions in processes that are killed at a deadline of CPU time, with a wall-clock backstop.

    A task whose process dies for another reason (killed by hand, out of memory) is run again, up to three
    times. Processes start at the first task, are renewed every 5,000 tasks, and never import the user's main
    module, so a script needs no `if __name__ == "__main__"`.

    Args:
        workers: number of processes.
        timeout_seconds: CPU time of a task.
        memory_mb: memory of a process beyond its start (Linux).
        load: imports what the tasks need when a process starts; importable by name.
    """

    def __init__(
        self,
        workers: int,
        timeout_seconds: float,
        memory_mb: int,
        load: Callable[[], None] = load_algebra,
    ):
        self._workers = workers
        self._timeout_seconds = timeout_seconds
        self._memory_mb = memory_mb
        self._load = load
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._owner = 0

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`function(*task, timeout_seconds)` for each task, in order; "timeout" for one that was killed.

        Args:
            function: importable by name.
            tasks: arguments of each call.

        Returns:
            One result per task.

        Raises:
            RuntimeError: if the processes cannot be kept alive.
        """
        if not tasks:
            return []
        results: list[Any] = [None] * len(tasks)
        deaths = [0] * len(tasks)
        left = list(range(len(tasks)))
        for _ in range(_MOST_REBUILDS):
            pool = self._ready()
            try:
                while left:
                    futures = [(i, self._schedule(pool, function, tasks[i])) for i in left]
                    left = [i for i, future in futures if not self._finished(i, future, results, deaths)]
                return results
            except (BrokenProcessPool, CancelledError, _Stalled):
                left = [i for i in left if results[i] is None]
                self._discard(pool)
        raise RuntimeError(
            f"grading processes died {_MOST_REBUILDS} times with {len(left)} answers left; is there memory for "
            f"{self._workers} processes of about {200 + self._memory_mb} MB?"
        )

    def close(self) -> None:
        """End the processes; the next task starts new ones."""
        if self._pool is not None:
            self._discard(self._pool)

    def _schedule(self, pool: ProcessPool, function: Callable[..., Any], task: tuple[Any, ...]) -> ProcessFuture[Any]:
        try:
            wall = self._timeout_seconds * WALL_FACTOR
            return pool.schedule(function, args=(*task, self._timeout_seconds), timeout=wall)
        except RuntimeError as error:
            # another thread found the pool broken and closed it
            raise BrokenProcessPool(str(error)) from error

    def _finished(self, i: int, future: ProcessFuture[Any], results: list[Any], deaths: list[int]) -> bool:
        """Store a result; False if the task has to be run again."""
        try:
            results[i] = self._result(future)
        except TimeoutError:
            results[i] = TIMEOUT
        except ProcessExpired as death:
            deaths[i] += 1
            if (TIMEOUT_SIGNAL is not None and death.exitcode == -TIMEOUT_SIGNAL) or deaths[i] == _MOST_DEATHS:
                results[i] = TIMEOUT
        return results[i] is not None

    def _result(self, future: ProcessFuture[Any]) -> Any:
        # 30 seconds for a process to start; tasks of other threads may be in front, so only a standstill counts
        patience = self._timeout_seconds * WALL_FACTOR + 30
        while True:
            before = _done
            try:
                value = future.result(timeout=patience)
                _count_done()
                return value
            except TimeoutError:
                if future.done():
                    raise
                if _done == before:
                    raise _Stalled from None

    def _ready(self) -> ProcessPool:
        with self._lock:
            if self._pool is None or self._owner != os.getpid():
                self._pool = ProcessPool(
                    max_workers=self._workers, max_tasks=_TASKS_PER_WORKER, initializer=start,
                    initargs=(self._load, self._memory_mb), context=_Context(),
                )  # fmt: skip
                self._owner = os.getpid()
                # a pool that nobody closed is ended before the interpreter is, or its processes complain on the way
                weakref.finalize(self, _end, self._pool, self._owner)
            return self._pool

    def _discard(self, pool: ProcessPool) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        _end(pool, os.getpid())


def _end(pool: ProcessPool, owner: int) -> None:
    if owner == os.getpid():
        pool.stop()
        pool.join()


class _Stalled(Exception):
    """No task has ended for longer than any task may take."""


_done = 0


def _count_done() -> None:
    global _done
    _done += 1


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _main_hidden():
            return SpawnProcess._Popen(process_obj)  # pyright: ignore


class _Context(SpawnContext):
    Process = _Process  # pyright: ignore


@contextmanager
def _main_hidden() -> Generator[None]:
    """Let a spawned process find no main module: it would run an unguarded script a second time."""
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
