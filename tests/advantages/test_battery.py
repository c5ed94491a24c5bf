"""What holds for every estimator of the table."""

import inspect
import random
import typing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qae
from qae.advantages import ADVANTAGES, outcome_quantile_advantages
from qae.trainer.config import AdvantageName
from reward_batches import ESTIMATORS, batches, floats, integers, keyed, law, one_group

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")


def outcome_with_equal_penalties(rewards, group_ids, **options):
    return outcome_quantile_advantages(rewards, torch.zeros_like(rewards), group_ids, **options)


@pytest.fixture(
    params=[*ESTIMATORS.values(), keyed(outcome_with_equal_penalties)], ids=[*ADVANTAGES, "outcome_quantile"]
)
def estimator(request):
    return request.param


def test_the_configuration_knows_the_table():
    assert list(typing.get_args(AdvantageName)) == list(ADVANTAGES)


def test_the_table_holds_the_public_functions():
    assert list(ADVANTAGES) == sorted(ADVANTAGES)
    for name, function in ADVANTAGES.items():
        assert function.__name__ == f"{name}_advantages"
        assert getattr(qae, function.__name__) is function
        rewards, group_ids, *options = inspect.signature(function).parameters.values()
        assert (rewards.name, group_ids.name) == ("rewards", "group_ids")
        assert all(option.kind is option.KEYWORD_ONLY for option in options if option.name != "k")
        assert all(option.default is not option.empty for option in options)


@pytest.mark.parametrize("name", list(ADVANTAGES))
@law
@given(batch=batches(), rng=st.randoms(use_true_random=False))
def test_permuting_the_rows_permutes_the_advantages(name, batch, rng: random.Random):
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    order = list(range(len(rewards)))
    rng.shuffle(order)
    estimate = ESTIMATORS[name]
    assert torch.equal(estimate(rewards[order], group_ids[order], order), estimate(rewards, group_ids)[order])


@pytest.mark.parametrize("name", list(ADVANTAGES))
@law
@given(batch=batches())
def test_a_group_is_alone_in_the_world(name, batch):
    """A group's advantages are the same whatever shares the batch with it, and whatever its id is."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    together = ESTIMATORS[name](rewards, group_ids)
    for group in group_ids.unique():
        rows = (group_ids == group).nonzero()[:, 0]
        alone = ESTIMATORS[name](rewards[rows], torch.full((len(rows),), -7), rows)
        assert torch.equal(together[rows], alone)


def test_result_is_detached(estimator):
    rewards, group_ids = one_group([1.0, 0.0, 1.0])
    assert not estimator(rewards.requires_grad_(), group_ids).requires_grad


def test_inputs_are_left_as_they_were(estimator):
    rewards, group_ids = one_group([1.0, 0.0, 1.0])
    estimator(rewards, group_ids)
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert group_ids.tolist() == [0, 0, 0]


@pytest.mark.parametrize("reward", [0.0, 1.0, -1.0, 0.95, 1 / 3])
def test_equal_rewards_give_zero(estimator, reward):
    for size in range(2, 20):
        rewards, group_ids = one_group([reward] * size)
        assert (estimator(rewards, group_ids) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_dtype_and_device_are_kept(estimator, dtype, id_dtype):
    rewards, group_ids = torch.tensor([1.0, 0, 0], dtype=dtype), torch.tensor([4, 4, 4], dtype=id_dtype)
    advantages = estimator(rewards, group_ids)
    assert advantages.dtype == dtype
    assert advantages.device == rewards.device
    torch.testing.assert_close(advantages.double(), estimator(rewards.double(), group_ids), rtol=1e-2, atol=1e-3)


def test_empty_batch(estimator):
    rewards, group_ids = one_group([])
    assert estimator(rewards, group_ids).shape == (0,)


def test_group_of_one_gets_zero(estimator):
    rewards, group_ids = torch.tensor([1.0, 1.0, 0.0, 5.0]), torch.tensor([0, 1, 1, 2])
    advantages = estimator(rewards, group_ids)
    assert advantages[0] == advantages[3] == 0
    assert advantages[1] > advantages[2]


def test_unscored_rows_get_zero_and_leave_the_others_as_if_they_were_not_there(estimator):
    rewards, group_ids = one_group([1.0, torch.nan, 0.0, 0.0])
    advantages = estimator(rewards, group_ids)
    assert advantages[1] == 0
    assert torch.equal(advantages[[0, 2, 3]], estimator(rewards[[0, 2, 3]], group_ids[[0, 2, 3]], [0, 2, 3]))
    assert (estimator(torch.full((4,), torch.nan), group_ids) == 0).all()


def test_groups_below_min_size_get_zero(estimator):
    rewards, group_ids = torch.tensor([1.0, 0, torch.nan, 1, 0, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    advantages = estimator(rewards, group_ids, min_size=3)
    assert (advantages[:3] == 0).all()
    assert torch.equal(advantages[3:], estimator(rewards, group_ids)[3:])
    assert (advantages[3:] != 0).any()


def test_rewards_no_further_apart_than_the_tolerance_are_equal(estimator):
    rewards, group_ids = one_group([0.5, 0.75])
    assert (estimator(rewards, group_ids, flat_tolerance=0.25) == 0).all()
    assert (estimator(rewards, group_ids, flat_tolerance=0.2) != 0).any()


@pytest.mark.gpu
def test_cuda_agrees_with_cpu(estimator):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 3, (4096,), generator=generator).float() / 2
    rewards[::31] = torch.nan
    group_ids = torch.randint(0, 400, (4096,), generator=generator)
    there = estimator(rewards.cuda(), group_ids.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), estimator(rewards, group_ids), rtol=1e-6, atol=1e-6)
