"""The mean shifted down (AsymRE) and a fixed baseline: hand values, definitions, what they coincide with."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import asymre_advantages, fixed_advantages, mean_advantages, quantile_advantages
from reward_batches import batches, binary, floats, graded, integers, law, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")
scales = st.sampled_from([("std", "n"), ("std", "n-1"), ("none", "n")])


def test_hand_values():
    rewards, group_ids = one_group([1.0, 0, 0, 0])
    assert asymre_advantages(rewards, group_ids, shift=0.25, scale="none").tolist() == [1, 0, 0, 0]
    assert asymre_advantages(rewards, group_ids, shift=-0.25, scale="none").tolist() == [0.5, -0.5, -0.5, -0.5]
    assert fixed_advantages(rewards, group_ids, scale="none").tolist() == [1, 0, 0, 0]
    assert fixed_advantages(rewards, group_ids, baseline=1, scale="none").tolist() == [0, -1, -1, -1]
    torch.testing.assert_close(
        fixed_advantages(rewards, group_ids, baseline=0.5, eps=0), torch.tensor([2, -2, -2, -2]) / 3**0.5
    )


@law
@given(batches(), graded, scales)
def test_equal_their_definition(batch, number, scale):
    options = {"scale": scale[0], "divisor": scale[1], "eps": 1e-6}
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    for found, expected in (
        (
            asymre_advantages(rewards, group_ids, shift=float(number), **options),
            reference.constant_advantages(*batch, below_mean=number, **options),
        ),
        (
            fixed_advantages(rewards, group_ids, baseline=float(number), **options),
            reference.constant_advantages(*batch, baseline=number, **options),
        ),
    ):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@law
@given(batches(binary), st.sampled_from([Fraction(1, 8), Fraction(1, 4)]))
def test_the_shift_lowers_the_baseline_of_every_row_alike(batch, shift):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    plain, shifted = (asymre_advantages(rewards, group_ids, shift=s, scale="none") for s in (0.0, float(shift)))
    assert torch.equal(plain, mean_advantages(rewards, group_ids, scale="none"))
    learns = mean_advantages(rewards, group_ids) != 0
    torch.testing.assert_close((shifted - plain)[learns], torch.full_like(plain[learns], float(shift)))


@law
@given(batches(binary))
def test_0_and_1_are_the_two_ends_of_the_quantile(batch):
    """On 0/1 rewards a K below 1/n gives baseline 0 to every mixed group, and one above 1 - 1/n gives 1."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    for baseline, k in ((0.0, 0.01), (1.0, 0.99)):
        assert torch.equal(
            fixed_advantages(rewards, group_ids, baseline=baseline), quantile_advantages(rewards, group_ids, k)
        )


@law
@given(batches(unscored=False), st.integers(-3, 3), st.sampled_from([Fraction(1, 2), 2, 4]))
def test_moving_rewards_and_baseline_together_changes_nothing(batch, move, factor):
    moved = floats([factor * r + move for r in batch[0]])
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    found = fixed_advantages(moved, group_ids, baseline=float(factor / 2 + move), eps=0)
    torch.testing.assert_close(found, fixed_advantages(rewards, group_ids, baseline=0.5, eps=0), rtol=1e-12, atol=1e-12)
    found = asymre_advantages(moved, group_ids, shift=float(factor / 8), eps=0)
    torch.testing.assert_close(found, asymre_advantages(rewards, group_ids, shift=0.125, eps=0), rtol=1e-12, atol=1e-12)


def test_on_policy_no_constant_baseline_moves_the_expected_gradient():
    """Over all groups of three answers of a policy, E[sum A grad log pi] is the same for every b, without scale.

    Groups of equal rewards are put to 0 by every estimator, which is where a constant baseline is not quite free: the
    sum over mixed groups is compared with the same sum written out.
    """
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    outcome = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for b in (0.0, 1.0):
        total, right = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for group in torch.cartesian_prod(*[torch.arange(3)] * 3):
            rewards = outcome[group]
            chance = logprobs[group].sum().exp().detach()
            advantages = fixed_advantages(rewards, torch.zeros(3, dtype=torch.int64), baseline=b, scale="none")
            total = total + chance * (advantages * logprobs[group]).sum()
            if 0 < rewards.sum() < 3:
                right = right + chance * ((rewards - b) * logprobs[group]).sum()
        (found,) = torch.autograd.grad(total, logits, retain_graph=True)
        (expected,) = torch.autograd.grad(right, logits, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert found[0] > 0
