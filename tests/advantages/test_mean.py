"""The mean baseline: GRPO, Dr. GRPO and MaxRL."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import mean_advantages
from reward_batches import batches, binary, floats, integers, law, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


def test_hand_values():
    rewards, group_ids = one_group([1.0, 0, 0, 0])
    assert mean_advantages(rewards, group_ids, scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]
    assert mean_advantages(rewards, group_ids, scale="mean", eps=0).tolist() == [3, -1, -1, -1]
    # std = sqrt(3)/4, or 1/2 with n - 1
    root = 3**0.5
    torch.testing.assert_close(
        mean_advantages(rewards, group_ids, eps=0), torch.tensor([root, -1 / root, -1 / root, -1 / root])
    )
    assert mean_advantages(rewards, group_ids, divisor="n-1", eps=0).tolist() == [1.5, -0.5, -0.5, -0.5]


@law
@given(batches(), st.sampled_from(["std", "none"]), st.sampled_from(["n", "n-1"]))
def test_equals_the_definition(batch, scale, divisor):
    options = {"scale": scale, "divisor": divisor, "eps": 1e-6}
    found = mean_advantages(floats(batch[0]), integers(batch[1]), **options)
    expected = torch.tensor(reference.mean_advantages(*batch, **options), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@law
@given(batches(binary))
def test_maxrl_equals_the_definition_and_weighs_a_success_by_one_over_p(batch):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    found = mean_advantages(rewards, group_ids, scale="mean", eps=0)
    expected = reference.mean_advantages(*batch, scale="mean", divisor="n", eps=0)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert (found >= -1).all()


@law
@given(batches(unscored=False), st.sampled_from(["std", "none"]))
def test_advantages_of_a_group_sum_to_zero(batch, scale):
    group_ids = integers(batch[1])
    advantages = mean_advantages(floats(batch[0]), group_ids, scale=scale)
    for group in group_ids.unique():
        assert advantages[group_ids == group].sum().abs() < 1e-12


@law
@given(batches(), st.integers(-3, 3))
def test_a_shift_of_all_rewards_changes_nothing(batch, shift):
    moved = [None if r is None else r + shift for r in batch[0]]
    found = mean_advantages(floats(moved), integers(batch[1]))
    torch.testing.assert_close(found, mean_advantages(floats(batch[0]), integers(batch[1])), rtol=1e-11, atol=1e-11)
