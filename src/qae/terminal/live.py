"""The view for terminals: a panel that is drawn over itself, notes above it.

A thread of its own draws it, so that the clock moves while the trainer computes. Terminals reflow lines when they
are resized, which moves a drawn panel away from where it was: then the screen is cleared and the notes are
printed again.
"""

import threading
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from qae.terminal.plain import PHASES, eval_line, interval, speed
from qae.terminal.progress import Progress
from qae.terminal.text import duration, number, percent, shares, signed, sparkline

FRAMES_PER_SECOND = 4
WIDEST = 120
LABEL = 11
REGIMES = (("hard", "█", "magenta"), ("easy", "▓", "green"), ("flat", "░", "bright_black"))


class LiveView:
    """Draws the run's state over itself until it is closed."""

    def __init__(self, console: Console, progress: Progress | None = None) -> None:
        """Start drawing on `console`."""
        self.console = console
        self.progress = progress or Progress()
        self._said: list[Text] = []
        self._lock = threading.RLock()
        self._size = console.size
        self._live = self._new_live()
        self._closed = threading.Event()
        self._painter = threading.Thread(target=self._paint, name="qae-terminal", daemon=True)
        self._live.start(refresh=True)
        self._painter.start()

    def event(self, name: str, /, **data: Any) -> None:
        """Take in one event of the trainer."""
        with self._lock:
            self.progress.event(name, **data)
            if name == "eval":
                self.say(eval_line(data["metrics"]))
            elif name == "note":
                self.say(data["text"])
            elif name == "warning":
                self.say(f"warning: {data['text']}", style="yellow")

    def say(self, line: str, *, style: str = "") -> None:
        """Print one line above the panel."""
        with self._lock:
            self._said.append(Text(line, style=style))
            self.console.print(self._said[-1])

    def close(self) -> None:
        """Take the panel away and give the terminal back."""
        self._closed.set()
        if self._painter is not threading.current_thread():
            self._painter.join(timeout=2)
        with self._lock:
            self._live.stop()

    def _new_live(self) -> Live:
        return Live(
            get_renderable=self._panel, console=self.console, auto_refresh=False, transient=True,
            vertical_overflow="crop",
        )  # fmt: skip

    def _paint(self) -> None:
        while not self._closed.wait(1 / FRAMES_PER_SECOND):
            with self._lock:
                if self.console.size != self._size:
                    self._start_over()
                self._live.refresh()

    def _start_over(self) -> None:
        self._live.stop()
        self._size = self.console.size
        self.console.clear()
        for line in self._said[-self.console.height :]:
            self.console.print(line)
        self._live = self._new_live()
        self._live.start()

    def _panel(self) -> RenderableType:
        with self._lock:
            return panel(self.progress, self.console.width, self.console.height)


def panel(progress: Progress, width: int, height: int) -> RenderableType:
    """The state as lines of at most `width`, the most useful first where `height` is short."""
    width = min(width, WIDEST) - 1
    lines = [_steps(progress, width), _phase(progress, width)]
    if progress.history:
        lines += _measures(progress, width)
    return Group(Text(), *lines[: max(height - 2, 1)])


def _steps(progress: Progress, width: int) -> RenderableType:
    share = percent(progress.step / progress.steps) if progress.steps else ""
    times = f"{duration(progress.elapsed_seconds())} gone, {duration(progress.left_seconds())} left"
    return _line(
        "step",
        Text.assemble((f"{progress.step}/{progress.steps or '?'}", "bold"), f"  {share}"),
        ProgressBar(total=max(progress.steps, 1), completed=progress.step, complete_style="cyan"),
        Text(times, style="cyan"),
        width,
    )


def _phase(progress: Progress, width: int) -> RenderableType:
    verb, what = PHASES.get(progress.phase, (progress.phase, ""))
    seconds = progress.clock() - progress.phase_began
    total, done = progress.total, progress.done or 0
    far = f"{done:,}/{total:,} {what}" if total else ""
    bar = ProgressBar(total=total, completed=done, complete_style="blue") if total else Text(what)
    return _line("now", Text(verb), bar, Text(f"{far}  {duration(seconds)}".strip()), width)


def _line(label: str, first: Text, bar: RenderableType, last: Text, width: int) -> Table:
    grid = Table.grid(padding=(0, 1), pad_edge=False, expand=False)
    sides = (10, 14, 30)
    for side in (*sides[:2], width - sum(sides) - 3, sides[2]):
        grid.add_column(width=side, no_wrap=True, overflow="crop")
    grid.add_row(Text(label, style="bright_black"), first, bar, last)
    return grid


def _measures(progress: Progress, width: int) -> list[RenderableType]:
    latest = progress.latest
    clipped = f"low {percent(latest('clip_ratio/low_mean'))}  high {percent(latest('clip_ratio/high_mean'))}"
    rows: list[tuple[str, Text]] = [
        ("pass rate", _curve(progress, "outcome", "", width)),
        ("entropy", _curve(progress, "entropy", " nats", width)),
        ("groups", _regimes(progress, width)),
        ("zero adv.", Text(f"{percent(latest('advantage/zero_frac'))} of rows{_kept(latest('rows/kept_frac'))}")),
        ("clipped", Text(f"{clipped}    gradient norm {number(latest('grad_norm'))}")),
        ("speed", Text(f"{speed(progress.history[-1])} tokens/s    {_step_seconds(progress)}")),
    ]  # fmt: skip
    if progress.evals:
        rows.insert(2, ("held-out", _held_out(progress)))
    return [_row(label, value, width) for label, value in rows]


def _row(label: str, value: Text, width: int) -> Text:
    line = Text.assemble((f"{label:<{LABEL}}", "bright_black"), value)
    line.truncate(width)
    return line


def _kept(kept: float | None) -> str:
    return "" if kept is None else f"    {percent(kept)} of rows in the update"


def _curve(progress: Progress, name: str, unit: str, width: int) -> Text:
    values = progress.series(name)
    if not values:
        return Text("-")
    change = progress.trend(name)
    between = f"  {number(min(values))} to {number(max(values))}"
    moved = "" if change is None else f"  {signed(change)} in 10 steps"
    room = max(8, min(60, width - LABEL - 12 - len(between) - len(moved)))
    text = Text.assemble((f"{number(values[-1])}{unit}".ljust(12), "bold"), (sparkline(values, room), "cyan"))
    return text.append(between, style="bright_black").append(moved)


def _regimes(progress: Progress, width: int) -> Text:
    fractions = [progress.latest(f"regime/{name}_frac") or 0.0 for name, _, _ in REGIMES]
    text = Text()
    for (_, block, style), cells in zip(REGIMES, shares(fractions, max(10, min(36, width - 50))), strict=True):
        text.append(block * cells, style=style)
    for (name, _, style), fraction in zip(REGIMES, fractions, strict=True):
        text.append(f"  {name} ", style=style).append(percent(fraction))
    return text


def _step_seconds(progress: Progress) -> str:
    parts = ", ".join(
        f"{name} {seconds:.1f}"
        for name in ("sample", "grade", "update")
        if (seconds := progress.latest(f"seconds/{name}")) is not None
    )
    return f"step {progress.latest('seconds/step') or 0.0:.1f} s ({parts})"


def _held_out(progress: Progress) -> Text:
    first, last = progress.evals[0], progress.evals[-1]
    text = Text.assemble("pass@1 ", (interval(last), "bold"), f" after step {last['step']}")
    return text if last is first else text.append(f", was {number(first.get('eval/pass@1'))}")
