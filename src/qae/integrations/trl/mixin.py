"""`QuantileMixin`: the overrides that put quantile advantages into a GRPOTrainer, in the order of a step."""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from qae.entropy import REGIMES, regimes
from qae.integrations.trl import refill, skip
from qae.integrations.trl.contract import NEEDED_TO_SKIP, changed, check_contract, check_instance, contract_breaches
from qae.integrations.trl.rewards import (
    estimate,
    flat_rows,
    gated_by_outcome,
    group_ids_of,
    is_hosts_own,
    quantile_estimator,
    total_rewards,
)
from qae.integrations.trl.settings import QuantileSettings

logger = logging.getLogger("qae")
SELF_CHECKS = 3
_Host: Any = object


class QuantileMixin(_Host):
    """Put it before any GRPOTrainer: `class Mine(QuantileMixin, MyGRPOTrainer)`.

    Takes the fields of `QuantileSettings` as keyword arguments beside the host's, and `advantage_function`: a function
    of (rewards [n], group_ids [n]) that replaces the quantile, to mix advantages or try another baseline. Its result is
    used as it is.

    Attributes:
        quantile: the settings.
        skips_rows: whether rows with advantage 0 are left out of the loss.
    """

    def __init__(
        self, *args: Any, advantage_function: Callable[[Tensor, Tensor], Tensor] | None = None, **keywords: Any
    ) -> None:
        """Check the host class, let it construct itself, then check what it became."""
        host = _host_of(type(self))
        check_contract(host)
        self.quantile = QuantileSettings.take(keywords)
        self._advantage_function = advantage_function
        self._gathered_rewards: Tensor | None = None
        self._skip_next: list[tuple[Tensor, Tensor | None]] = []
        self._self_checks_left = {"train": SELF_CHECKS, "eval": SELF_CHECKS}
        super().__init__(*args, **keywords)
        check_instance(self)
        self._outcome_column = self._find_outcome()
        self.skips_rows = self._may_skip(host)
        if self.quantile.dynamic_sampling_refills and (reason := refill.reason_against(self)):
            raise ValueError(f"dynamic_sampling_refills={self.quantile.dynamic_sampling_refills}: {reason}")
        logger.info(
            "qae: baseline is the %g-quantile (%s) of each group; rows with advantage 0 are %s the loss",
            self.quantile.quantile_k,
            self.quantile.quantile_method,
            "left out of" if self.skips_rows else "computed in",
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        mode = "train" if self.model.training else "eval"
        batch, flat = self._score(inputs, mode)
        if mode == "train" and self.quantile.dynamic_sampling_refills:
            batch = self._refill(batch, flat)
        return batch

    def _calculate_rewards(self, *args: Any, **keywords: Any) -> Tensor:
        gathered: Tensor = super()._calculate_rewards(*args, **keywords)
        self._gathered_rewards = gathered
        return gathered

    def _score(self, inputs: list[dict[str, Any]], mode: str) -> tuple[dict[str, Any], Tensor]:
        """TRL's batch with our advantages, logged as they are, and which of its rows are in flat groups."""
        self._gathered_rewards = None
        batch = super()._generate_and_score_completions(inputs)
        gathered = self._gathered_rewards
        if gathered is None:
            raise changed("_generate_and_score_completions did not call _calculate_rewards")
        host = batch["advantages"]
        if len(gathered) != len(host) * self.accelerator.num_processes:
            raise changed(
                f"_calculate_rewards returned {len(gathered)} rows, expected those of all processes: "
                f"{self.accelerator.num_processes} x {len(host)}"
            )
        rewards, weights = gathered.detach().float().cpu(), self.reward_weights.detach().float().cpu()
        group_size = self.num_generations if mode == "train" else self.num_generations_eval
        group_ids = group_ids_of(len(rewards), group_size)
        start = self.accelerator.process_index * len(host)
        rows = slice(start, start + len(host))
        if group_size > 1:
            self._check_against_host(host.detach().cpu(), rewards, weights, group_ids, rows, mode)
            advantages = self._advantages(rewards, weights, group_ids)
        else:
            advantages = torch.zeros(len(rewards))
        flat = flat_rows(
            rewards,
            weights,
            group_ids,
            outcome=self._outcome_column,
            aggregation=self.multi_objective_aggregation,
            tolerance=self.quantile.flat_tolerance,
        )
        batch["advantages"] = advantages[rows].to(host)
        self._correct_logs(advantages, flat, mode)
        self._log_shares(advantages, rewards, weights, group_ids, mode)
        return batch, flat[rows]

    def _advantages(self, rewards: Tensor, weights: Tensor, group_ids: Tensor) -> Tensor:
        if self._advantage_function is not None:
            return self._advantage_function(total_rewards(rewards, weights), group_ids).nan_to_num()
        if self._outcome_column is not None:
            return gated_by_outcome(
                rewards,
                weights,
                group_ids,
                self.quantile,
                outcome=self._outcome_column,
                scale_rewards=self.scale_rewards,
            )
        return estimate(
            rewards,
            weights,
            group_ids,
            quantile_estimator(self.quantile),
            scale_rewards=self.scale_rewards,
            aggregation=self.multi_objective_aggregation,
        )

    def _check_against_host(
        self, host: Tensor, rewards: Tensor, weights: Tensor, group_ids: Tensor, rows: slice, mode: str
    ) -> None:
        """In the first batches, recompute TRL's own advantages: if they agree, so do rewards, groups and rows."""
        if not self._self_checks_left[mode]:
            return
        self._self_checks_left[mode] -= 1
        options: dict[str, Any] = {
            "scale_rewards": self.scale_rewards,
            "aggregation": self.multi_objective_aggregation,
        }
        if not is_hosts_own(host, rewards, weights, group_ids, rows, **options):
            raise changed(
                "TRL's own advantages are not the mean-baseline advantages of the rewards that were scored, in groups "
                f"of {len(rewards) // (int(group_ids[-1]) + 1)} rows: order, grouping, weights or scale differ from "
                "what this adapter takes them for"
            )

    def _correct_logs(self, advantages: Tensor, flat: Tensor, mode: str) -> None:
        """TRL has logged the mean baseline's advantages and its own notion of a flat group: replace both."""
        log = self._logs["advantages"]
        count = min(len(advantages), len(log))
        for _ in range(count):
            log.pop()
        log.extend(advantages[len(advantages) - count :].tolist())
        self._metrics[mode]["frac_reward_zero_std"][-1] = flat.float().mean().item()

    def _log_shares(self, advantages: Tensor, rewards: Tensor, weights: Tensor, group_ids: Tensor, mode: str) -> None:
        metrics = self._metrics[mode]
        for sign, rows in (("zero", advantages == 0), ("positive", advantages > 0), ("negative", advantages < 0)):
            metrics[f"advantage/{sign}_frac"].append(rows.float().mean().item())
        gate = total_rewards(rewards, weights) if self._outcome_column is None else rewards[:, self._outcome_column]
        codes = regimes(gate, group_ids, self.quantile.quantile_k)
        for code, name in enumerate(REGIMES):
            metrics[f"regime/{name}_frac"].append((codes == code).float().mean().item())
        metrics["k"].append(self.quantile.quantile_k)

    def _refill(self, batch: dict[str, Any], flat: Tensor) -> dict[str, Any]:
        """Fresh prompts in place of flat groups, a bounded number of times; flat groups fill up what is missing."""
        size = self.num_generations
        kept, spare = [refill.take_rows(batch, ~flat)], refill.take_rows(batch, flat)
        missing = int(flat.sum()) // size
        asked = len(flat) // size
        refills = 0
        while refills < self.quantile.dynamic_sampling_refills and (most := self._largest(missing)):
            drawn = self._fresh_prompts(most, refills)
            fresh, fresh_flat = self._score([dict(row) for row in drawn for _ in range(size)], "train")
            found = (~fresh_flat).nonzero()[: missing * size, 0]
            kept.append(refill.take_rows(fresh, found))
            missing -= len(found) // size
            asked += most
            refills += 1
        kept.append(refill.take_rows(spare, torch.arange(missing * size)))
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        joined = refill.join_batches(kept, tokenizer.pad_token_id)
        tokens = joined["completion_mask"] * joined.get("tool_mask", 1)
        joined["num_items_in_batch"] = self.accelerator.gather(tokens.sum()).sum()
        metrics, device = self._metrics["train"], self.accelerator.device
        counts = torch.tensor([asked, len(flat) // size - missing], dtype=torch.float32, device=device)
        asked_total, kept_total = self.accelerator.reduce(counts, reduction="sum").tolist()
        metrics["groups/asked"].append(asked_total)
        metrics["groups/kept"].append(kept_total)
        metrics["groups/refills"].append(float(refills))
        return joined

    def _largest(self, count: int) -> int:
        counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return int(counts.max())

    def _fresh_prompts(self, count: int, refills: int) -> list[dict[str, Any]]:
        processes = self.accelerator.num_processes
        drawn = refill.draw_prompts(
            len(self.train_dataset), count * processes, self.args.seed, self.state.global_step, refills
        )
        return [self.train_dataset[row] for row in drawn[self.accelerator.process_index :: processes]]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        text_only = not any(name in inputs for name in ("pixel_values", "image_grid_thw", "num_images"))
        if not (self.skips_rows and text_only and self.model.training and torch.is_grad_enabled()):
            return super()._compute_loss(model, inputs)
        learns = skip.rows_to_learn(inputs)
        self._skip_next = [(learns, inputs.get("old_per_token_logps"))]
        loss = super()._compute_loss(model, inputs)
        if self._skip_next:
            raise changed("_compute_loss did not call _get_per_token_logps_and_entropies, so no row was left out")
        tokens = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        self._log_skipped(learns, tokens)
        return loss

    def _log_skipped(self, learns: Tensor, tokens: Tensor) -> None:
        counts = torch.stack([learns.sum(), (learns >= 0).sum(), tokens[learns].sum(), tokens.sum()]).float()
        rows, all_rows, kept_tokens, all_tokens = self.accelerator.reduce(counts, reduction="sum").tolist()
        metrics = self._metrics["train"]
        metrics["rows/kept_frac"].append(rows / all_rows)
        metrics["tokens/kept_frac"].append(kept_tokens / max(all_tokens, 1))
        if self.quantile.entropy_rows == "kept":
            # TRL has divided the kept rows' sum by the tokens of all rows
            of_all = metrics["entropy"].pop()
            if not metrics["entropy"]:
                del metrics["entropy"]  # TRL would log None
            metrics["entropy/kept_rows"].append(of_all * all_tokens / max(kept_tokens, 1))

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **keywords: Any
    ) -> tuple[Tensor, Tensor | None, Any]:
        forward = super()._get_per_token_logps_and_entropies
        if not self._skip_next:
            return forward(model, input_ids, attention_mask, logits_to_keep, **keywords)
        learns, stand_in = self._skip_next.pop()
        return skip.forward_kept_rows(
            forward,
            model,
            input_ids,
            attention_mask,
            logits_to_keep,
            learns,
            stand_in=stand_in,
            measure_rest=self.quantile.entropy_rows == "all",
            always_measure=self.accelerator.num_processes > 1,
            trim_left=skip.has_relative_positions(self.accelerator.unwrap_model(model)),
            **keywords,
        )

    def _may_skip(self, host: type) -> bool:
        asked = self.quantile.skip_zero_advantage
        if asked == "off":
            return False
        reasons = contract_breaches(host, NEEDED_TO_SKIP) or skip.host_loss_breach(host) or skip.reasons_against(self)
        if reasons and asked == "on":
            raise ValueError(
                f"skip_zero_advantage='on' would change the gradient: {'; '.join(reasons)}. "
                "Use 'auto', which computes all rows here, or remove the term"
            )
        if reasons:
            logger.warning("qae: all rows are computed, since skipping is not exact: %s", "; ".join(reasons))
        return not reasons

    def _find_outcome(self) -> int | None:
        name = self.quantile.outcome_reward
        if name is None:
            return None
        if name not in self.reward_func_names:
            raise ValueError(
                f"outcome_reward={name!r} is no reward function; they are {', '.join(self.reward_func_names)}"
            )
        if self.multi_objective_aggregation != "sum_then_normalize" or self.scale_rewards == "batch":
            raise ValueError(
                f"outcome_reward={name!r} needs multi_objective_aggregation='sum_then_normalize' and scale_rewards "
                "'group' or 'none'"
            )
        return self.reward_func_names.index(name)


@lru_cache
def quantile_trainer(host: type) -> type:
    """`host` with quantile advantages.

    Args:
        host: GRPOTrainer or any subclass of it.

    Returns:
        A subclass, named after it.

    Raises:
        TRLChangedError: the host's seam is not where it was.
    """
    check_contract(host)
    name = f"Quantile{host.__name__}"
    return type(name, (QuantileMixin, host), {"__module__": __name__, "__doc__": QuantileMixin.__doc__})


def _host_of(cls: type) -> type:
    """The first class behind the mixin."""
    order = cls.__mro__
    return order[order.index(QuantileMixin) + 1]
