"""From run directories to one record of a study, small enough to commit, and from that record to its answers."""

import json
import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import yaml

from qae.detect import detect_from_metrics
from qae.evaluation.estimators import pass_at_k
from qae.records import Record, atomic_write, read_metrics
from qae.study.plan import Question, StudyConfig
from qae.study.runner import RunState
from qae.study.statistics import Difference, compare, crossed_interval, judge
from qae.study.worker import FINISHED
from qae.trainer.keys import ConfigError

SCHEMA = 1
CURVE_POINTS = 40
COSTS = ("tokens", "seconds")
# Means over a run's steps that say how an arm works.
MEANS = (
    "advantage/zero_frac", "advantage/positive_frac", "advantage/negative_frac", "tokens/kept_frac", "grad_norm",
    "clip_ratio/low_mean", "clip_ratio/high_mean", "frac_reward_zero_std", "completions/mean_length",
)  # fmt: skip


def record_of(config: StudyConfig, states: Sequence[RunState], others: Sequence[Record] = ()) -> Record:
    """The record of a study: what was asked, what its finished runs measured, and the answers.

    Args:
        config: the study.
        states: its runs; those that are not finished are counted and left out.
        others: runs of a kept record that are planned no longer, from `adopt`: kept, and compared with nothing.
    """
    finished = [state for state in states if state.state == "finished"]
    runs = [state.kept or run_record(state, config.metrics) for state in finished]
    return answered({
        "schema": SCHEMA,
        "study": config.model_dump(mode="json"),
        "planned": len(states),
        "runs": runs,
        "unplanned": list(others),
    })  # fmt: skip


def answered(record: Record) -> Record:
    """The record with its comparisons and answers computed from its runs, again if they are there."""
    config = StudyConfig.model_validate(record["study"])
    runs: list[Record] = record["runs"]
    comparisons = [
        line
        for block in config.blocks
        for metric in config.metrics
        for line in _compare_block(config, runs, block, metric)
    ]
    answers = [_answer(config, runs, comparisons, question) for question in config.questions]
    return record | {"comparisons": comparisons, "answers": answers, "cells": _cells(config, runs)}


def adopt(states: Sequence[RunState], record: Record) -> list[Record]:
    """Count the runs of a kept summary as finished where they are not there.

    So a study goes on from its summary on a machine that does not have the runs.

    Returns:
        The record's runs that are planned no longer, which are kept all the same.

    Raises:
        ConfigError: a kept run had other settings than the one now planned.
    """
    kept = {(run["block"], run["arm"], run["seed"]): run for run in (*record["runs"], *record.get("unplanned", ()))}
    for state in states:
        run = state.run
        found = kept.pop((run.block, run.arm, run.seed), None)
        if found is None or state.state == "finished":
            continue  # one that was only begun here is finished there
        if found["settings"] != run.settings:
            raise ConfigError(
                f"the kept summary's {run.label} was made with other settings than it has now: put the settings back, "
                "or move summary.json away to do its runs again"
            )
        _count(state, found)
    return list(kept.values())


def share(config: StudyConfig, states: Sequence[RunState], record: Record) -> None:
    """Count runs of another study as finished where one planned here has the same whole configuration.

    The kept run says whose it is. A study that measures less than this one shares nothing.

    Args:
        config: this study.
        states: its runs.
        record: the other study's, from `read_record`.
    """
    if not set(config.metrics) <= set(record["study"]["metrics"]):
        return
    made = {run["settings"]: run for run in record["runs"]}
    for state in states:
        run, found = state.run, made.get(state.run.settings)
        if found is not None and state.state != "finished":
            cell = {"arm": run.arm, "block": run.block, "seed": run.seed}
            _count(state, {"from": record["study"]["name"]} | found | cell)


def _count(state: RunState, kept: Record) -> None:
    state.state, state.kept = "finished", kept
    state.step, state.pass_rate = kept["steps"], (kept["eval"].get("eval/pass@1") or [None])[-1]


