"""The control of equal sparsity: hand values, the definition, its count and expectation, invariances."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from qae.advantages import mean_advantages, quantile_advantages, random_mask_advantages
from reward_batches import batches, binary, floats, integers, law, levels, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


def keys_of(rewards, seed: int = 0):
    return torch.randint(2**62, rewards.shape, generator=torch.Generator().manual_seed(seed))


def test_hand_values():
    rewards, group_ids = one_group([1.0, 0, 0, 0])
    keys = torch.tensor([2, 9, 1, 7])  # the quantile keeps one row, here the third
    assert random_mask_advantages(rewards, group_ids, k=0.4, row_keys=keys, scale="none").tolist() == [0, 0, -1, 0]
    rewards = torch.tensor([1.0, 1, 0, 0])  # p = 1/2 <= 1 - K keeps two
    found = random_mask_advantages(rewards, group_ids, k=0.4, row_keys=keys, scale="none")
    assert found.tolist() == [1, 0, -1, 0]


@law
@given(batches(), levels, st.sampled_from([("std", "n"), ("std", "n-1"), ("none", "n")]), st.integers(0, 99))
def test_equals_the_definition(batch, k, scale, seed):
    options = {"scale": scale[0], "divisor": scale[1], "eps": 1e-6}
    keys = keys_of(floats(batch[0]), seed)
    found = random_mask_advantages(floats(batch[0]), integers(batch[1]), float(k), row_keys=keys, **options)
    expected = reference.random_mask_advantages(*batch, keys.tolist(), k, **options)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@law
@given(batches(binary), levels, st.integers(0, 99))
def test_keeps_as_many_rows_of_each_group_as_the_quantile(batch, k, seed):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    kept = random_mask_advantages(rewards, group_ids, float(k), row_keys=keys_of(rewards, seed)) != 0
    wanted = quantile_advantages(rewards, group_ids, float(k)) != 0
    for group in group_ids.unique():
        assert kept[group_ids == group].sum() == wanted[group_ids == group].sum()


@pytest.mark.parametrize("rewards", [[1.0, 0, 0, 0], [1.0, 1, 0, 0], [1.0, 1, 1, 0], [0.5, 1, 0, 0]])
def test_over_all_choices_the_advantage_is_that_of_the_mean(rewards):
    values, group_ids = one_group(rewards)
    values = values.double()
    choices = [
        random_mask_advantages(values, group_ids, k=0.4, row_keys=torch.tensor(order))
        for order in itertools.permutations(range(4))
    ]
    torch.testing.assert_close(torch.stack(choices).mean(0), mean_advantages(values, group_ids), rtol=1e-12, atol=1e-12)


def test_new_keys_give_a_new_mask_and_old_keys_the_old_one():
    rewards, group_ids = one_group([1.0, 0, 1, 0, 0, 0, 0, 0] * 4)
    first, again, other = (
        random_mask_advantages(rewards, group_ids, row_keys=keys_of(rewards, seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@law
@given(batches(), levels, st.integers(-3, 3), st.sampled_from([Fraction(1, 2), 2, 4]))
def test_affine_rewards_give_the_same_advantages(batch, k, shift, factor):
    moved = [None if r is None else factor * r + shift for r in batch[0]]
    keys = keys_of(floats(batch[0]))
    found, expected = (
        random_mask_advantages(floats(rewards), integers(batch[1]), float(k), row_keys=keys, eps=0)
        for rewards in (batch[0], moved)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
