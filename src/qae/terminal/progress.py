"""What a run has told so far, as plain numbers: the one state that both views draw from."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qae.records import read_metrics

Metrics = Mapping[str, Any]
Phase = Literal["load", "sample", "grade", "update", "eval", "checkpoint"]

# Phases whose time belongs to a step; an evaluation is forecast on its own.
STEP_PHASES = ("sample", "grade", "update")
FORECAST_WINDOW = 20


@dataclass
class Progress:
    """Reduces the trainer's events to what a view shows.

    Attributes:
        clock: seconds, from any start.
        steps: how many steps the run will have made at its end.
        resumed_step: the step that it continues from.
        run_dir: where it writes.
        history: metrics of each step, in order.
        evals: metrics of each evaluation, in order.
        phase: what the run is doing now, with `done` of `total` and the tokens so far.
        summary: what the run said at its end: before, after, run_dir, checkpoint, seconds.
    """

    clock: Callable[[], float] = time.monotonic
    steps: int = 0
    resumed_step: int = 0
    run_dir: Path | None = None
    history: list[Metrics] = field(default_factory=list[Metrics])
    evals: list[Metrics] = field(default_factory=list[Metrics])
    phase: str = "load"
    done: int | None = None
    total: int | None = None
    tokens: int | None = None
    summary: Metrics = field(default_factory=dict[str, Any])
    began: float = 0.0
    phase_began: float = 0.0
    _eval_every: int = 0
    _evaluates: bool = True
    _step_began: float | None = None
    _step_seconds: list[float] = field(default_factory=list[float])
    _eval_seconds: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        """Start the clock."""
        self.began = self.phase_began = self.clock()

    @property
    def step(self) -> int:
        """The last finished step."""
        return self.history[-1]["step"] if self.history else self.resumed_step

    def event(self, name: str, /, **data: Any) -> None:
        """Take in one event of the trainer; names that say nothing about progress are ignored."""
        if name == "start":
            self._start(**data)
        elif name == "phase":
            self._enter(**data)
        elif name == "step":
            self.history.append(data["metrics"])
            if self._step_began is not None:
                self._step_seconds.append(self.clock() - self._step_began)
            self._step_began = None
        elif name == "eval":
            self.evals.append(data["metrics"])
            if self.phase == "eval":
                self._eval_seconds.append(self.clock() - self.phase_began)
        elif name == "end":
            self.summary = data

    def _start(self, config: Any, run_dir: Path, resumed_step: int | None = None, **_: Any) -> None:
        self.steps, self.run_dir, self.resumed_step = config.steps, Path(run_dir), resumed_step or 0
        self._eval_every, self._evaluates = config.eval.every, config.eval.problems > 0
        if self.resumed_step:
            lines = [line for line in read_metrics(self.run_dir) if line["step"] <= self.resumed_step]
            self.evals = [line for line in lines if is_eval(line)]
            self.history = [line for line in lines if not is_eval(line)]

    def _enter(
        self,
        phase: str,
        done: int | None = None,
        total: int | None = None,
        tokens: int | None = None,
        **_: Any,
    ) -> None:
        if phase != self.phase:
            self.phase, self.phase_began = phase, self.clock()
        if phase in STEP_PHASES and self._step_began is None:
            self._step_began = self.clock()
        self.done, self.total, self.tokens = done, total, tokens

    def elapsed_seconds(self) -> float:
        """Seconds since this process started the run."""
        return self.clock() - self.began

    def left_seconds(self) -> float | None:
        """Forecast from the last steps and evaluations; None before the first step has ended."""
        if not self._step_seconds:
            return None
        recent = self._step_seconds[-FORECAST_WINDOW:]
        a_step = sum(recent) / len(recent)
        left = (self.steps - self.step) * a_step
        if self._step_began is not None:
            left -= min(self.clock() - self._step_began, a_step)
        if self._evaluates and self._eval_seconds:
            left += self._evals_left() * sum(self._eval_seconds) / len(self._eval_seconds)
        return max(left, 0.0)

    def _evals_left(self) -> int:
        due = {self.steps} | (set(range(0, self.steps, self._eval_every)) if self._eval_every else set[int]())
        last = self.evals[-1]["step"] if self.evals else -1
        return sum(step > last for step in due)

    def series(self, name: str) -> list[float]:
        """The values of one metric over the steps, where it has one."""
        return [value for line in self.history if (value := line.get(name)) is not None]

    def latest(self, name: str) -> float | None:
        """The last step's value of one metric."""
        return self.history[-1].get(name) if self.history else None

    def trend(self, name: str, window: int = 10) -> float | None:
        """Mean of the last `window` steps minus the mean of those before; None before there are two windows."""
        values = self.series(name)[-2 * window :]
        if len(values) < 2 * window:
            return None
        return (sum(values[window:]) - sum(values[:window])) / window


def is_eval(line: Metrics) -> bool:
    """Whether a metrics line is an evaluation's."""
    return any(name.startswith("eval/") for name in line)
