"""Proposition 4.1: what the advantages make of a GRPO-style objective, for every composition of a group."""

import pytest
import torch

from qae.advantages import mean_advantages, quantile_advantages

SIZE = 20


def compositions():
    """Every mixed group of 20 with made-up surrogate terms: rewards, ids, pass rates, s_plus, s_minus."""
    generator = torch.Generator().manual_seed(0)
    wins = torch.arange(1, SIZE)
    rewards = (torch.arange(SIZE) < wins[:, None]).double()
    s_plus, s_minus = torch.rand(2, SIZE - 1, SIZE, dtype=torch.float64, generator=generator)
    return rewards, wins.repeat_interleave(SIZE), wins / SIZE, s_plus, s_minus


def objective(advantages, s_plus, s_minus):
    """1/G sum_i A_i s(A_i): the clipped term's bound depends on the advantage's sign."""
    advantages = advantages.view(-1, SIZE)
    return (advantages * s_plus.where(advantages > 0, s_minus)).mean(1)


@pytest.mark.parametrize("k", [0.2, 0.4, 0.6, 0.8])
def test_quantile_objective_keeps_one_class(k):
    """J = 1{p <= 1-K} sqrt(p/(1-p)) E+ s+  -  1{p > 1-K} sqrt((1-p)/p) E- s-"""
    rewards, group_ids, p, s_plus, s_minus = compositions()
    found = objective(quantile_advantages(rewards.flatten(), group_ids, k, eps=0), s_plus, s_minus)
    success = (s_plus * rewards).sum(1) / rewards.sum(1)
    failure = (s_minus * (1 - rewards)).sum(1) / (1 - rewards).sum(1)
    hard = torch.tensor([100 * w <= (100 - round(100 * k)) * SIZE for w in range(1, SIZE)])
    expected = ((p / (1 - p)).sqrt() * success).where(hard, -((1 - p) / p).sqrt() * failure)
    torch.testing.assert_close(found, expected)


def test_mean_objective_keeps_both():
    """J = sqrt(p (1-p)) (E+ s+ - E- s-), arXiv:2505.12366"""
    rewards, group_ids, p, s_plus, s_minus = compositions()
    found = objective(mean_advantages(rewards.flatten(), group_ids, eps=0), s_plus, s_minus)
    success = (s_plus * rewards).sum(1) / rewards.sum(1)
    failure = (s_minus * (1 - rewards)).sum(1) / (1 - rewards).sum(1)
    torch.testing.assert_close(found, (p * (1 - p)).sqrt() * (success - failure))


def test_weights_of_figure_4():
    """K = 0.4 caps the two weights at sqrt(.6/.4) = 1.22 and sqrt(.4/.6) = 0.82, the figure's axes."""
    rewards = (torch.arange(1000) < torch.arange(1, 1000)[:, None]).double()
    group_ids = torch.arange(999).repeat_interleave(1000)
    weight = quantile_advantages(rewards.flatten(), group_ids, 0.4, eps=0).view(-1, 1000).mean(1)
    assert weight.argmax() == 600 - 1
    assert weight.max() == pytest.approx(1.22, abs=0.005)
    assert weight.argmin() == 601 - 1
    assert weight.min() == pytest.approx(-((0.4 / 0.6) ** 0.5), abs=0.002)
