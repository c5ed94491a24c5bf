"""The quantile baseline: hand values, the definition, the gate of the paper, invariances."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import quantile_advantages
from reward_batches import batches, binary, floats, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


def test_hand_values_hard_and_easy():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
    group_ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    unscaled = quantile_advantages(rewards, group_ids, k=0.4, scale="none")
    assert unscaled.tolist() == [1, 0, 0, 0, 0, 0, 0, -1]
    # p = 1/4 and 3/4: std = sqrt(3)/4, so that |A| = 4/sqrt(3)
    scaled = quantile_advantages(rewards, group_ids, k=0.4, eps=0)
    torch.testing.assert_close(scaled, unscaled * 4 / 3**0.5)
    sample = quantile_advantages(rewards, group_ids, k=0.4, divisor="n-1", eps=0)
    torch.testing.assert_close(sample, unscaled * 2)


def test_the_tie_is_hard():
    """p = 1 - K exactly: 4 failures of 10 at K = 0.4."""
    rewards, group_ids = one_group([0.0] * 4 + [1.0] * 6)
    assert quantile_advantages(rewards, group_ids, k=0.4, scale="none").tolist() == [0.0] * 4 + [1.0] * 6
    assert quantile_advantages(rewards, group_ids, k=0.41, scale="none").tolist() == [-1.0] * 4 + [0.0] * 6


def test_eps_is_added_to_the_standard_deviation():
    rewards, group_ids = one_group([1.0, 0.0])
    assert quantile_advantages(rewards, group_ids, eps=0.5)[0] == 1.0
    assert quantile_advantages(rewards, group_ids, eps=0.0)[0] == 2.0


@law
@given(
    batches(),
    levels,
    st.sampled_from(["exact", "linear"]),
    st.sampled_from(["std", "none"]),
    st.sampled_from(["n", "n-1"]),
)
def test_equals_the_definition(batch, k, method, scale, divisor):
    options = {"method": method, "scale": scale, "divisor": divisor, "eps": 1e-6}
    found = quantile_advantages(floats(batch[0]), integers(batch[1]), float(k), **options)
    expected = torch.tensor(reference.quantile_advantages(*batch, k, **options), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(binary, unscored=False), levels)
def test_two_regime_gate(batch, k):
    """p <= 1 - K reinforces successes only, p > 1 - K penalises failures only."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    advantages = quantile_advantages(rewards, group_ids, float(k))
    for group in group_ids.unique():
        rows = group_ids == group
        wins, size = int(rewards[rows].sum()), int(rows.sum())
        if Fraction(wins, size) <= 1 - k:
            assert (advantages[rows] >= 0).all()
            assert torch.equal(advantages[rows] > 0, (rewards[rows] > 0) & (size > 1))
        else:
            assert (advantages[rows] <= 0).all()
            assert torch.equal(advantages[rows] < 0, (rewards[rows] == 0) & (size > 1))


@law
@given(batches(), levels, st.integers(-3, 3), st.sampled_from([Fraction(1, 2), 2, 4]))
def test_affine_rewards_give_the_same_standardised_advantages(batch, k, shift, factor):
    moved = [None if r is None else factor * r + shift for r in batch[0]], batch[1]
    found, expected = (
        quantile_advantages(floats(rewards), integers(group_ids), float(k), eps=0)
        for rewards, group_ids in (batch, moved)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(unscored=False), levels)
def test_the_baseline_is_a_reward_that_some_row_got(batch, k):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    baseline = rewards - quantile_advantages(rewards, group_ids, float(k), scale="none")
    for row, group in enumerate(batch[1]):
        assert baseline[row] in rewards[group_ids == group]


def test_the_gradient_of_a_loss_does_not_see_how_the_advantage_was_made():
    """d/dtheta of A(R) log pi is A(R) d log pi, even if the reward itself carries a gradient."""
    theta = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    rewards, group_ids = one_group([1.0, 0.0, 0.0, 1.0])
    advantages = quantile_advantages(rewards + theta - theta, group_ids)
    (advantages * theta).sum().backward()
    assert torch.equal(theta.grad, quantile_advantages(rewards, group_ids))
