"""The trainer `qae_sync`: verl's synchronous V1 trainer with what an estimator cannot see.

    trainer.v1.trainer_mode=qae_sync    VERL_USE_EXTERNAL_MODULES=qae.integrations.verl.trainer

- several outputs of one agent session count once in their group, and all get the advantage of the last;
- rows that the reward function did not score (acc NaN) are outside their group;
- `algorithm.qae_on=outcome`: the quantile sees the verifier's outcome (acc), shaping is added beside it;
- `algorithm.qae_cut=groups`: a mini-batch holds whole groups, as many rows of each on every rank as balance allows;
- metrics qae/...: shares of zero, positive and negative advantages, of hard, easy and flat groups, and K;
- the rollout dump has acc, advantage, regime, length and entropy of each row, and appears at once or not at all.

Settings are checked before anything is sampled.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq  # pyright: ignore[reportMissingImports]
from omegaconf import open_dict
from torch import Tensor
from verl.trainer.ppo.padding_utils import (  # pyright: ignore[reportMissingImports]
    upsample_batch_to_divisible_size,
)
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # pyright: ignore[reportMissingImports]
from verl.utils.seqlen_balancing import (  # pyright: ignore[reportMissingImports]
    calculate_workload,
    get_seqlen_balanced_partitions,
    log_seqlen_unbalance,
)

from qae.advantages import quantile_advantages
from qae.entropy import REGIMES, regimes
from qae.integrations.verl.estimators import DEFAULT_K, RowView, bound, estimators, level, row_view

MODE = "qae_sync"
CPU_POLL_SECONDS = 0.2
FIELDS = ["extra_fields", "response_mask", "responses", "entropy", "rollout_log_probs", "old_log_probs"]


@register_trainer(MODE)  # pyright: ignore[reportUntypedClassDecorator]
class QaeTrainer(PPOTrainerSync):  # pyright: ignore[reportUntypedBaseClass]
    """verl's synchronous trainer; see the head of this module for what is added."""

    def __init__(self, config: Any) -> None:
        """Check the settings, then build verl's trainer."""
        check_settings(config)
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # the base class compares this word
        super().__init__(config)
        self._rows: dict[str, dict[str, Any]] = {}
        if config.trainer.device == "cpu":
            self.replay_buffer.poll_interval = CPU_POLL_SECONDS

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.config.algorithm.get("qae_cut") != "groups":
            return super()._balance_batch(batch, metrics, *args, **kwargs)
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        ranks = max(workers._dispatch_info["actor"]) + 1
        rows = self._get_required_batch_multiple(ranks)
        batch = upsample_batch_to_divisible_size(batch, rows, self.tokenizer.eos_token_id)
        lengths = [tag["seq_len"] for tag in batch.tags]
        parts = whole_group_partitions(
            [key.split("_")[0] for key in batch.keys],
            calculate_workload(torch.tensor(lengths, dtype=torch.int64)),
            minibatch=self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n,
            ranks=ranks,
            balance=get_seqlen_balanced_partitions,
        )
        batch.reorder([row for part in parts for row in part])
        metrics.update(log_seqlen_unbalance(seqlen_list=lengths, partitions=parts, prefix="global_seqlen"))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
        infos = [_reward_info(fields) for fields in data.pop("extra_fields").tolist()]
        real = torch.tensor([not tag.get("is_padding", False) for tag in batch.tags])
        view = RowView(
            sessions=[key.rsplit("_", 1)[0] for key in batch.keys],
            order=[int(key.rsplit("_", 1)[1]) for key in batch.keys],
            outcomes=torch.tensor([_number(info["acc"]) for info in infos]).where(real, 0.0)
            if all("acc" in info for info in infos)
            else None,
        )
        with row_view(view):
            batch = super()._compute_advantage(batch, metrics)
        if view.advantages is not None and view.counted is not None:
            rows = self._describe(batch, view, view.advantages, infos, data)
            self._rows = {
                key: row for key, row, is_real in zip(batch.keys, rows, real.tolist(), strict=True) if is_real
            }
            metrics.update(shares([row for row, n in zip(rows, view.counted & real, strict=True) if n]))
            metrics["qae/logprob_gap_max"] = gap(data)
            metrics["qae/k"] = level(self.config.algorithm) if _has_k(self.config) else float("nan")
        return batch

    def _describe(
        self, batch: Any, view: RowView, advantages: Tensor, infos: list[dict[str, Any]], data: Any
    ) -> list[dict[str, Any]]:
        """What the dump says of each row beside verl's own columns."""
        groups = [key.rsplit("_", 2)[0] for key in batch.keys]
        group_ids = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
        codes = torch.full((len(groups),), REGIMES.index("unscored"))
        if view.outcomes is not None:
            n = view.counted
            k = level(self.config.algorithm) if _has_k(self.config) else DEFAULT_K
            codes[n] = regimes(view.outcomes[n], group_ids[n], k)
        limit = self.config.data.max_response_length
        rows: list[dict[str, Any]] = []
        columns = (data[name].unbind() for name in ("response_mask", "responses", "entropy"))
        for i, (mask, response, entropy) in enumerate(zip(*columns, strict=True)):
            tokens = int(mask.sum())
            mean = float((entropy * mask).sum() / tokens) if tokens else None
            rows.append(
                {
                    "acc": infos[i].get("acc"),
                    "advantage": float(advantages[i]),
                    "regime": REGIMES[int(codes[i])],
                    "tokens": tokens,
                    "truncated": len(mask) >= limit and int(response[-1]) != self.tokenizer.eos_token_id,
                    "entropy_mean_nats": mean,
                    "group": groups[i],
                }
                | {name: infos[i][name] for name in ("prompt_id", "level", "reason") if infos[i].get(name)}
            )
        return rows

    def _dump_generations(
        self, inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: str
    ) -> None:
        """Write at once, under another name first: who waits for the file may read it when it is there."""
        columns = dict(reward_extra_infos_dict)
        if dump_path == self.config.trainer.get("rollout_data_dir"):
            found = [self._rows.get(uid, {}) for uid in columns["uid"]]
            for name in dict.fromkeys(name for row in found for name in row):
                columns[name] = [row.get(name) for row in found]
        draft = Path(dump_path) / ".draft"
        self._write_generations(inputs, outputs, gts, scores, columns, str(draft), self.global_steps)
        name = f"{self.global_steps}.jsonl"
        (draft / name).replace(Path(dump_path) / name)


