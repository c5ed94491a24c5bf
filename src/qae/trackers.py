"""Metrics to TensorBoard, wandb, trackio and MLflow, under the names of metrics.jsonl.

One adapter each. The programs are optional and imported when one is asked for; where they write and to whose account
is theirs to know (WANDB_MODE, WANDB_PROJECT, TRACKIO_DIR, MLFLOW_TRACKING_URI, ...). A tracker that fails while a run
goes on is dropped with a warning: metrics.jsonl is the record, trackers are copies of it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = "qae"
MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
Numbers = dict[str, float]


class TrackerError(RuntimeError):
    """A tracker that was asked for cannot be used."""


class Tracker(NamedTuple):
    """One program's run, opened."""

    log: Callable[[int, Numbers], object]
    close: Callable[[], object]


class Trackers:
    """The trackers of one run.

    Example:
        >>> Trackers(["jsonl"], Path("runs/x"), {}).names
        []
    """

    def __init__(
        self,
        names: Sequence[str],
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        resumed_step: int | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Open them.

        Args:
            names: keys of `TRACKERS`; "jsonl" is the run's own record and needs none.
            run_dir: where TensorBoard writes; its name is the run's name.
            config: of the run, nested.
            resumed_step: the last step of a run that goes on.
            warn: told of a tracker that fails later.

        Raises:
            TrackerError: a package is missing, or the tracker refuses to start.
        """
        self._warn = warn
        self._open: dict[str, Tracker] = {}
        for name in names:
            if name == "jsonl":
                continue
            try:
                self._open[name] = TRACKERS[name](run_dir, config, resumed_step)
            except ModuleNotFoundError as error:
                raise _missing(name, error) from None
            except Exception as error:
                hint = "; without an account: WANDB_MODE=offline" if name == "wandb" else ""
                raise TrackerError(f"track={name} could not start: {error}{hint}") from error

    @property
    def names(self) -> list[str]:
        """Those that still take numbers."""
        return list(self._open)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Hand one line of metrics on.

        Args:
            metrics: as written to metrics.jsonl; whatever is no finite number is left out.
        """
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value) and name != "step"}
        self._each(lambda tracker: tracker.log(int(metrics["step"]), numbers))

    def close(self) -> None:
        """Close them."""
        self._each(lambda tracker: tracker.close())
        self._open.clear()

    def _each(self, act: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                act(tracker)
            except Exception as error:  # a run is worth more than its copies
                del self._open[name]
                self._warn(f"{name} takes no more metrics ({type(error).__name__}: {error}); metrics.jsonl goes on")


def check_packages(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not here, before anything is written.

    Args:
        names: keys of `TRACKERS`, or "jsonl".

    Raises:
        TrackerError: a package is missing.
    """
    for name in names:
        if name != "jsonl":
            try:
                import_module(MODULES[name])
            except ModuleNotFoundError as error:
                raise _missing(name, error) from None


def _missing(name: str, error: ModuleNotFoundError) -> TrackerError:
    return TrackerError(f"track={name} needs a package that is not here ({error}): pip install 'qae[{name}]'")


def tensorboard(run_dir: Path, config: Mapping[str, Any], resumed_step: int | None) -> Tracker:
    """Event files in the run directory; steps that a resumed run computes again replace the old ones."""
    purge = None if resumed_step is None else resumed_step + 1
    writer = import_module(MODULES["tensorboard"]).SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)
    writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in _flat(config).items()))

    def log(step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Tracker(log, writer.close)


def wandb(run_dir: Path, config: Mapping[str, Any], resumed_step: int | None) -> Tracker:
    """One run of the project in WANDB_PROJECT; a resumed run goes on in it."""
    run = import_module("wandb").init(
        project=os.environ.get("WANDB_PROJECT", PROJECT), name=run_dir.name, id=run_dir.name, resume="allow",
        dir=str(run_dir), config=dict(config),
    )  # fmt: skip
    # an evaluation and a training step share a step, and a resumed run goes back: wandb's own count allows neither
    run.define_metric("*", step_metric="step")
    return Tracker(lambda step, numbers: run.log({"step": step, **numbers}), run.finish)


def trackio(run_dir: Path, config: Mapping[str, Any], resumed_step: int | None) -> Tracker:
    """One run of the project in TRACKIO_PROJECT, on this machine unless trackio is told otherwise."""
    host = import_module("trackio")
    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    run = host.init(project=project, name=run_dir.name, resume="allow", config=_flat(config))
    return Tracker(lambda step, numbers: run.log(numbers, step=step), host.finish)


def mlflow(run_dir: Path, config: Mapping[str, Any], resumed_step: int | None) -> Tracker:
    """One run of the experiment in MLFLOW_EXPERIMENT_NAME. MLflow allows no @ in names: pass@1 is pass_at_1."""
    host = import_module("mlflow")
    host.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    kept = run_dir / "mlflow-run-id"
    known = kept.read_text().strip() if resumed_step is not None and kept.exists() else None
    run = host.start_run(run_id=known, run_name=run_dir.name)
    if known is None:
        kept.write_text(run.info.run_id)
        host.log_params({key: str(value)[:500] for key, value in _flat(config).items()})

    def log(step: int, numbers: Numbers) -> None:
        host.log_metrics({name.replace("@", "_at_"): value for name, value in numbers.items()}, step=step)

    return Tracker(log, host.end_run)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


TRACKERS = {"tensorboard": tensorboard, "wandb": wandb, "trackio": trackio, "mlflow": mlflow}
