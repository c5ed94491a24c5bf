"""Baselines that leave the row out: the mean of the others (RLOO) and their quantile."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import (
    leave_one_out_advantages,
    leave_one_out_quantile_advantages,
    mean_advantages,
    quantile_advantages,
)
from reward_batches import batches, binary, floats, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


def test_hand_values():
    rewards, group_ids = one_group([1.0, 0.0, 1.0, 0.0])
    third = 1 / 3
    torch.testing.assert_close(
        leave_one_out_advantages(rewards, group_ids), torch.tensor([1 - third, -2 * third, 1 - third, -2 * third])
    )


@law
@given(batches())
def test_equals_the_definition(batch):
    found = leave_one_out_advantages(floats(batch[0]), integers(batch[1]))
    expected = torch.tensor(reference.leave_one_out_advantages(*batch), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(unscored=False))
def test_is_the_centred_reward_times_n_over_n_minus_1(batch):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    size = torch.tensor([(group_ids == g).sum() for g in group_ids], dtype=torch.float64).clamp(min=2)
    centred = mean_advantages(rewards, group_ids, scale="none")
    torch.testing.assert_close(
        leave_one_out_advantages(rewards, group_ids), centred * size / (size - 1), rtol=1e-12, atol=1e-12
    )


def test_the_baseline_of_a_row_does_not_see_its_own_reward():
    """What makes the baseline free of bias: moving R_i moves A_i by exactly as much."""
    rewards, group_ids = one_group([0.25, 0.0, 1.0])
    before = leave_one_out_advantages(rewards, group_ids)
    rewards[0] += 0.5
    assert leave_one_out_advantages(rewards, group_ids)[0] - before[0] == 0.5


def test_quantile_hand_values():
    """K = .4 of the two others: the lower one. Of [1, 1, 0] a success leaves (1, 0) -> 0, the failure (1, 1) -> 1."""
    rewards, group_ids = one_group([1.0, 1.0, 0.0])
    found = leave_one_out_quantile_advantages(rewards, group_ids, k=0.4, scale="none")
    assert found.tolist() == [1, 1, -1]
    linear = leave_one_out_quantile_advantages(rewards, group_ids, k=0.4, method="linear", scale="none")
    assert linear.tolist() == pytest.approx([0.6, 0.6, -1])
    assert quantile_advantages(rewards, group_ids, k=0.4, scale="none").tolist() == [0, 0, -1]


@law
@given(
    batches(),
    levels,
    st.sampled_from(["exact", "linear"]),
    st.sampled_from([("std", "n"), ("std", "n-1"), ("none", "n")]),
)
def test_quantile_equals_the_definition(batch, k, method, scale):
    options = {"method": method, "scale": scale[0], "divisor": scale[1], "eps": 1e-6}
    found = leave_one_out_quantile_advantages(floats(batch[0]), integers(batch[1]), float(k), **options)
    expected = reference.leave_one_out_quantile_advantages(*batch, k, **options)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@law
@given(batches(binary, unscored=False), levels)
def test_quantile_differs_from_the_ordinary_one_at_the_threshold_only(batch, k):
    """With w failures of n the baselines can differ only where w / n and K are within one row of each other."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    whole, others = (
        estimate(rewards, group_ids, float(k), scale="none")
        for estimate in (quantile_advantages, leave_one_out_quantile_advantages)
    )
    for group in group_ids.unique():
        rows = group_ids == group
        failures, size = int((rewards[rows] == 0).sum()), int(rows.sum())
        if abs(failures - k * size) > 1:
            assert torch.equal(whole[rows], others[rows])


def test_quantile_of_the_others_leaves_the_expected_update_alone():
    """Over all groups of three answers: E[mean A grad log pi] is the gradient of the pass rate itself; the ordinary
    quantile's is not, as its baseline has seen the row."""
    logits = torch.tensor([0.4, -0.3, 0.2], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    outcome = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    (right,) = torch.autograd.grad(logprobs.exp()[0], logits, retain_graph=True)

    def expected_update(estimate):
        total = torch.zeros((), dtype=torch.float64)
        for group in torch.cartesian_prod(*[torch.arange(3)] * 3):
            chance = logprobs[group].sum().exp().detach()
            advantages = estimate(outcome[group], torch.zeros(3, dtype=torch.int64), 0.4, scale="none")
            total = total + chance * (advantages * logprobs[group]).mean()
        return torch.autograd.grad(total, logits, retain_graph=True)[0]

    torch.testing.assert_close(expected_update(leave_one_out_quantile_advantages), right, rtol=1e-12, atol=1e-12)
    assert (expected_update(quantile_advantages) - right).abs().max() > 0.01


@law
@given(batches(), levels, st.integers(-3, 3), st.sampled_from([Fraction(1, 2), 2, 4]))
def test_quantile_affine_rewards_give_the_same_advantages(batch, k, shift, factor):
    moved = [None if r is None else factor * r + shift for r in batch[0]]
    found, expected = (
        leave_one_out_quantile_advantages(floats(rewards), integers(batch[1]), float(k), eps=0)
        for rewards in (batch[0], moved)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
