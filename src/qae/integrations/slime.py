"""slime, and miles, which kept its hook: rewards become quantile advantages where slime normalises them.

    --custom-reward-post-process-path qae.integrations.slime.quantile_rewards

Not `--custom-advantage-function-path`: that runs on each data-parallel rank, where groups are cut apart. slime then
gives every token its completion's number. K is the variable QAE_K (or `args.qae_k`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from qae.advantages import quantile_advantages
from qae.integrations.rows import ids_of, level
from qae.integrations.status import warn_if_experimental

HOST: dict[str, Any] = {"divisor": "n-1", "eps": 1e-6}


def quantile_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """The hook of slime: raw rewards as they are, and what the estimator `grpo` takes for advantages.

    Several samples of one rollout (`rollout_id`) count once in their group and share its number. A sample that is
    removed, or has no token to train on, is outside its group.

    Args:
        args: slime's; reads `reward_key`, `grpo_std_normalization` and, if there, `qae_k`.
        samples: of all groups, in any order; `group_index` says which prompt.

    Returns:
        (raw rewards, advantages), in the order of the samples.
    """
    warn_if_experimental("slime")
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    rollouts = [
        (sample.group_index, i if sample.rollout_id is None else ("rollout", sample.rollout_id))
        for i, sample in enumerate(samples)
    ]
    first: dict[Any, int] = {}
    for i, (rollout, sample) in enumerate(zip(rollouts, samples, strict=True)):
        if _trains(sample):
            first.setdefault(rollout, i)
    rows = list(first.values())
    rewards = torch.tensor([raw[i] for i in rows], dtype=torch.float64)
    scale = "std" if getattr(args, "grpo_std_normalization", True) else "none"
    group_ids = ids_of(samples[i].group_index for i in rows)
    found = quantile_advantages(rewards, group_ids, level(getattr(args, "qae_k", None)), scale=scale, **HOST)
    advantage_of = dict(zip(first, found.tolist(), strict=True))
    return raw, [
        advantage_of[rollout] if _trains(sample) else 0.0 for rollout, sample in zip(rollouts, samples, strict=True)
    ]


def _trains(sample: Any) -> bool:
    return not getattr(sample, "remove_sample", False) and sample.effective_response_length > 0
