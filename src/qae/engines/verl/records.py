"""verl's dumps and metrics of a step as our records, in plain Python."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from qae.evaluation.estimators import bootstrap_interval, pass_at_k
from qae.records import Regime, Rollout
from qae.trainer.config import TrainConfig

Row = dict[str, Any]
# Our name -> verl's. What verl measures otherwise, or not at all, is left out.
RENAMED = {
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "lr": "actor/lr",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "rows/kept_frac": "actor/rows_kept_frac",
    "logprob_gap_max": "qae/logprob_gap_max",
    "rollout/probs_diff_max": "training/rollout_probs_diff_max",
    "rollout/probs_diff_mean": "training/rollout_probs_diff_mean",
    "seconds/sample": "timing_s/gen",
    "seconds/update": "timing_s/update_actor",
    "seconds/step": "timing_s/step",
    "seconds/eval": "timing_s/testing",
    "seconds/weights": "timing_s/update_weights",
    "tokens/all": "perf/total_num_tokens",
    "memory_gpu_gb": "perf/max_memory_allocated_gb",
}
DROPPED, SURPLUS = "training/filter_groups/evicted_samples", "training/filter_groups/discarded_surplus_samples"


def read_dump(path: Path) -> list[Row]:
    """The rows of one of verl's dumps, without those that fill up a batch."""
    rows = [cast(Row, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [row for row in rows if not str(row.get("uid", "")).startswith("pad")]


def last_outputs(rows: Iterable[Row]) -> list[Row]:
    """One row of each session: its last output, which bears the reward."""
    last: dict[str, tuple[int, Row]] = {}
    for row in rows:
        session, _, output = str(row["uid"]).rpartition("_")
        if session not in last or int(output) > last[session][0]:
            last[session] = (int(output), row)
    return [row for _, row in last.values()]


def rollout_records(step: int, rows: Sequence[Row]) -> list[Rollout]:
    """One record a completion."""
    groups = {name: i for i, name in enumerate(dict.fromkeys(group_of(row) for row in rows))}
    return [
        Rollout(
            step=step,
            prompt_id=row.get("prompt_id") or group_of(row),
            group=groups[group_of(row)],
            prompt=row["input"],
            completion=row["output"],
            tokens=int(row["tokens"]),
            reward=reward_of(row),
            outcome=outcome_of(row),
            advantage=float(row["advantage"]),
            regime=cast(Regime, row["regime"]),
            truncated=bool(row["truncated"]),
            entropy_mean_nats=row["entropy_mean_nats"],
            level=row.get("level") or None,
        )
        for row in rows
    ]


def step_metrics(config: TrainConfig, step: int, rows: Sequence[Row], data: Row, *, seconds: float) -> dict[str, Any]:
    """A step's line of metrics.jsonl.

    Args:
        config: of the run.
        step: its number.
        rows: of the batch that was trained on.
        data: verl's metrics.
        seconds: since the run's start.
    """
    rewards = [r for row in rows if (r := reward_of(row)) is not None]
    outcomes = [o for row in rows if (o := outcome_of(row)) is not None]
    lengths = [int(row["tokens"]) for row in rows]
    regime = {group_of(row): row["regime"] for row in rows}
    found, advantages = list(regime.values()), [float(row["advantage"]) for row in rows]
    mixed = [a for a, row in zip(advantages, rows, strict=True) if row["regime"] in ("hard", "easy")]
    dropped, surplus = int(data.get(DROPPED) or 0), int(data.get(SURPLUS) or 0)
    seen = len(found) + dropped
    return {
        "step": step,
        "seconds": seconds,
        "reward": _mean(rewards),
        "reward_std": _std(rewards),
        "outcome": _mean(outcomes),
        "entropy": entropy(rows),
        "entropy/correct": entropy([row for row in rows if (outcome_of(row) or 0) >= 1]),
        "entropy/wrong": entropy([row for row in rows if outcome_of(row) is not None and row["acc"] < 1]),
        "entropy/positive_advantage": entropy([r for r, a in zip(rows, advantages, strict=True) if a > 0]),
        "entropy/negative_advantage": entropy([r for r, a in zip(rows, advantages, strict=True) if a < 0]),
        "entropy/zero_advantage": entropy([r for r, a in zip(rows, advantages, strict=True) if a == 0]),
        "frac_reward_zero_std": (found.count("flat") + dropped) / seen if seen else None,
        "advantage/zero_frac": _mean([float(a == 0) for a in advantages]),
        "advantage/positive_frac": _mean([float(a > 0) for a in advantages]),
        "advantage/negative_frac": _mean([float(a < 0) for a in advantages]),
        "advantage/zero_frac_mixed": _mean([float(a == 0) for a in mixed]),
        **{f"regime/{name}_frac": _mean([float(r == name) for r in found]) for name in ("hard", "easy", "flat")},
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths, default=None),
        "completions/max_length": max(lengths, default=None),
        "completions/clipped_ratio": _mean([float(row["truncated"]) for row in rows]),
        "groups/asked": seen + surplus,
        "groups/kept": len(found),
        "groups/unscored_rows": len(rows) - len(rewards),
        **{f"grades/{k}": n for k, n in sorted(Counter(r["reason"] for r in rows if r.get("reason")).items())},
        "tokens/sampled": sum(lengths),
        "updates": config.update.minibatches * config.update.epochs,
        "k": config.algorithm.advantage.k,
        **{ours: data[theirs] for ours, theirs in RENAMED.items() if data.get(theirs) is not None},
    }


def eval_metrics(step: int, rows: Sequence[Row], *, seconds: float) -> dict[str, Any]:
    """An evaluation's line of metrics.jsonl, from verl's validation dump; pass rates over what was scored."""
    problems: dict[str, list[float]] = defaultdict(list)
    levels: dict[str, str] = {}
    for row in rows:
        outcome = outcome_of(row)
        if outcome is not None:
            problems[row["prompt_id"]].append(outcome)
            levels[row["prompt_id"]] = row.get("level") or ""
    samples = max(map(len, problems.values()), default=0)
    line: dict[str, Any] = {"step": step, "seconds": seconds, "eval/problems": len(problems), "eval/samples": samples}
    if not problems:
        return line
    rates = {problem: sum(found) / len(found) for problem, found in problems.items()}
    interval = bootstrap_interval(list(rates.values()))
    line |= {
        "eval/pass@1": interval.mean,
        "eval/pass@1_low": interval.low,
        "eval/pass@1_high": interval.high,
        "eval/rates": rates,
    }
    if samples > 1:
        best = [pass_at_k(len(o), sum(x >= 1 for x in o), min(samples, len(o))) for o in problems.values()]
        line[f"eval/pass@{samples}"] = sum(best) / len(best)
    for level in sorted(set(levels.values()) - {""}):
        line[f"eval/pass@1/{level}"] = _mean([rate for problem, rate in rates.items() if levels[problem] == level])
    return line


def group_of(row: Row) -> str:
    """The group of a row: verl's uid is <group>_<session>_<output>."""
    return str(row["uid"]).rsplit("_", 2)[0]


def outcome_of(row: Row) -> float | None:
    """The verifier's verdict; None where it gave none."""
    acc = row.get("acc")
    return None if acc is None or math.isnan(acc) else float(acc)


def reward_of(row: Row) -> float | None:
    """The reward after shaping; None where it was not scored."""
    return None if "acc" in row and outcome_of(row) is None else float(row["score"])


def entropy(rows: Sequence[Row]) -> float | None:
    """Mean over the tokens of the rows, in nats."""
    known = [(row["entropy_mean_nats"], row["tokens"]) for row in rows if row["entropy_mean_nats"] is not None]
    tokens = sum(count for _, count in known)
    return sum(mean * count for mean, count in known) / tokens if tokens else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    mean = _mean(values)
    return None if mean is None else math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
