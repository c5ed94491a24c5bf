"""Run directories as the report sees them: series, evaluations, the verdict on the entropy, arms of equal runs."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

import yaml

from qae.detect import Verdict, detect_from_metrics
from qae.records import BESIDES_THE_EXPERIMENT, ReadTally, read_metrics

Flat = dict[str, Any]
# runs that differ in nothing else are seeds of one arm
_NOT_THE_ARM = ("seed", "about", *BESIDES_THE_EXPERIMENT)


@dataclass(frozen=True)
class Run:
    """One run directory, read.

    Attributes:
        path: the directory.
        config: config.yaml as nested dicts; empty if it is missing or unreadable.
        train: the lines of steps, one a step, in order.
        evals: the lines of evaluations, one a step, in order.
        verdict: of the entropy detector.
        tally: lines read and broken in metrics.jsonl.
    """

    path: Path
    config: Flat
    train: list[Flat]
    evals: list[Flat]
    verdict: Verdict
    tally: ReadTally

    @property
    def name(self) -> str:
        """The run's name, or its directory's."""
        return str(self.config.get("name") or self.path.name)

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        return self.config.get("seed")

    def setting(self, key: str) -> Any:
        """The value of a dotted key of the config, None if absent."""
        value: Any = self.config
        for part in key.split("."):
            value = cast(Flat, value).get(part) if isinstance(value, dict) else None
        return value

    def values(self, key: str) -> list[float]:
        """The finite values of one training metric."""
        return [float(x) for line in self.train if is_number(x := line.get(key))]


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed only."""

    label: str
    runs: list[Run]


def read_run(run_dir: Path) -> Run:
    """Read a run directory.

    Args:
        run_dir: holds config.yaml or metrics.jsonl; a run that has just begun holds the first only.

    Returns:
        The run. A step that was written twice counts once, the later line wins.

    Raises:
        FileNotFoundError: there is neither.
        SchemaError: a newer qae wrote it.
    """
    if not any((run_dir / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        raise FileNotFoundError(
            f"{run_dir} is not a run directory: it has neither config.yaml nor metrics.jsonl; "
            "give the directory that `qae train` printed, or audit other programs' logs with `qae audit`"
        )
    tally = ReadTally()
    lines = read_metrics(run_dir, tally=tally)
    evals = {line["step"]: line for line in lines if any(key.startswith("eval/") for key in line)}
    train = {line["step"]: line for line in lines if not any(key.startswith("eval/") for key in line)}
    ordered = [train[step] for step in sorted(train)]
    return Run(
        path=run_dir,
        config=_read_config(run_dir / "config.yaml"),
        train=ordered,
        evals=[evals[step] for step in sorted(evals)],
        verdict=detect_from_metrics(ordered),
        tally=tally,
    )


def arms_of(runs: list[Run]) -> list[Arm]:
    """Put runs that differ only in their seed into one arm, and give each arm a label that tells it from the others.

    Args:
        runs: in the order in which they are to appear.

    Returns:
        The arms, in order of their first run.
    """
    together: dict[str, list[Run]] = {}
    for i, run in enumerate(runs):
        experiment = {k: v for k, v in run.config.items() if k not in _NOT_THE_ARM}
        key = json.dumps(experiment, sort_keys=True, default=str) if experiment else f"no config {i}"
        together.setdefault(key, []).append(run)
    groups = list(together.values())
    flat = [dict(_flatten(group[0].config)) for group in groups]
    one_name = len({group[0].name for group in groups}) == 1 and len(groups) > 1
    plain = [_label(group[0], with_name=not one_name) for group in groups]
    labels: list[str] = []
    for i, label in enumerate(plain):
        same = [j for j, other in enumerate(plain) if other == label]
        differing = sorted({k for j in same for k in flat[j] | flat[i] if flat[j].get(k) != flat[i].get(k)})
        differing = [k for k in differing if k.split(".")[0] not in _NOT_THE_ARM]
        told = ", ".join(f"{k.rsplit('.', 1)[-1]}={flat[i].get(k)}" for k in differing[:3])
        labels.append(f"{label}, {told}" if told else label)
    return [Arm(label, group) for label, group in zip(_distinct(labels), groups, strict=True)]


def series_of(run: Run, *, points: int) -> dict[str, list[float | None]]:
    """Every numeric training metric as a column, averaged over equal spans of steps where there are too many.

    Args:
        run: the run.
        points: most values a column.

    Returns:
        Columns by name, "step" among them, rounded to 5 significant digits; None where nothing was logged.
    """
    names = sorted({key for line in run.train for key, value in line.items() if is_number(value)} - {"schema"})
    span = max(1, math.ceil(len(run.train) / points))
    chunks = [run.train[i : i + span] for i in range(0, len(run.train), span)]
    columns: dict[str, list[float | None]] = {}
    for name in names:
        columns[name] = [_mean(line.get(name) for line in chunk) for chunk in chunks]
    columns["step"] = [float(chunk[-1]["step"]) for chunk in chunks]
    return columns


def rounded(x: float) -> float:
    """Five significant digits: more than a screen shows, a third of the bytes."""
    return float(f"{x:.5g}")


def _label(run: Run, *, with_name: bool) -> str:
    baseline, k = run.setting("algorithm.advantage.name"), run.setting("algorithm.advantage.k")
    if baseline is None:
        return run.name
    told = f"quantile K={k:g}" if baseline == "quantile" and is_number(k) else str(baseline)
    return f"{run.name}: {told}" if with_name else told


def _distinct(labels: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    found: list[str] = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return found


def _read_config(path: Path) -> Flat:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return cast(Flat, config) if isinstance(config, dict) else {}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flatten(cast(Flat, value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_number(x: Any) -> TypeGuard[float]:
    """A finite number, and no bool."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [float(x) for x in values if is_number(x)]
    return rounded(sum(numbers) / len(numbers)) if numbers else None
