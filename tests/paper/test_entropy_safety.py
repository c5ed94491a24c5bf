"""The first-order entropy identity and proposition 4.2: true under the paper's logit step, void under the real one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qae.advantages import mean_advantages, quantile_advantages
from qae.entropy import predicted_entropy_change
from reward_batches import law

ETA = 1e-3
BASELINES = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]


@st.composite
def bandits(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits of a policy that is clearly not uniform, and 0/1 rewards that are not all equal."""
    size = draw(st.integers(3, 8))
    logits = draw(st.lists(st.floats(-3, 3), min_size=size, max_size=size))
    wins = draw(st.integers(1, size - 1))
    logits[0], logits[1] = 1.0, -1.0
    return torch.tensor(logits, dtype=torch.float64), (torch.arange(size) < wins).double()


def entropy(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def covariance(logits: Tensor, of_action: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    return (probs * (logprobs - probs @ logprobs) * (of_action - (probs @ of_action))).sum(-1)


def expected_reward_gradient(logits: Tensor, advantages: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    (logits.softmax(-1) @ advantages).backward()
    return logits.grad


@law
@given(bandits())
def test_the_baseline_is_a_linear_knob_under_the_paper_s_step(bandit):
    """F(b) = Cov(log pi, pi (r - b)) = F(0) - b Cov(log pi, pi), and Cov(log pi, pi) > 0 unless pi is uniform."""
    logits, reward = bandit
    probs = logits.softmax(-1)
    slope = covariance(logits, probs)
    assert slope > 0
    change = predicted_entropy_change(logits.expand(11, -1), reward - BASELINES, ETA, centred=False)
    expected = -ETA * (covariance(logits, probs * reward) - BASELINES[:, 0] * slope)
    torch.testing.assert_close(change, expected, rtol=1e-9, atol=1e-15)


@law
@given(bandits())
def test_two_regime_entropy_safety_under_the_paper_s_step(bandit):
    """Proposition 4.2: over b in [0, 1] the hard side's b = 0 gives the least entropy, b = 1 the most."""
    logits, reward = bandit
    change = predicted_entropy_change(logits.expand(11, -1), reward - BASELINES, ETA, centred=False)
    assert (change.diff() > 0).all()
    assert (change.argmin(), change.argmax()) == (0, 10)


@law
@given(bandits())
def test_the_real_step_does_not_depend_on_the_baseline(bandit):
    """pi (A - E_pi A) is the gradient of the expected reward, from which b cancels; the entropy moves alike."""
    logits, reward = bandit
    steps = torch.stack([ETA * expected_reward_gradient(logits, reward - b) for b in BASELINES])
    measured = entropy(logits + steps) - entropy(logits)
    torch.testing.assert_close(measured, measured[:1].expand(11), rtol=1e-9, atol=1e-14)
    predicted = predicted_entropy_change(logits.expand(11, -1), reward - BASELINES, ETA)
    torch.testing.assert_close(predicted, predicted[:1].expand(11), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("centred", [True, False])
def test_prediction_matches_measured_entropy_to_second_order(centred):
    """Ten times smaller steps, a hundred times smaller error: the prediction is the derivative."""
    generator = torch.Generator().manual_seed(0)
    logits, advantages = torch.randn(2, 50, 12, dtype=torch.float64, generator=generator)
    probs = logits.softmax(-1)
    gradient = probs * (advantages - (probs * advantages).sum(-1, keepdim=True) * centred)
    errors = []
    for eta in (1e-1, 1e-2, 1e-3):
        measured = entropy(logits + eta * gradient) - entropy(logits)
        predicted = predicted_entropy_change(logits, advantages, eta, centred=centred)
        errors.append((measured - predicted).abs().max())
        assert (measured - predicted).abs().max() < 0.5 * eta**2
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(100, rel=0.2)


def test_the_two_agree_only_where_the_mean_advantage_is_zero():
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    reward = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    mean = logits.softmax(-1) @ reward
    of_mean = [predicted_entropy_change(logits, reward - mean, ETA, centred=c) for c in (True, False)]
    torch.testing.assert_close(*of_mean)
    of_zero = [predicted_entropy_change(logits, reward, ETA, centred=c) for c in (True, False)]
    assert of_zero[0] / of_zero[1] < 0.6


def test_sampled_groups_move_entropy_alike_whatever_the_baseline():
    """The estimators themselves: expected logit steps of 20,000 groups of 16, mean against quantile."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([1.5, 0.5, 0.0, -0.5, -1.0], dtype=torch.float64)
    reward = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    probs = logits.softmax(-1)
    actions = torch.multinomial(probs, 320_000, replacement=True, generator=generator)
    group_ids = torch.arange(320_000) // 16
    score = torch.nn.functional.one_hot(actions, 5) - probs
    change = {}
    for name, advantages in (
        ("mean", mean_advantages(reward[actions], group_ids, scale="none")),
        ("quantile", quantile_advantages(reward[actions], group_ids, k=0.4, scale="none")),
    ):
        step = (advantages[:, None] * score).mean(0)
        change[name] = float(entropy(logits + ETA * step / step.norm()) - entropy(logits)) / ETA
    assert change["quantile"] == pytest.approx(change["mean"], rel=0.02)
