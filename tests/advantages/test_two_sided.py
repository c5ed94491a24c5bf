"""POS-mask, NEG-mask and W-REINFORCE: hand values, definitions, how they compose to the quantile, invariances."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import (
    fixed_advantages,
    neg_mask_advantages,
    pos_mask_advantages,
    quantile_advantages,
    w_reinforce_advantages,
)
from reward_batches import batches, binary, floats, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")
MASKS = {"pos": pos_mask_advantages, "neg": neg_mask_advantages}
HARD_AND_EASY = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.arange(8) // 4
scales = st.sampled_from([("std", "n"), ("std", "n-1"), ("none", "n")])


@pytest.mark.parametrize(("side", "right"), [("pos", [1, -1, -1, -1, 0, 0, 0, -1]), ("neg", [1, 0, 0, 0, 1, 1, 1, -1])])
def test_hand_values(side, right):
    assert MASKS[side](*HARD_AND_EASY, k=0.4, scale="none").tolist() == right
    # p = 1/4 and 3/4: std = sqrt(3)/4
    torch.testing.assert_close(MASKS[side](*HARD_AND_EASY, k=0.4, eps=0), torch.tensor(right) * 4 / 3**0.5)


def test_w_reinforce_hand_values():
    rewards, group_ids = one_group([1.0, 0, 0, 1])
    assert w_reinforce_advantages(rewards, group_ids).tolist() == pytest.approx([0.1, -1, -1, 0.1])
    assert w_reinforce_advantages(rewards, group_ids, positive_weight=0).tolist() == [0, -1, -1, 0]


@pytest.mark.parametrize("side", MASKS)
@law
@given(batch=batches(), k=levels, scale=scales)
def test_masks_equal_their_definition(side, batch, k, scale):
    options = {"scale": scale[0], "divisor": scale[1], "eps": 1e-6}
    found = MASKS[side](floats(batch[0]), integers(batch[1]), float(k), **options)
    expected = torch.tensor(reference.masked_advantages(*batch, k, side, **options), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(), st.sampled_from([Fraction(0), Fraction(1, 8), Fraction(2)]))
def test_w_reinforce_equals_its_definition(batch, weight):
    found = w_reinforce_advantages(floats(batch[0]), integers(batch[1]), positive_weight=float(weight))
    expected = torch.tensor(reference.w_reinforce_advantages(*batch, weight), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(binary), levels)
def test_each_mask_adds_one_class_to_the_quantile(batch, k):
    """POS-mask adds the negatives of hard prompts, NEG-mask the positives of easy ones, and nothing else changes."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    quantile, pos, neg = (f(rewards, group_ids, float(k)) for f in (quantile_advantages, *MASKS.values()))
    added = pos - quantile
    assert torch.equal(pos[quantile != 0], quantile[quantile != 0])
    assert torch.equal(neg[quantile != 0], quantile[quantile != 0])
    assert (added <= 0).all()
    assert (neg - quantile >= 0).all()
    successes, failures = (fixed_advantages(rewards, group_ids, baseline=b) for b in (0.0, 1.0))
    torch.testing.assert_close(pos + neg, quantile + successes + failures, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("side", MASKS)
@law
@given(batch=batches(), k=levels, shift=st.integers(-3, 3), factor=st.sampled_from([Fraction(1, 2), 2, 4]))
def test_affine_rewards_give_the_same_advantages(side, batch, k, shift, factor):
    moved = [None if r is None else factor * r + shift for r in batch[0]]
    found, expected = (
        MASKS[side](floats(rewards), integers(batch[1]), float(k), eps=0) for rewards in (batch[0], moved)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(binary, unscored=False))
def test_w_reinforce_s_gradient_is_that_of_both_sides_apart(batch):
    """The gradient of sum A log pi is lambda times the successes' part plus the failures' part."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    logits = torch.linspace(-1, 1, 2 * len(rewards), dtype=torch.float64).reshape(-1, 2).requires_grad_()

    def gradient(advantages):
        objective = (advantages * logits.log_softmax(-1)[:, 0]).sum()
        return torch.autograd.grad(objective, logits)[0]

    apart = [gradient(fixed_advantages(rewards, group_ids, baseline=b, scale="none")) for b in (0.0, 1.0)]
    both = gradient(w_reinforce_advantages(rewards, group_ids, positive_weight=0.25))
    torch.testing.assert_close(both, 0.25 * apart[0] + apart[1], rtol=1e-12, atol=1e-12)