def run_record(state: RunState, metrics: Sequence[str]) -> Record:
    """What is kept of one run."""
    lines = read_metrics(state.directory)
    evaluations = [line for line in lines if any(key.startswith("eval/") for key in line)]
    train = [line for line in lines if line not in evaluations]
    verdict = detect_from_metrics(train)
    ended = json.loads((state.directory / FINISHED).read_text(encoding="utf-8"))
    about = yaml.safe_load((state.directory / "config.yaml").read_text(encoding="utf-8"))["about"]
    last = evaluations[-1] if evaluations else {}
    stride = max(1, -(-len(train) // CURVE_POINTS))
    samples = last.get("eval/samples", 0)
    return {
        "arm": state.run.arm,
        "block": state.run.block,
        "seed": state.run.seed,
        "settings": state.run.settings,
        "policy": Path(state.run.config.policy.path).name,  # a kept record names no directory of a machine
        "about": {key: about.get(key) for key in ("qae", "torch", "commit")},
        "ended": ended["ended"],
        "steps": train[-1]["step"] if train else 0,
        "minutes": _rounded(lines[-1].get("seconds", 0.0) / 60) if lines else None,
        "entropy_verdict": verdict.kind,
        "entropy_onset": verdict.onset_step,
        "entropy_alarm": verdict.alarm_step,
        "eval": {
            "step": [line["step"] for line in evaluations],
            "tokens": [_total(train, line["step"], "tokens/updated") for line in evaluations],
            "seconds": [_rounded(_total(train, line["step"], "seconds/step")) for line in evaluations],
            **{metric: [_rounded(line.get(metric)) for line in evaluations] for metric in metrics},
        },
        "entropy": {
            "step": [line["step"] for line in train[::stride]],
            "nats": [_rounded(line.get("entropy")) for line in train[::stride]],
        },
        "means": {key: _rounded(_mean([line.get(key) for line in train])) for key in MEANS},
        "samples": samples,
        "problems": zlib.crc32(" ".join(sorted(last.get("eval/rates", {}))).encode()),
        "correct": [round(rate * samples) for _, rate in sorted(last.get("eval/rates", {}).items())],
    }


def write_record(record: Record, path: Path) -> None:
    """One line a run, so that a change of one run is a change of one line."""
    lists = [key for key in ("runs", "unplanned", "comparisons", "answers", "cells") if record.get(key)]
    head = {key: value for key, value in record.items() if key not in lists}
    parts = [json.dumps(head)[:-1]]
    for key in lists:
        items = ",\n".join(json.dumps(item, separators=(",", ":")) for item in record[key])
        parts.append(f'"{key}": [\n{items}\n]')
    atomic_write(path, ",\n".join(parts) + "}\n")


def read_record(path: Path) -> Record:
    """A kept record, with its answers computed anew.

    Raises:
        ValueError: it is no record of a study, or a newer qae wrote it.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        record, why = None, f" ({error})"
    else:
        why = ""
    if not isinstance(record, dict) or "study" not in record:
        raise ValueError(f"{path} is no summary of a study{why}; give the summary.json that `qae study` wrote")
    if record.get("schema", 0) > SCHEMA:
        raise ValueError(f"{path} was written by a newer qae; upgrade to read it")
    return answered(record)


def _compare_block(config: StudyConfig, runs: Sequence[Record], block: str, metric: str) -> list[Record]:
    """One line for each arm of a block but the baseline, corrected for all arms planned there."""
    treated = [arm for arm in config.arms if arm != config.baseline and config.seeds_of(arm, block)]
    base = _by_seed(runs, config.baseline, block)
    pairs = {arm: _pairs(base, _by_seed(runs, arm, block), metric) for arm in treated}
    found = compare(
        {arm: [b - a for a, b in values.values()] for arm, values in pairs.items()}, comparisons=len(treated)
    )
    return [
        {"block": block, "arm": arm, "against": config.baseline}
        | _judged(config, metric, difference, (config.baseline, block), (arm, block), runs)
        for arm, difference in found.items()
    ]


# arm, block
Cell = tuple[str, str]


def _judged(
    config: StudyConfig, metric: str, difference: Difference, base: Cell, treated: Cell, runs: Sequence[Record]
) -> Record:
    """A difference between two cells in figures and words."""
    decision, first, second = config.decision, _by_seed(runs, *base), _by_seed(runs, *treated)
    pairs = _pairs(first, second, metric)
    planned = min(config.seeds_of(*base), config.seeds_of(*treated))
    kind, words = judge(difference, planned=planned, margin=decision.margins.get(metric), alpha=decision.alpha)
    numbers = {key: _rounded(value) for key, value in asdict(difference).items() if key != "values"}
    return {
        "metric": metric,
        "seeds": list(pairs),
        "base": _rounded(statistics.fmean(a for a, _ in pairs.values())),
        **numbers,
        "values": [_rounded(value) for value in difference.values],
        "by_policy": _by_policy(first, pairs),
        **{f"at_equal_{cost}": _at_equal(first, second, list(pairs), metric, cost) for cost in COSTS},
        "kind": kind,
        "words": words,
        **_over_problems([first[seed] for seed in pairs], [second[seed] for seed in pairs], metric),
    }


def _by_policy(runs: Mapping[int, Record], pairs: Mapping[int, tuple[float, float]]) -> dict[str, float | None]:
    """Initial policy -> mean difference of its seeds: seeds that share one are not independent."""
    policies = {seed: runs[seed]["policy"] for seed in pairs}
    return {
        policy: _rounded(statistics.fmean(b - a for seed, (a, b) in pairs.items() if policies[seed] == policy))
        for policy in dict.fromkeys(policies.values())
    }


def _at_equal(
    base: Mapping[int, Record], own: Mapping[int, Record], seeds: Sequence[int], metric: str, cost: str
) -> float | None:
    """Mean difference where the baseline has cost as much as the treatment has at its end.

    Between two of its evaluations the baseline's value is on the line between them; a baseline that never came to cost
    as much counts with its end.
    """
    found = [_end(own[seed], metric) for seed in seeds]
    reached = [_at(base[seed]["eval"], metric, cost, own[seed]["eval"][cost][-1]) for seed in seeds]
    pairs = [(a, b) for a, b in zip(reached, found, strict=True) if a is not None and b is not None]
    return _rounded(statistics.fmean(b - a for a, b in pairs)) if pairs else None


def _at(evaluations: Record, metric: str, cost: str, place: float) -> float | None:
    points = [(x, y) for x, y in zip(evaluations[cost], evaluations.get(metric, []), strict=False) if y is not None]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= place < x1:
            return y0 + (y1 - y0) * (place - x0) / (x1 - x0)
    return points[-1][1] if points else None


def _answer(config: StudyConfig, runs: Sequence[Record], comparisons: Sequence[Record], question: Question) -> Record:
    metric = question.metric or config.decision.metric
    against = question.against or config.baseline
    block, against_block = config.block_of(question), question.against_block or config.block_of(question)
    if "best" in (block, against_block):
        block, against_block = _best(config, runs, question.arm, block), _best(config, runs, against, against_block)
    asked = {"ask": question.ask, "expect": question.expect, "why": question.why, "metric": metric, "arm": question.arm}
    asked |= {"block": block, "against": against, "against_block": against_block}
    planned = next(
        (
            line
            for line in comparisons
            if (line["arm"], line["block"], line["metric"], line["against"]) == (question.arm, block, metric, against)
            and block == against_block
        ),
        None,
    )
    if planned is None:
        base, own = (against, against_block), (question.arm, block)
        pairs = _pairs(_by_seed(runs, *base), _by_seed(runs, *own), metric)
        if "best" in (block, against_block) or not pairs:
            return asked | {"kind": "not run", "answer": "not run yet"}
        difference = compare({"": [b - a for a, b in pairs.values()]})[""]
        planned = _judged(config, metric, difference, base, own, runs)
    kept = {key: planned[key] for key in ("kind", "words", "mean", "low", "high", "p", "p_holm", "values")}
    return asked | kept | {"answer": _spoken(question.expect, planned["kind"])}


def _spoken(expected: str, kind: str) -> str:
    """The answer in a few words, against what was expected."""
    if kind in ("open", "not run"):
        return kind if kind == "open" else "not run yet"
    hint, side = kind.startswith("hint"), kind.removeprefix("hint ")
    found = "no difference" if side == "same" else side
    if expected == "nothing":
        return f"hint: {found}" if hint else found
    agrees = "as expected" if side == expected else "against the expectation"
    return f"{'hint, ' if hint else ''}{agrees}: {found}"


def _best(config: StudyConfig, runs: Sequence[Record], arm: str, block: str) -> str:
    """The block itself, or the arm's best one by the deciding metric's mean over the seeds that all blocks have.

    It stays `best` until every planned run of the arm is there.
    """
    if block != "best":
        return block
    found = {name: _by_seed(runs, arm, name) for name in config.blocks if config.seeds_of(arm, name)}
    if not found or any(len(own) < config.seeds_of(arm, name) for name, own in found.items()):
        return block
    common = set[int].intersection(*(set(own) for own in found.values()))
    sign = 1 if config.decision.better == "higher" else -1

    def mean(name: str) -> float:
        value = _mean([_end(found[name][seed], config.decision.metric) for seed in common])
        return -float("inf") if value is None else sign * value

    return max(found, key=mean)


def _cells(config: StudyConfig, runs: Sequence[Record]) -> list[Record]:
    """One line for each arm and block: means over its seeds at the end, what it cost, how its entropy went."""
    found: list[Record] = []
    for block in config.blocks:
        for arm in config.arms:
            own = list(_by_seed(runs, arm, block).values())
            verdicts = [run["entropy_verdict"] for run in own]
            found.append(
                {
                    "block": block,
                    "arm": arm,
                    "planned": config.seeds_of(arm, block),
                    "finished": len(own),
                    "metrics": {m: _rounded(_mean([_end(run, m) for run in own])) for m in config.metrics},
                    "tokens": _rounded(_mean([run["eval"]["tokens"][-1] for run in own if run["eval"]["tokens"]])),
                    "seconds": _rounded(_mean([run["eval"]["seconds"][-1] for run in own if run["eval"]["seconds"]])),
                    "means": {key: _rounded(_mean([run["means"].get(key) for run in own])) for key in MEANS},
                    "entropy": {kind: verdicts.count(kind) for kind in sorted(set(verdicts))},
                    "stopped": sum(run["ended"] != "all steps" for run in own),
                    "stable": sum(_stable(config, run) for run in own),
                }
            )
    return [cell for cell in found if cell["planned"]]


def _stable(config: StudyConfig, run: Record) -> bool:
    """Healthy entropy, and the deciding metric did not end worse than it began, by more than its margin."""
    metric = config.decision.metric
    first, last = ([v for v in run["eval"].get(metric, []) if v is not None] or [math.nan])[0], _end(run, metric)
    loss = first - (math.nan if last is None else last)
    if config.decision.better == "lower":
        loss = -loss
    return run["entropy_verdict"] == "healthy" and not loss > config.decision.margins.get(metric, 0.0)


def _by_seed(runs: Sequence[Record], arm: str, block: str) -> dict[int, Record]:
    return {run["seed"]: run for run in runs if run["arm"] == arm and run["block"] == block}


def _pairs(base: Mapping[int, Record], own: Mapping[int, Record], metric: str) -> dict[int, tuple[float, float]]:
    """Seed -> (baseline, treatment), of the seeds that both have."""
    both: dict[int, tuple[float, float]] = {}
    for seed in sorted(base.keys() & own.keys()):
        a, b = _end(base[seed], metric), _end(own[seed], metric)
        if a is not None and b is not None:
            both[seed] = a, b
    return both


def _end(run: Record, metric: str) -> float | None:
    """The last evaluation's value; a run that stopped early keeps what it had."""
    known = [value for value in run["eval"].get(metric, []) if value is not None]
    return known[-1] if known else None


def _over_problems(base: Sequence[Record], own: Sequence[Record], metric: str) -> Record:
    """Interval over other seeds and other problems, where the metric is a pass rate."""
    k = metric.removeprefix("eval/pass@")
    if not k.isdigit() or len({run["problems"] for run in (*base, *own)}) != 1 or not base[0]["correct"]:
        return {}
    if any(run["samples"] < int(k) for run in (*base, *own)):
        return {}

    def rates(run: Record) -> list[float]:
        return [pass_at_k(run["samples"], correct, int(k)) for correct in run["correct"]]

    table = [
        [b - a for a, b in zip(rates(first), rates(second), strict=True)]
        for first, second in zip(base, own, strict=True)
    ]
    low, high = crossed_interval(table) or (None, None)
    return {"both_low": _rounded(low), "both_high": _rounded(high)}


def _total(train: Sequence[Record], step: int, key: str) -> float:
    return sum(line.get(key) or 0 for line in train if line["step"] <= step)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _rounded(value: float | None) -> float | None:
    """Five significant digits."""
    return None if value is None else float(f"{value:.5g}")