def check_settings(config: Any) -> None:
    """Refuse what the trainer cannot do, before anything is sampled.

    Raises:
        ValueError: an unknown value, or a combination that has no meaning.
    """
    algorithm = config.algorithm
    for key, choices in (("qae_on", ("shaped", "outcome")), ("qae_cut", ("rows", "groups"))):
        if algorithm.get(key) is not None and algorithm[key] not in choices:
            raise ValueError(f"algorithm.{key}={algorithm[key]} must be one of {', '.join(choices)}")
    if algorithm.adv_estimator in estimators():
        function, _ = bound(algorithm, algorithm.adv_estimator)
        if algorithm.get("qae_on") == "outcome" and function is not quantile_advantages:
            raise ValueError(f"algorithm.qae_on=outcome gates a quantile, not {algorithm.adv_estimator}; use qae")
    elif algorithm.get("qae_on") == "outcome":
        raise ValueError(
            f"algorithm.qae_on=outcome has no effect on algorithm.adv_estimator={algorithm.adv_estimator}; use qae"
        )


def whole_group_partitions(
    groups: list[str], workload: Any, *, minibatch: int, ranks: int, balance: Any
) -> list[list[int]]:
    """Rows of each rank such that its i-th share of a mini-batch, over all ranks, is whole groups.

    Args:
        groups: [n] the group of each row.
        workload: [n] cost of each row.
        minibatch: rows of a mini-batch over all ranks; n is a multiple of it.
        ranks: data-parallel ranks.
        balance: verl's partition of rows into equally many of similar cost.

    Returns:
        The rows of each rank, mini-batch after mini-batch.
    """
    size = Counter(groups)
    full = max(size.values())
    # By the group's random id: they came in the order in which they were finished, the short ones first. Groups short
    # of a session would push all later ones across a border, so they go last, and padding after them.
    order = sorted(
        range(len(groups)),
        key=lambda row: (groups[row].startswith("pad"), size[groups[row]] != full, groups[row], row),
    )
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), minibatch):
        members = order[start : start + minibatch]
        cut = balance(workload[torch.tensor(members)], k_partitions=ranks, equal_size=True)
        for part, chosen in zip(parts, cut, strict=True):
            part.extend(members[i] for i in chosen)
    return parts


def shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Metrics of the counted rows: shares of signs over rows, of regimes over groups."""
    if not rows:
        return {}
    signs = {
        "zero": sum(row["advantage"] == 0 for row in rows),
        "positive": sum(row["advantage"] > 0 for row in rows),
        "negative": sum(row["advantage"] < 0 for row in rows),
    }
    regime = {row["group"]: row["regime"] for row in rows}
    found = list(regime.values())
    return {f"qae/{sign}_frac": count / len(rows) for sign, count in signs.items()} | {
        f"qae/{name}_frac": found.count(name) / len(found) for name in REGIMES[:3]
    }


def gap(data: Any) -> float:
    """Largest difference of a log-prob between sampler and actor, in nats; NaN if the sampler gave none."""
    if "rollout_log_probs" not in data.keys():  # a TensorDict iterates over rows
        return float("nan")
    columns = (data[name].unbind() for name in ("rollout_log_probs", "old_log_probs", "response_mask"))
    rows = [(theirs - ours).abs()[mask.bool()] for theirs, ours, mask in zip(*columns, strict=True)]
    return max((float(row.max()) for row in rows if len(row)), default=0.0)


def _has_k(config: Any) -> bool:
    name = config.algorithm.adv_estimator
    return name in estimators() and "k" in bound(config.algorithm, name)[1]


def _reward_info(fields: Any) -> dict[str, Any]:
    return (fields.get("reward_extra_info") or {}) if isinstance(fields, dict) else {}


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
