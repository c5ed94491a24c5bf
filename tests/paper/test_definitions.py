"""Section 4.1: the baseline, the advantage, the gate, and the scale of the reward."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import mean_advantages, quantile_advantages
from qae.groups import group_quantile
from reward_batches import batches, binary, floats, graded, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


@law
@given(st.lists(graded, min_size=1, max_size=30), levels)
def test_baseline_is_the_lower_order_statistic(rewards, k):
    """b_K = inf { x : F(x) >= K } = R_(ceil(K G)): as a function of K the left-continuous inverse."""
    baseline = group_quantile(floats(rewards), torch.zeros(len(rewards), dtype=torch.int64), float(k))[0]
    rank = -(-k * len(rewards) // 1)
    assert baseline == float(sorted(rewards)[int(rank) - 1]) == float(reference.quantile_from_definition(rewards, k))


@law
@given(st.lists(graded, min_size=2, max_size=30), levels, levels)
def test_baseline_rises_with_k(rewards, k, other):
    values, group_ids = floats(rewards), torch.zeros(len(rewards), dtype=torch.int64)
    low, high = sorted((float(k), float(other)))
    assert (group_quantile(values, group_ids, low) <= group_quantile(values, group_ids, high)).all()


@pytest.mark.parametrize("k", [0.2, 0.4, 0.5, 0.6, 0.8])
def test_binary_reduction_with_the_tie_on_the_hard_side(k):
    """Equation 4: b = 0 if p <= 1 - K, else 1, for every group of up to 40."""
    for size in range(2, 41):
        for wins in range(size + 1):
            values, group_ids = one_group([1.0] * wins + [0.0] * (size - wins))
            hard = Fraction(wins, size) <= 1 - Fraction(str(k))
            assert group_quantile(values, group_ids, k)[0] == (0.0 if hard else 1.0)


@law
@given(batches(binary, unscored=False), levels)
def test_standardised_magnitude(batch, k):
    """The active class gets 1/sqrt(p (1 - p)), plus or minus, with the population standard deviation."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    advantages = quantile_advantages(rewards, group_ids, float(k), eps=0)
    for group in group_ids.unique():
        p = rewards[group_ids == group].mean()
        active = advantages[(group_ids == group) & (advantages != 0)]
        torch.testing.assert_close(active.abs(), ((p * (1 - p)) ** -0.5).expand_as(active))


@pytest.mark.parametrize("k", [0.1, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_all_same_groups_need_no_special_case(k, outcome):
    values, group_ids = one_group([outcome] * 8)
    assert torch.equal(values, group_quantile(values, group_ids, k))


@law
@given(batches(binary, unscored=False), levels)
def test_plus_minus_one_rewards_give_the_same_advantages(batch, k):
    """verl's DAPO scorer returns +1 and -1: an order statistic commutes with affine maps."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    torch.testing.assert_close(
        quantile_advantages(2 * rewards - 1, group_ids, float(k), eps=0),
        quantile_advantages(rewards, group_ids, float(k), eps=0),
    )


def test_advantages_are_larger_than_those_of_the_mean():
    """At p = 1/2 GRPO gives 1 and QAE 2; at 1/16 they give 3.87 and 4.13."""
    for wins, size, of_mean, of_quantile in ((8, 16, 1.0, 2.0), (1, 16, 3.87, 4.13)):
        rewards, group_ids = one_group([1.0] * wins + [0.0] * (size - wins))
        assert mean_advantages(rewards, group_ids, eps=0)[0] == pytest.approx(of_mean, abs=0.005)
        assert quantile_advantages(rewards, group_ids, eps=0)[0] == pytest.approx(of_quantile, abs=0.005)


def test_only_eight_levels_differ_at_group_size_8():
    """.2 is .25, .4 is .5, and .05 has baseline 0 on every mixed group."""
    mixed = [[1.0] * wins + [0.0] * (8 - wins) for wins in range(1, 8)]
    rewards, group_ids = torch.tensor(mixed).flatten(), torch.arange(7).repeat_interleave(8)
    gates = {k: tuple(group_quantile(rewards, group_ids, k / 100).tolist()) for k in range(1, 100)}
    assert len(set(gates.values())) == 8
    assert gates[20] == gates[25] != gates[26]
    assert gates[40] == gates[50] != gates[51]
    assert set(gates[5]) == {0.0}
