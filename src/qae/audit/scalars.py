"""Scalar logs as metrics under one set of names: qae, verl, TRL, TensorBoard, wandb, CSV."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from qae.audit.events import tensorboard_scalars, wandb_history
from qae.records import ReadTally

Line = dict[str, Any]

# names of other programs -> ours; TRL's are ours already, after its "train/" is taken off
_OURS = {
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/pg_clipfrac": "clip_ratio/region_mean",
    "critic/score/mean": "outcome",
    "critic/rewards/mean": "reward",
    "response_length/mean": "completions/mean_length",
    "response_length/max": "completions/max_length",
    "response_length/clip_ratio": "completions/clipped_ratio",
    "timing_s/gen": "seconds/sample",
    "timing_s/update_actor": "seconds/update",
    "timing_s/step": "seconds/step",
    "learning_rate": "lr",
    "completion_length": "completions/mean_length",
}
_STEPS = ("train/global_step", "training/global_step", "global_step", "step", "_step")


def read_scalars(path: Path, tally: ReadTally) -> list[Line]:
    """The metrics in one scalar log, one dict a step, under our names.

    Args:
        path: metrics.jsonl, verl's file log, trainer_state.json, events.out.tfevents.*, run-*.wandb, or a CSV export.
        tally: counts lines and broken lines.

    Returns:
        Lines by step; values that are no finite numbers are None.
    """
    lines = list(_raw_lines(path, tally))
    # a trainer's own count, where it is logged, beats the logger's, which counts every call
    counts = [name for name in _STEPS if any(name in line for line in lines)]
    by_step: dict[int, Line] = {}
    for line in lines:
        step = _number(line.get(counts[0])) if counts else None
        if step is not None:
            merged = by_step.setdefault(int(step), {"step": int(step)})
            merged.update({our_name(name): _number(value) for name, value in line.items() if name not in _STEPS})
    return [by_step[step] for step in sorted(by_step)]


def our_name(name: str) -> str:
    """The name under which this project logs a quantity, or the name itself.

    Example:
        >>> our_name("actor/entropy"), our_name("train/completions/mean_length"), our_name("loss")
        ('entropy', 'completions/mean_length', 'loss')
    """
    return _OURS.get(name) or _OURS.get(name.removeprefix("train/")) or name.removeprefix("train/")


def _raw_lines(path: Path, tally: ReadTally) -> Iterable[Line]:
    if ".tfevents." in path.name:
        return ({"step": step, tag: value} for step, tag, value in tensorboard_scalars(path))
    if path.suffix == ".wandb":
        return wandb_history(path)
    if path.suffix == ".csv":
        return _csv_lines(path)
    if path.suffix == ".json":
        state = json.loads(path.read_text(encoding="utf-8"))
        return state.get("log_history", []) if isinstance(state, dict) else state
    return _jsonl_lines(path, tally)


def _jsonl_lines(path: Path, tally: ReadTally) -> Iterator[Line]:
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if text.isspace():
                continue
            tally.lines += 1
            try:
                line = json.loads(text)
            except ValueError:
                tally.skip(path, number)
                continue
            if not isinstance(line, dict):
                tally.skip(path, number)
            elif isinstance(line.get("data"), dict):  # verl's file log: {"step": 1, "data": {...}}
                yield {"step": line.get("step"), **cast(Line, line["data"])}
            else:
                yield cast(Line, line)


def _csv_lines(path: Path) -> Iterator[Line]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            line: Line = {}
            for name, value in row.items():
                # wandb's chart export: "run name - train/entropy", with further columns ending in __MIN and __MAX
                if name and not name.endswith(("__MIN", "__MAX")):
                    line[name.rsplit(" - ", 1)[-1] if " - " in name else "step" if name == "Step" else name] = value
            yield line


def _number(value: Any) -> float | None:
    try:
        x = float(value)
    except (TypeError, ValueError):
        return None
    return x if math.isfinite(x) else None
