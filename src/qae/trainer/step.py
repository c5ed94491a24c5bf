"""The update phase of a step: mini-batches, micro-batches, and one optimiser step for each mini-batch.

An update's denominators are its counts of tokens and completions before any row is left out, so neither cutting it
into micro-batches nor skipping rows with advantage 0 changes the gradient.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.graph import increment_version
from transformers.modeling_layers import GradientCheckpointingLayer

from qae.losses import LOSSES, clip_cov_selection, clip_fractions, kl_cov_selection, kl_penalty_k3
from qae.policies.policy import Policy
from qae.reduce import sequence_mean, sequence_sum, sequence_sum_norm, token_mean
from qae.sampling.rng import row_key
from qae.trainer.config import LossConfig, TrainConfig
from qae.trainer.packing import Packed, pack_padded, pack_shared, packed_logprobs, shared_attention
from qae.trainer.products import direct_gradients

SHUFFLE_STREAM, SELECTION_STREAM = 3, 4
GAP_ROWS = 8


@dataclass(frozen=True)
class Rows:
    """The completions of a batch as the update sees them; all tensors are on the policy's device.

    Attributes:
        prompts: token ids of the distinct prompts.
        group: for each row, its group; also the index of its prompt.
        completions: for each row, its token ids.
        behaviour_logprobs: [n t] nats, at the sampling temperature, of the weights that sampled.
        advantages: [n].
        mask: [n t] True for tokens that count.
        reference_logprobs: [n t] of the initial policy, if there is a KL penalty.
        token_weights: [n t] truncated importance weights, if asked for.
    """

    prompts: list[list[int]]
    group: list[int]
    completions: list[list[int]]
    behaviour_logprobs: Float[Tensor, "n t"]
    advantages: Float[Tensor, " n"]
    mask: Bool[Tensor, "n t"]
    reference_logprobs: Float[Tensor, "n t"] | None = None
    token_weights: Float[Tensor, "n t"] | None = None

    def tokens(self, members: Sequence[int]) -> int:
        """Tokens that a forward pass of these rows computes: each prompt once, and the completions."""
        return sum(len(self.prompts[g]) for g in {self.group[i] for i in members}) + sum(
            len(self.completions[i]) for i in members
        )


@dataclass
class UpdateStats:
    """What the updates of one step did.

    Attributes:
        updates: optimiser steps made.
        skipped_nonfinite: updates left out because their gradient was not finite.
        losses: loss of each update.
        grad_norms: gradient norm of each update, before clipping.
        clipped_low: tokens clipped from below.
        clipped_high: tokens clipped from above.
        tokens: tokens of all updates, the denominator of the clip shares.
        rows: rows of all updates.
        rows_kept: rows that entered a forward pass with gradient.
        tokens_kept: completion tokens that did.
        seconds: time of the phase.
        logprob_gap_max: largest |sampler - trainer| log-prob difference seen on a few rows, in nats.
        recomputed: whether behaviour log-probs are the trainer's.
    """

    updates: int = 0
    skipped_nonfinite: int = 0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    clipped_low: int = 0
    clipped_high: int = 0
    tokens: int = 0
    rows: int = 0
    rows_kept: int = 0
    tokens_kept: int = 0
    seconds: float = 0.0
    logprob_gap_max: float = 0.0
    recomputed: bool = False


class Learner:
    """What stays the same over all updates of a run: policy, optimiser, configuration, and how rows are packed.

    Args:
        config: the run's configuration.
        policy: the model that learns.
        share_prompts: compute each prompt once (`pack_shared`), or plainly (`pack_padded`).
        reference: the initial policy, for the KL penalty.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        *,
        share_prompts: bool = True,
        reference: Policy | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.reference = reference
        self.share_prompts = share_prompts
        update = config.update
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=update.lr, betas=update.betas, weight_decay=update.weight_decay, fused=True
        )
        self.updates_done = 0
        # Zeros, not None: an update in which every advantage is 0 still decays weights and moments.
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.loss = policy_loss(config.algorithm.loss)
        policy.model.eval()  # no dropout: ratios compare what the sampler's policy and this one say, not their noise
        if update.checkpoint_activations:
            _checkpoint_activations(policy.model)

    def lr(self, update: int) -> float:
        """Learning rate of the given update (0-based): linear warm-up, then the schedule."""
        plan, total = (
            self.config.update,
            self.config.steps * self.config.update.minibatches * self.config.update.epochs,
        )
        if update < plan.warmup:
            return plan.lr * (update + 1) / plan.warmup
        progress = min(1.0, (update - plan.warmup) / max(1, total - plan.warmup))
        factor = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
        return plan.lr * factor[plan.schedule]

    def learn(self, rows: Rows, *, step: int, phase: Callable[..., None] = lambda *_: None) -> UpdateStats:
        """The update phase: `update.epochs` passes over the rows in `update.minibatches` mini-batches each."""
        started = perf_counter()
        stats = UpdateStats()
        with self._attention(self.policy), direct_gradients(self.policy):
            rows = self._settle_behaviour(rows, stats)
            if self.reference is not None:
                with self._attention(self.reference):
                    everyone = range(len(rows.completions))
                    rows = replace(rows, reference_logprobs=self._logprobs(self.reference, rows, everyone))
            for epoch in range(self.config.update.epochs):
                for i, members in enumerate(minibatches(self.config, rows.group, step=step, epoch=epoch)):
                    phase("update", stats.updates, self.config.update.minibatches * self.config.update.epochs, 0)
                    self._update(
                        rows,
                        members,
                        stats,
                        generator_key=row_key(self.config.seed, SELECTION_STREAM, step, epoch, i),
                    )
        stats.seconds = perf_counter() - started
        return stats

    def _attention(self, policy: Policy) -> AbstractContextManager[None]:
        return shared_attention(policy.model) if self.share_prompts else nullcontext()

    def _update(self, rows: Rows, members: list[int], stats: UpdateStats, *, generator_key: int) -> None:
        """One optimiser step on the rows `members`."""
        mask = rows.mask[members]
        update_tokens, update_completions = int(mask.sum()), int(mask.any(1).sum())
        stats.tokens += update_tokens
        stats.rows += len(members)
        if update_tokens == 0:
            return
        selected = self._selection(rows, members, generator_key)
        acting = self._acting(rows, members, selected)
        stats.rows_kept += len(acting)
        stats.tokens_kept += sum(len(rows.completions[i]) for i in acting)
        reduce = self._reduction(update_tokens, update_completions)
        self.optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for micro in microbatches(rows, acting, self.config.update.tokens_per_microbatch, shared=self.share_prompts):
            loss = reduce(self._per_token(rows, micro, selected, stats), rows.mask[micro])
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.update.max_grad_norm, foreach=True))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr(self.updates_done)
        self.updates_done += 1
        if not math.isfinite(norm):
            stats.skipped_nonfinite += 1
            return
        self.optimizer.step()
        # The fused optimiser writes without telling autograd, which is how stale copies are known.
        increment_version(self.parameters)
        stats.updates += 1
        stats.losses.append(total)
        stats.grad_norms.append(norm)

    def _per_token(
        self, rows: Rows, micro: list[int], selected: Bool[Tensor, "n t"] | None, stats: UpdateStats
    ) -> Float[Tensor, "m t"]:
        """The objective's per-token loss of some rows, with gradient."""
        algorithm = self.config.algorithm
        logprobs, entropies = self._forward(self.policy, rows, micro)
        behaviour, advantages, mask = (x[micro] for x in (rows.behaviour_logprobs, rows.advantages, rows.mask))
        more = {} if selected is None else {"selected": selected[micro]}
        per_token = self.loss(logprobs, behaviour, advantages, mask, **more)
        if algorithm.loss.clip_high is not None:
            low, high = clip_fractions(
                logprobs.detach(),
                behaviour,
                advantages,
                mask,
                clip_low=algorithm.loss.clip_low or 0.0,
                clip_high=algorithm.loss.clip_high,
                level="sequence" if algorithm.loss.name == "sequence" else "token",
            )
            stats.clipped_low += int(low)
            stats.clipped_high += int(high)
        if rows.token_weights is not None:
            per_token = per_token * rows.token_weights[micro]
        if rows.reference_logprobs is not None:
            per_token = per_token + algorithm.kl * kl_penalty_k3(logprobs, rows.reference_logprobs[micro], mask)
        if algorithm.entropy_bonus:
            per_token = per_token - algorithm.entropy_bonus * entropies
        return per_token

    def _acting(self, rows: Rows, members: list[int], selected: Bool[Tensor, "n t"] | None) -> list[int]:
        """The rows whose gradient is not 0 by definition; all of them if rows are not skipped."""
        algorithm = self.config.algorithm
        if algorithm.skip_zero_advantage == "off" or self.config.inexact_skipping():
            return members
        acts = rows.advantages != 0
        if algorithm.loss.name == "kl_cov" and selected is not None:
            acts = acts | selected.any(1)
        return [i for i in members if acts[i]]

    def _selection(self, rows: Rows, members: list[int], generator_key: int) -> Bool[Tensor, "n t"] | None:
        """The tokens that Clip-Cov detaches or KL-Cov penalises, chosen over the whole update; None for others."""
        loss = self.config.algorithm.loss
        if loss.name not in ("clip_cov", "kl_cov"):
            return None
        logprobs = self._logprobs(self.policy, rows, members)
        logprobs, behaviour, advantages, mask = (
            x[members] for x in (logprobs, rows.behaviour_logprobs, rows.advantages, rows.mask)
        )
        if loss.name == "clip_cov":
            generator = torch.Generator(self.policy.device).manual_seed(generator_key % 2**63)
            constants = _constants(clip_cov_selection, loss)
            chosen = clip_cov_selection(logprobs, behaviour, advantages, mask, generator=generator, **constants)
        else:
            chosen = kl_cov_selection(logprobs, advantages, mask, **_constants(kl_cov_selection, loss))
        selected = torch.zeros_like(rows.mask)
        selected[members] = chosen
        return selected

    def _settle_behaviour(self, rows: Rows, stats: UpdateStats) -> Rows:
        """Hold the sampler's log-probs against the trainer's; recompute them where asked or needed.

        In bfloat16 the two always differ by more than `update.gap_bound`, so there no rows are spent on asking.
        """
        update, loss, n = self.config.update, self.config.algorithm.loss.name, len(rows.completions)
        acting = self._acting(rows, list(range(n)), None) or list(range(n))
        # Rows that no term reads keep the sampler's values.
        readers = list(range(n)) if loss in ("clip_cov", "kl_cov") else acting
        expected = update.behaviour_logprobs == "recompute" or (
            update.behaviour_logprobs == "auto" and (loss == "sequence" or self.policy.compute_dtype == torch.bfloat16)
        )
        compared = readers if expected else acting[:: max(1, len(acting) // GAP_ROWS)][:GAP_ROWS]
        recomputed = self._logprobs(self.policy, rows, compared)
        gap = (recomputed - rows.behaviour_logprobs)[compared].where(rows.mask[compared], 0.0)
        stats.logprob_gap_max = float(gap.abs().max())
        stats.recomputed = expected or (
            update.behaviour_logprobs == "auto" and stats.logprob_gap_max > update.gap_bound
        )
        if not stats.recomputed:
            return rows
        if not expected:
            recomputed = self._logprobs(self.policy, rows, readers)
        seen = torch.zeros(n, 1, dtype=torch.bool, device=self.policy.device)
        seen[readers] = True
        behaviour = torch.where(seen, recomputed, rows.behaviour_logprobs)
        weights = None
        if update.importance_cap is not None:
            weights = (behaviour - rows.behaviour_logprobs).exp().clamp(max=update.importance_cap)
        return replace(rows, behaviour_logprobs=behaviour, token_weights=weights)

    @torch.no_grad()
    def _logprobs(self, policy: Policy, rows: Rows, members: Sequence[int]) -> Float[Tensor, "n t"]:
        """[n t] log-probs of the rows `members` under the policy; 0 elsewhere."""
        out = torch.zeros_like(rows.behaviour_logprobs)
        for micro in microbatches(rows, members, self.config.update.tokens_per_microbatch, shared=self.share_prompts):
            out[micro] = self._forward(policy, rows, micro)[0]
        return out

    def _forward(self, policy: Policy, rows: Rows, micro: Sequence[int]) -> tuple[Tensor, Tensor]:
        """[m t] log-probs and entropies of some rows, 0 behind the end of each."""
        packed = self._pack(rows, micro)
        head: Any = policy.model.get_output_embeddings()
        flat = packed_logprobs(policy, packed, self.config.rollout.temperature, weight_grad=head.weight.grad)
        t = rows.mask.shape[1]
        lengths = torch.tensor([len(rows.completions[i]) for i in micro], device=policy.device)
        real = (torch.arange(t, device=policy.device) < lengths[:, None]).flatten().nonzero()[:, 0]
        padded = [x.new_zeros(len(micro) * t).index_copy(0, real, x).view(len(micro), t) for x in flat]
        return padded[0], padded[1]

    def _pack(self, rows: Rows, micro: Sequence[int]) -> Packed:
        pack = pack_shared if self.share_prompts else pack_padded
        return pack(
            rows.prompts,
            [rows.group[i] for i in micro],
            [rows.completions[i] for i in micro],
            self.policy.device,
        )

    def _reduction(self, update_tokens: int, update_completions: int) -> Callable[[Tensor, Tensor], Tensor]:
        match self.config.algorithm.reduction:
            case "token_mean":
                return partial(token_mean, update_tokens=update_tokens)
            case "sequence_mean":
                return partial(sequence_mean, update_completions=update_completions)
            case "sequence_sum":
                return partial(sequence_sum, update_completions=update_completions)
            case "sequence_sum_norm":
                return partial(
                    sequence_sum_norm,
                    update_completions=update_completions,
                    horizon_tokens=self.config.rollout.max_tokens,
                )


def minibatches(config: TrainConfig, group: Sequence[int], *, step: int, epoch: int) -> list[list[int]]:
    """Row numbers of each mini-batch of one pass, shuffled; whole groups unless `update.cut` is `rows`.

    Sizes differ by at most one group (or row). An incomplete batch still makes `update.minibatches` updates while it
    has as many pieces, so the learning rate's schedule keeps its meaning.
    """
    pieces: dict[int, list[int]] = {}
    for row, g in enumerate(group):
        pieces.setdefault(g if config.update.cut == "groups" else row, []).append(row)
    shuffled = sorted(pieces.values(), key=lambda rows: row_key(config.seed, SHUFFLE_STREAM, step, epoch, rows[0]))
    count = min(config.update.minibatches, len(shuffled))
    borders = [len(shuffled) * i // count for i in range(count + 1)] if count else [0]
    return [[row for piece in shuffled[a:b] for row in piece] for a, b in pairwise(borders)]


def microbatches(rows: Rows, members: Sequence[int], budget: int, *, shared: bool) -> list[list[int]]:
    """Rows cut by tokens: siblings together, groups of similar length side by side, at most `budget` tokens each.

    Counted is `Rows.tokens`, or without shared prompts the padded batch. A single row longer than the budget stands
    alone.
    """
    if not shared:
        return _padded_microbatches(rows, members, budget)
    longest: dict[int, int] = {}
    for i in members:
        longest[rows.group[i]] = max(longest.get(rows.group[i], 0), len(rows.completions[i]))
    order = sorted(members, key=lambda i: (longest[rows.group[i]], rows.group[i], len(rows.completions[i]), i))
    batches: list[list[int]] = []
    tokens = 0
    for i in order:
        prompt, completion = len(rows.prompts[rows.group[i]]), len(rows.completions[i])
        is_sibling = bool(batches) and rows.group[batches[-1][-1]] == rows.group[i]
        if batches and tokens + completion + (0 if is_sibling else prompt) <= budget:
            batches[-1].append(i)
            tokens += completion + (0 if is_sibling else prompt)
        else:
            batches.append([i])
            tokens = prompt + completion
    return batches


def _padded_microbatches(rows: Rows, members: Sequence[int], budget: int) -> list[list[int]]:
    """Rows by length, so that a batch's last one is its longest, to which the others are padded."""

    def length(i: int) -> int:
        return len(rows.prompts[rows.group[i]]) + len(rows.completions[i])

    batches: list[list[int]] = []
    for i in sorted(members, key=lambda i: (length(i), i)):
        if batches and (len(batches[-1]) + 1) * length(i) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _checkpoint_activations(model: Any) -> None:
    """Layers recompute their activations in the backward pass, without dropout.

    A layer recomputes if it finds itself in training mode, so it is in that mode, but never while it computes.
    """
    # transformers renamed it in 5.20 or so and warns of the old name
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"update.checkpoint_activations: {type(model).__name__} has no layers that transformers can recompute; "
            "set it to false and lower update.tokens_per_microbatch"
        )
    layer: Any
    for layer in layers:
        layer.training = True
        layer._gradient_checkpointing_func = partial(_recomputed, layer, layer._gradient_checkpointing_func)
        layer.register_forward_pre_hook(_rest_without_gradients)
        layer.register_forward_hook(_ready_again, always_call=True)


def _recomputed(layer: Any, checkpoint: Callable[..., Any], forward: Callable[..., Any], *args: Any) -> Any:
    def evaluated(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return checkpoint(evaluated, *args)


def _rest_without_gradients(layer: Any, inputs: Any) -> None:
    if not torch.is_grad_enabled():
        layer.training = False


def _ready_again(layer: Any, inputs: Any, outputs: Any) -> None:
    layer.training = True


def policy_loss(loss: LossConfig) -> Callable[..., Float[Tensor, "n t"]]:
    """The loss named in the configuration with its constants bound."""
    function: Callable[..., Any] = LOSSES[loss.name]
    return partial(function, **_constants(function, loss))


def _constants(function: Callable[..., Any], loss: LossConfig) -> dict[str, Any]:
    """The constants of the configuration that the function takes."""
    return {key: getattr(loss, key) for key in signature(function).parameters if hasattr(loss, key) and key != "name"}
