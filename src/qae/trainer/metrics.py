"""What a step reports: one flat dictionary of numbers, and one record a completion."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qae.entropy import REGIMES
from qae.records import Rollout
from qae.sampling import Completion
from qae.tasks import Item
from qae.trainer.batch import Batch, Group
from qae.trainer.config import TrainConfig
from qae.trainer.memory import peak_memory_mb
from qae.trainer.step import UpdateStats


def batch_metrics(
    config: TrainConfig, batch: Batch, advantages: Float[Tensor, " n"], regime: Int[Tensor, " n"]
) -> dict[str, Any]:
    """Rewards, entropies, regimes and lengths of a step, before its update.

    Args:
        config: the run's configuration.
        batch: the step's groups.
        advantages: [n] of the completions that are trained on.
        regime: [n] codes into `REGIMES`, of the same rows.
    """
    sampled = _Completions(batch.sampled)
    kept = _Completions(batch.groups)
    size = config.rollout.group_size
    mixed = torch.tensor([group.is_mixed for group in batch.groups for _ in range(size)], dtype=torch.bool)
    regimes = [int(code) for code in regime[::size]]
    signs = {"positive": advantages > 0, "negative": advantages < 0, "zero": advantages == 0}
    lengths = sampled.lengths
    return {
        "reward": _mean(sampled.rewards),
        "reward_std": _std(sampled.rewards),
        "outcome": _mean(sampled.outcomes),
        "entropy": sampled.entropy(),
        "entropy/correct": sampled.entropy([o >= 1 for o in sampled.outcomes]),
        "entropy/wrong": sampled.entropy([o < 1 for o in sampled.outcomes]),
        **{f"entropy/{sign}_advantage": kept.entropy(rows.tolist()) for sign, rows in signs.items()},
        "frac_reward_zero_std": _share(not group.is_mixed for group in batch.sampled),
        **{f"advantage/{sign}_frac": _share(rows.tolist()) for sign, rows in signs.items()},
        "advantage/zero_frac_mixed": _share((advantages[mixed] == 0).tolist()),
        **{f"regime/{name}_frac": _share(code == i for code in regimes) for i, name in enumerate(REGIMES[:3])},
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": _share(c.truncated for c in sampled.completions),
        "groups/asked": len(batch.sampled),
        "groups/kept": len(batch.groups),
        "groups/refills": batch.refills,
        "groups/unscored_rows": sum(math.isnan(reward) for reward in sampled.rewards),
        **{f"grades/{reason}": count for reason, count in sorted(batch.reasons.items())},
        "tokens/sampled": sum(lengths),
        "k": config.algorithm.advantage.k,
        "seconds/sample": batch.sample_seconds,
        "seconds/grade": batch.grade_seconds,
    }


def update_metrics(stats: UpdateStats, lr: float) -> dict[str, Any]:
    """What the update phase did."""
    low, high = (_ratio(count, stats.tokens) for count in (stats.clipped_low, stats.clipped_high))
    return {
        "loss": _mean(stats.losses),
        "grad_norm": _mean(stats.grad_norms),
        "grad_norm_max": max(stats.grad_norms, default=None),
        "lr": lr,
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": None if low is None or high is None else low + high,
        "logprob_gap_max": stats.logprob_gap_max,
        "updates": stats.updates,
        "updates/skipped_nonfinite": stats.skipped_nonfinite,
        "rows/kept_frac": _ratio(stats.rows_kept, stats.rows),
        "tokens/kept_frac": _ratio(stats.tokens_kept, stats.tokens),
        "tokens/updated": stats.tokens_kept,
        "seconds/update": stats.seconds,
        "memory_peak_mb": peak_memory_mb(),
    }


def rollout_records(
    config: TrainConfig,
    step: int,
    groups: Sequence[Group],
    advantages: Sequence[float],
    regime: Sequence[int],
    token_texts: Any,
) -> list[Rollout]:
    """One record for each completion of the groups; a few of them with their tokens.

    Args:
        config: the run's configuration.
        step: number of the step.
        groups: the groups that the step trained on.
        advantages: of their completions.
        regime: codes into `REGIMES`, of the same rows.
        token_texts: from token ids to one text a token.
    """
    rows = [(i, group, j) for i, group in enumerate(groups) for j in range(len(group.completions))]
    stride = max(1, len(rows) // max(1, config.records.token_details))
    detailed = set(range(0, len(rows), stride)[: config.records.token_details]) if rows else set[int]()
    records: list[Rollout] = []
    for n, (i, group, j) in enumerate(rows):
        completion = group.completions[j]
        tokens = completion.token_ids
        record = Rollout(
            step=step,
            prompt_id=group.item.id,
            group=i,
            prompt=prompt_text(group.item),
            completion=completion.text,
            tokens=len(tokens),
            reward=_or_none(group.rewards[j]),
            outcome=_or_none(group.outcomes[j]),
            advantage=advantages[n],
            regime=REGIMES[regime[n]],
            truncated=completion.truncated,
            entropy_mean_nats=float(completion.entropies.mean()) if tokens else None,
            level=group.item.level or None,
        )
        if n in detailed:
            record.token_ids = tokens
            record.logprobs = completion.logprobs.tolist()
            record.entropies_nats = completion.entropies.tolist()
            record.token_texts = token_texts(tokens)
        records.append(record)
    return records


def prompt_text(item: Item) -> str:
    """A prompt as one text: as it is, or its chat messages one a line."""
    if isinstance(item.prompt, str):
        return item.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in item.prompt)


class _Completions:
    """The completions of some groups as columns."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.completions: list[Completion] = [c for group in groups for c in group.completions]
        self.rewards = [reward for group in groups for reward in group.rewards]
        self.outcomes = [outcome for group in groups for outcome in group.outcomes]
        self.lengths = [len(c.token_ids) for c in self.completions]

    def entropy(self, rows: Sequence[bool] | None = None) -> float | None:
        """Mean over the tokens of the completions chosen, in nats."""
        chosen = self.completions if rows is None else [c for c, yes in zip(self.completions, rows, strict=True) if yes]
        tokens = sum(len(c.token_ids) for c in chosen)
        return sum(float(c.entropies.sum()) for c in chosen) / tokens if tokens else None


def _mean(values: Sequence[float]) -> float | None:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else None


def _std(values: Sequence[float]) -> float | None:
    known = [v for v in values if not math.isnan(v)]
    return float(torch.tensor(known, dtype=torch.float64).std(correction=0)) if known else None


def _share(flags: Any) -> float | None:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
