"""The leave-one-out baseline: RLOO."""

import pytest
import torch
from hypothesis import given

import reference
from qae.advantages import leave_one_out_advantages, mean_advantages
from reward_batches import batches, floats, integers, law, one_group

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
