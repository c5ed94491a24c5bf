"""What `qae eval` shows while it draws: a bar for each set in a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_EVERY_SECONDS = 20.0


class EvalView:
    """Watches an evaluation: `watch` and `within` are its two observers."""

    def __init__(self, console: Console) -> None:
        """Show on `console`."""
        self.console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("completions"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._name, self._finished, self._total = "", 0, 0
        self._last_line = ""
        self._last_line_at = -LINE_EVERY_SECONDS

    def __enter__(self) -> "EvalView":
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self._bars.stop()

    def say(self, line: str) -> None:
        """Show one line."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def watch(self, name: str, finished: int, total: int) -> None:
        """So many samples of a set are drawn and on disk."""
        self._name, self._finished, self._total = name, finished, total
        self._show(finished)

    def within(self, finished: int, total: int, tokens: int) -> None:
        """So many of the batch in progress are drawn."""
        self._show(min(self._finished + finished, self._total))

    def _show(self, finished: int) -> None:
        if self.console.is_terminal:
            if self._name not in self._tasks:
                self._tasks[self._name] = self._bars.add_task(self._name, total=self._total)
            self._bars.update(self._tasks[self._name], completed=finished)
        elif finished == self._total or time.monotonic() - self._last_line_at > LINE_EVERY_SECONDS:
            line = f"{self._name}: {finished}/{self._total} completions"
            if line != self._last_line:
                self._last_line, self._last_line_at = line, time.monotonic()
                self.say(line)
