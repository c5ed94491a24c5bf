"""Quantile advantages whose gate sees the outcome only, with shaping beside it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import outcome_quantile_advantages, quantile_advantages
from reward_batches import batches, binary, floats, graded, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


@st.composite
def shaped_batches(draw):
    outcomes, group_ids = draw(batches(binary))
    penalty = st.none() | graded.map(lambda p: -abs(p))
    return outcomes, draw(st.lists(penalty, min_size=len(outcomes), max_size=len(outcomes))), group_ids


def test_hand_values():
    outcomes, group_ids = one_group([1.0, 0.0, 0.0, 0.0])
    penalties = torch.tensor([0.0, -1.0, 0.0, 0.0])
    unscaled = outcome_quantile_advantages(outcomes, penalties, group_ids, 0.4, scale="none")
    assert unscaled.tolist() == [1.25, -0.75, 0.25, 0.25]
    scaled = outcome_quantile_advantages(outcomes, penalties, group_ids, 0.4, eps=0)
    torch.testing.assert_close(scaled, unscaled * 4 / 3**0.5)


@law
@given(shaped_batches(), levels)
def test_equals_the_definition(batch, k):
    outcomes, penalties, group_ids = batch
    found = outcome_quantile_advantages(floats(outcomes), floats(penalties), integers(group_ids), float(k))
    expected = reference.outcome_quantile_advantages(outcomes, penalties, group_ids, k, eps=1e-6)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@law
@given(batches(binary), levels, st.sampled_from([0.0, -0.5]))
def test_equal_penalties_change_nothing(batch, k, penalty):
    outcomes, group_ids = floats(batch[0]), integers(batch[1])
    found = outcome_quantile_advantages(outcomes, torch.full_like(outcomes, penalty), group_ids, float(k))
    torch.testing.assert_close(found, quantile_advantages(outcomes, group_ids, float(k)), rtol=1e-12, atol=1e-12)


@law
@given(shaped_batches(), levels)
def test_a_penalty_cannot_move_the_gate(batch, k):
    """The difference from the unpenalised advantages is the centred penalty over the outcome's scale, no more."""
    outcomes, penalties, group_ids = batch
    outcomes = [o if p is not None else None for o, p in zip(outcomes, penalties, strict=True)]
    plain = quantile_advantages(floats(outcomes), integers(group_ids), float(k))
    shaped = outcome_quantile_advantages(floats(outcomes), floats(penalties), integers(group_ids), float(k))
    for group in set(group_ids):
        rows = integers(group_ids) == group
        assert (shaped - plain)[rows].sum().abs() < 1e-10


def test_shaping_the_total_reward_breaks_the_gate_and_this_does_not():
    """Three short failures, one overlong, one success: with the total reward as input the failures are rewarded."""
    outcomes, group_ids = one_group([1.0, 0.0, 0.0, 0.0, 0.0])
    penalties = torch.tensor([0.0, 0.0, -0.25, -0.5, -1.0])
    total = quantile_advantages(outcomes + penalties, group_ids, k=0.4, scale="none")
    assert total.tolist() == [1.5, 0.5, 0.25, 0.0, -0.5]
    gated = outcome_quantile_advantages(outcomes, penalties, group_ids, k=0.4, scale="none")
    torch.testing.assert_close(gated, torch.tensor([1.35, 0.35, 0.10, -0.15, -0.65]))
    torch.testing.assert_close(gated.mean(), quantile_advantages(outcomes, group_ids, k=0.4, scale="none").mean())


def test_all_wrong_groups_stay_at_zero_whatever_their_lengths():
    outcomes, group_ids = one_group([0.0, 0.0, 0.0, 0.0])
    penalties = torch.tensor([0.0, 0.0, -0.5, -1.0])
    assert (outcome_quantile_advantages(outcomes, penalties, group_ids) == 0).all()
    assert (quantile_advantages(outcomes + penalties, group_ids) != 0).any()


def test_no_gradient_passes():
    outcomes, group_ids = one_group([1.0, 0.0])
    penalties = torch.tensor([0.0, -1.0], requires_grad=True)
    assert not outcome_quantile_advantages(outcomes, penalties, group_ids).requires_grad
