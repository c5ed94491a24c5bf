"""The view for logs and pipes: one short line a step, ASCII only, a sign of life when a phase takes long."""

import threading
from typing import Any

from rich.console import Console

from qae.terminal.progress import Metrics, Progress
from qae.terminal.text import duration, number, percent

HEADING_EVERY = 25
HEARTBEAT_SECONDS = 20.0
COLUMNS = (
    ("step", 11), ("pass", 6), ("entropy", 8), ("hard", 5), ("easy", 5), ("flat", 5), ("zero", 5),
    ("clip -/+", 12), ("grad", 8), ("tok/s", 7), ("left", 6),
)  # fmt: skip


class PlainView:
    """Prints lines as events come."""

    def __init__(self, console: Console, progress: Progress | None = None) -> None:
        """Print to `console`."""
        self.console = console
        self.progress = progress or Progress()
        self._lines = 0
        self._loading = False
        self._last_line_at = self.progress.clock()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="qae-terminal", daemon=True)
        self._heart.start()

    def event(self, name: str, /, **data: Any) -> None:
        """Take in one event of the trainer."""
        with self._lock:
            self.progress.event(name, **data)
            self._show(name, data)

    def _show(self, name: str, data: dict[str, Any]) -> None:
        if name == "step":
            self._step(data["metrics"])
        elif name == "eval":
            self.say(eval_line(data["metrics"]))
            self._lines = 0
        elif name == "note":
            self.say(data["text"])
        elif name == "warning":
            self.say(f"warning: {data['text']}")
        elif name == "phase" and data["phase"] == "load" and not self._loading:
            self._loading = True
            self.say("loading torch and the policy")

    def close(self) -> None:
        """No more signs of life."""
        self._closed.set()
        self._heart.join(timeout=2)

    def say(self, line: str) -> None:
        """Print one line as it is."""
        with self._lock:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._last_line_at = self.progress.clock()

    def sign_of_life(self) -> None:
        """Say what the run is doing if nothing was said for a while."""
        with self._lock:
            if self.progress.clock() - self._last_line_at > HEARTBEAT_SECONDS:
                self.say(f"  {doing(self.progress)}")

    def _beat(self) -> None:
        while not self._closed.wait(1.0):
            self.sign_of_life()

    def _step(self, metrics: Metrics) -> None:
        if self._lines % HEADING_EVERY == 0:
            self.say(_row(name for name, _ in COLUMNS))
        self._lines += 1
        get = metrics.get
        self.say(
            _row([
                f"{metrics['step']}/{self.progress.steps}",
                number(get("outcome")),
                number(get("entropy"), 4),
                percent(get("regime/hard_frac")),
                percent(get("regime/easy_frac")),
                percent(get("regime/flat_frac")),
                percent(get("advantage/zero_frac")),
                f"{percent(get('clip_ratio/low_mean'))}/{percent(get('clip_ratio/high_mean'))}",
                number(get("grad_norm")),
                speed(metrics),
                duration(self.progress.left_seconds()),
            ])
        )  # fmt: skip


def _row(cells: Any) -> str:
    return "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


def speed(metrics: Metrics) -> str:
    """Tokens sampled per second of the whole step."""
    tokens, seconds = metrics.get("tokens/sampled"), metrics.get("seconds/step")
    return f"{tokens / seconds:,.0f}" if tokens and seconds else "-"


def eval_line(metrics: Metrics) -> str:
    """An evaluation in one line."""
    samples = metrics.get("eval/samples")
    parts = [f"step {metrics['step']} held-out: pass@1 {interval(metrics)}"]
    if samples and samples > 1:
        parts.append(f"pass@{samples:.0f} {number(metrics.get(f'eval/pass@{samples:.0f}'))}")
    parts.append(f"entropy {number(metrics.get('eval/entropy'))}")
    return ", ".join(parts)


def interval(metrics: Metrics) -> str:
    """pass@1 with its interval, where there is one."""
    low, high = metrics.get("eval/pass@1_low"), metrics.get("eval/pass@1_high")
    value = number(metrics.get("eval/pass@1"))
    return value if low is None or high is None else f"{value} [{number(low)}, {number(high)}]"


# What each phase does, and to what.
PHASES = {
    "load": ("loading", "torch and the policy"),
    "launch": ("starting", "verl and Ray, then evaluating before the first step"),
    "sample": ("sampling", "completions"),
    "grade": ("grading", "completions"),
    "update": ("updating", "updates"),
    "eval": ("evaluating", "completions"),
    "checkpoint": ("saving", "a checkpoint"),
}


def doing(progress: Progress) -> str:
    """What the run is doing now, and how far it is with it."""
    verb, what = PHASES.get(progress.phase, (progress.phase, ""))
    at = f"step {progress.step + 1}: " if progress.phase in ("sample", "grade", "update") else ""
    far = f"{progress.done}/{progress.total} " if progress.total else ""
    return f"{at}{verb} {far}{what}, {duration(progress.clock() - progress.phase_began)}"
