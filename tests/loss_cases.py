"""Batches for the losses' tests, and the losses again, slowly, one token at a time in Python floats."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from qae.losses import LOSSES

law = settings(deadline=None, max_examples=40)


@dataclass(frozen=True)
class Batch:
    logprobs: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    mask: Tensor

    @property
    def args(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logprobs, self.behaviour_logprobs, self.advantages, self.mask

    def rows(self, index: Tensor | slice | list[int]) -> "Batch":
        return Batch(*(x[index] for x in self.args))

    def on_policy(self) -> "Batch":
        return replace(self, behaviour_logprobs=self.logprobs.detach().clone())

    def as_lists(self) -> tuple[list, list, list, list]:
        return tuple(x.tolist() for x in self.args)


@st.composite
def batches(draw, min_rows: int = 1, max_rows: int = 4, max_tokens: int = 5) -> Batch:
    """Ragged batches whose ratios lie on both sides of every clip, with zero advantages and empty rows among them."""
    n, t = draw(st.integers(min_rows, max_rows)), draw(st.integers(1, max_tokens))
    cells = st.lists(st.floats(-4.0, -0.01), min_size=n * t, max_size=n * t)
    moves = st.lists(st.floats(-0.7, 0.7), min_size=n * t, max_size=n * t)
    logprobs = torch.tensor(draw(cells), dtype=torch.float64).view(n, t)
    behaviour = logprobs - torch.tensor(draw(moves), dtype=torch.float64).view(n, t)
    advantage = st.one_of(st.just(0.0), st.floats(0.125, 3.0), st.floats(-3.0, -0.125))
    advantages = torch.tensor(draw(st.lists(advantage, min_size=n, max_size=n)), dtype=torch.float64)
    lengths = torch.tensor(draw(st.lists(st.integers(0, t), min_size=n, max_size=n)))
    return Batch(logprobs, behaviour, advantages, torch.arange(t) < lengths[:, None])


def seeded_batch(seed: int, n: int = 6, t: int = 9, dtype: torch.dtype = torch.float64) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(n, t, generator=rng, dtype=torch.float64) * 3 - 0.01
    behaviour = logprobs - torch.randn(n, t, generator=rng, dtype=torch.float64) * 0.3
    advantages = torch.randn(n, generator=rng, dtype=torch.float64)
    advantages[1::3] = 0.0
    lengths = torch.randint(1, t + 1, (n,), generator=rng)
    mask = torch.arange(t) < lengths[:, None]
    return Batch(logprobs.to(dtype), behaviour.to(dtype), advantages.to(dtype), mask)


def loss_of(name: str, batch: Batch, **settings) -> Tensor:
    """Any loss of the table on a batch; the one that draws gets a generator of its own."""
    if name == "clip_cov" and "selected" not in settings:
        settings.setdefault("generator", torch.Generator().manual_seed(0))
    return LOSSES[name](*batch.args, **settings)


def gradient(name: str, batch: Batch, weights: Tensor | None = None, **settings) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by log-probability."""
    logprobs = batch.logprobs.detach().clone().requires_grad_()
    loss = loss_of(name, replace(batch, logprobs=logprobs), **settings)
    loss.backward(torch.ones_like(loss) if weights is None else weights)
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


# The slow definitions. A token that is masked counts nowhere.


def slow_clip(batch: Batch, low: float, high: float, dual_clip: float | None = None) -> list[list[float]]:
    def token(logprob: float, behaviour: float, advantage: float) -> float:
        ratio = math.exp(logprob - behaviour)
        loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
        return min(loss, -dual_clip * advantage) if dual_clip is not None and advantage < 0 else loss

    return _per_token(batch, token)


def slow_sequence(batch: Batch, low: float, high: float) -> list[list[float]]:
    logprobs, behaviour, advantages, mask = batch.as_lists()
    out = []
    for i, advantage in enumerate(advantages):
        logs = [p - b for p, b, m in zip(logprobs[i], behaviour[i], mask[i], strict=True) if m]
        ratio = math.exp(sum(logs) / len(logs)) if logs else 1.0
        value = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
        out.append([value if m else 0.0 for m in mask[i]])
    return out


def slow_cispo(batch: Batch, low: float, high: float) -> list[list[float]]:
    return _per_token(batch, lambda p, b, advantage: -min(max(math.exp(p - b), low), high) * advantage * p)


def slow_sapo(batch: Batch, tau_positive: float, tau_negative: float) -> list[list[float]]:
    def token(logprob: float, behaviour: float, advantage: float) -> float:
        tau = tau_positive if advantage > 0 else tau_negative
        return -4 / tau / (1 + math.exp(-tau * (math.exp(logprob - behaviour) - 1))) * advantage

    return _per_token(batch, token)


def slow_kl_cov(batch: Batch, selected: Tensor, coef: float) -> list[list[float]]:
    surrogate = _per_token(batch, lambda p, b, advantage: -math.exp(p - b) * advantage)
    penalty = _per_token(batch, lambda p, b, _: coef * abs(p - b))
    return [
        [s + (k if chosen else 0.0) for s, k, chosen in zip(*row, strict=True)]
        for row in zip(surrogate, penalty, selected.tolist(), strict=True)
    ]


def exact_covariances(batch: Batch) -> dict[tuple[int, int], Fraction]:
    """Centred products over the unmasked tokens, without rounding."""
    logprobs, _, advantages, mask = batch.as_lists()
    tokens = [(i, j) for i, row in enumerate(mask) for j, m in enumerate(row) if m]
    if not tokens:
        return {}
    mean_log = sum(Fraction(logprobs[i][j]) for i, j in tokens) / len(tokens)
    mean_advantage = sum(Fraction(advantages[i]) for i, _ in tokens) / len(tokens)
    return {
        (i, j): (Fraction(advantages[i]) - mean_advantage) * (Fraction(logprobs[i][j]) - mean_log) for i, j in tokens
    }


def _per_token(batch: Batch, token) -> list[list[float]]:
    logprobs, behaviour, advantages, mask = batch.as_lists()
    return [
        [token(p, b, advantage) if m else 0.0 for p, b, m in zip(logprobs[i], behaviour[i], mask[i], strict=True)]
        for i, advantage in enumerate(advantages)
    ]
