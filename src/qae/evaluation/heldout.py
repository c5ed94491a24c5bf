"""Evaluation of a policy on a task's held-out problems, as training reports it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from qae.evaluation.estimators import bootstrap_interval, pass_at_k
from qae.sampling import Engine, SamplingParams
from qae.sampling.rng import row_key
from qae.tasks import Item, Task

EVAL_STREAM = 2


def evaluate_heldout(
    engine: Engine,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Item],
    *,
    samples: int,
    params: SamplingParams,
    seed: int,
    progress: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:
    """pass@1 with its interval and pass@`samples` on held-out items.

    The random streams depend on seed, problem and sample only: two evaluations of a run, or of two runs from
    the same seed, are paired. Completions that could not be scored are left out.

    Args:
        engine: a sampler with current weights.
        task: grades the completions.
        tokenizer: encodes the prompts.
        items: the problems.
        samples: completions a problem.
        params: how to draw them.
        seed: of the random streams.
        progress: told of (finished, all, tokens).

    Returns:
        Metrics by name: eval/pass@1, eval/pass@1_low, eval/pass@1_high (95%, bootstrap over problems),
        eval/pass@K, eval/pass@1/<level>, eval/entropy (nats a token), eval/mean_length (tokens),
        eval/truncated_frac, eval/problems, eval/samples, and eval/rates: each problem's pass rate by id, so that
        two evaluations can be paired by problem.
    """
    completions = engine.generate(
        [task.encode(item, tokenizer) for item in items],
        [i for i in range(len(items)) for _ in range(samples)],
        [row_key(seed, EVAL_STREAM, i, sample) for i in range(len(items)) for sample in range(samples)],
        params,
        progress,
    )
    grades = task.grade([(items[c.prompt_index], c.text) for c in completions])
    outcomes: list[list[float]] = [[] for _ in items]
    for completion, grade in zip(completions, grades, strict=True):
        if grade.outcome is not None:
            outcomes[completion.prompt_index].append(grade.outcome)
    scored = [(item, o) for item, o in zip(items, outcomes, strict=True) if o]
    metrics: dict[str, Any] = {
        "eval/problems": len(scored),
        "eval/samples": samples,
        "eval/entropy": float(torch.cat([c.entropies for c in completions]).mean()),
        "eval/mean_length": sum(len(c.token_ids) for c in completions) / len(completions),
        "eval/truncated_frac": sum(c.truncated for c in completions) / len(completions),
    }
    if not scored:
        return metrics
    rates = [sum(o) / len(o) for _, o in scored]
    interval = bootstrap_interval(rates)
    metrics |= {
        "eval/pass@1": interval.mean,
        "eval/pass@1_low": interval.low,
        "eval/pass@1_high": interval.high,
        "eval/rates": {item.id: rate for (item, _), rate in zip(scored, rates, strict=True)},
    }
    if samples > 1:
        best = [pass_at_k(len(o), sum(x >= 1.0 for x in o), min(samples, len(o))) for _, o in scored]
        metrics[f"eval/pass@{samples}"] = sum(best) / len(best)
    for level in sorted({item.level for item, _ in scored if item.level}):
        of_level = [rate for (item, _), rate in zip(scored, rates, strict=True) if item.level == level]
        metrics[f"eval/pass@1/{level}"] = sum(of_level) / len(of_level)
    return metrics
