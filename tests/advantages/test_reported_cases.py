"""Inputs on which other tools went wrong, by the number of the public report, and the values that are right."""

import pytest
import torch

from qae.advantages import (
    leave_one_out_advantages,
    mean_advantages,
    outcome_quantile_advantages,
    quantile_advantages,
)
from reward_batches import ESTIMATORS, one_group

STD = [{"divisor": divisor, "eps": eps} for divisor in ("n", "n-1") for eps in (1e-6, 0.0)]
EVERY_NORMALISER = [
    *((quantile_advantages, {"k": k, **std}) for std in STD for k in (0.05, 0.4, 0.9)),
    *((quantile_advantages, {"k": k, "scale": "none"}) for k in (0.05, 0.4, 0.9)),
    *((mean_advantages, std) for std in STD),
    *((mean_advantages, {"scale": "mean", "eps": eps}) for eps in (1e-6, 0.0)),
    (mean_advantages, {"scale": "none"}),
    (leave_one_out_advantages, {}),
]


@pytest.mark.parametrize(("estimator", "options"), EVERY_NORMALISER)
@pytest.mark.parametrize("rewards", [[1.0, 0, 0, 0], [0.35] + [0.95] * 7, [0.0] + [0.95] * 7])
def test_nothing_is_divided_by_a_reference_set_without_spread(estimator, options, rewards):
    """NeMo-RL #1518, #4158, #4161: a lone success reached an advantage of a million."""
    advantages = estimator(*one_group(rewards), **options)
    assert advantages.isfinite().all()
    assert advantages.abs().max() < 10


@pytest.mark.parametrize("rewards", [[0.35] + [0.95] * 7, [0.0] + [0.95] * 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_residue_is_no_spread(rewards, dtype):
    """NeMo-RL #4158: the seven equal rewards of 0.95 are one value, whatever the binary rounding of their mean."""
    values = torch.tensor(rewards, dtype=dtype)
    advantages = quantile_advantages(values, torch.zeros(8, dtype=torch.int64), k=0.4)
    assert (advantages[1:] == 0).all()
    assert advantages[0] == pytest.approx(-8 / 7**0.5, rel=1e-5)
    flat = values[1:]
    for estimator in ESTIMATORS.values():
        assert (estimator(flat, torch.zeros(7, dtype=torch.int64)) == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_one_member_group_does_not_pass_its_reward_through(estimator):
    """AReaL #1705, verl and SkyRL: group {a: [1.0]} came out as 1."""
    assert estimator(torch.tensor([1.0]), torch.tensor([0])).tolist() == [0.0]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_ids_made_per_completion_are_warned_of(estimator):
    """rllm #776: eight rows of one prompt with eight ids have no baseline at all."""
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0])
    with pytest.warns(
        UserWarning, match=r"^8 of 8 groups have a single row, .*group_ids must be equal for all completions"
    ):
        assert (estimator(rewards, torch.arange(8)) == 0).all()


@pytest.mark.parametrize("group_ids", [[0, 0, 1, 1, 2], [0, 0, 0, 1], [3]])
def test_a_few_single_rows_are_not_warned_of(group_ids):
    quantile_advantages(torch.zeros(len(group_ids)), torch.tensor(group_ids))


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_interleaved_prompts_are_grouped_by_id(estimator):
    """prime-rl #600: [p1, p2, p1, p2] was cut into windows."""
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert (estimator(rewards, torch.tensor([1, 2, 1, 2])) == 0).all()
    assert (estimator(rewards, torch.tensor([1, 1, 2, 2])) != 0).any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_uneven_groups_are_not_merged(name):
    """slime: 4 + 3 samples of two prompts were normalised as one group of seven."""
    estimator = ESTIMATORS[name]
    rewards, group_ids = torch.tensor([1.0, 0, 0, 0, 1, 1, 0]), torch.tensor([0] * 4 + [1] * 3)
    together = estimator(rewards, group_ids)
    assert torch.equal(together[:4], estimator(rewards[:4], group_ids[:4]))
    assert torch.equal(together[4:], estimator(rewards[4:], group_ids[4:], [4, 5, 6]))
    # W-REINFORCE takes the sign of the outcome: of its groups it only asks whether they are flat.
    assert name == "w_reinforce" or not torch.equal(together, estimator(rewards, torch.zeros_like(group_ids)))


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_a_sibling_without_trainable_tokens_can_be_left_out(estimator):
    """OpenRLHF #1239: rewards [100, 1] with masks of 0 and 2 tokens gave the second row -49.5."""
    advantages = estimator(torch.tensor([torch.nan, 1.0]), torch.tensor([0, 0]))
    assert advantages.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_dropping_truncated_completions_moves_no_border(estimator):
    """open-instruct #1794: one of four dropped leaves three with the same id, and its neighbours alone."""
    rewards, group_ids = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 1]), torch.tensor([0] * 4 + [1] * 4)
    kept = torch.tensor([0, 1, 3, 4, 5, 6, 7])
    advantages = estimator(rewards[kept], group_ids[kept], kept)
    assert torch.equal(advantages[3:], estimator(rewards, group_ids)[4:])
    assert torch.equal(advantages[:3], estimator(rewards[[0, 1, 3]], group_ids[[0, 1, 3]], [0, 1, 3]))


def test_a_failed_rollout_costs_its_row_and_not_the_group():
    """prime-rl #2590: the quantile is taken over the survivors; a group that lost too many can be dropped."""
    rewards, group_ids = one_group([1.0, torch.nan, 0.0, torch.nan, 0.0, 1.0, torch.nan, 0.0])
    advantages = quantile_advantages(rewards, group_ids, k=0.4, scale="none")
    assert advantages.tolist() == [1, 0, 0, 0, 0, 1, 0, 0]
    assert (quantile_advantages(rewards, group_ids, min_size=6) == 0).all()
    assert torch.equal(quantile_advantages(rewards, group_ids, min_size=5, scale="none"), advantages)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_one_unscored_reward_does_not_poison_its_group(estimator):
    """TRL #5773: [1, None, 0, 0] made the whole group NaN."""
    advantages = estimator(*one_group([1.0, torch.nan, 0.0, 0.0]))
    assert advantages.isfinite().all()
    assert advantages[0] >= advantages[1] == 0
    assert (advantages != 0).any()


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_near_equal_judge_scores_and_dead_rollouts(estimator):
    """SkyRL #1801: 0.6667 against 0.66670001, and [0 (masked), 1, 1, 1], whose spread is a dead rollout's."""
    judge = torch.tensor([0.6667, 0.66670001], dtype=torch.float64)
    assert (estimator(judge, torch.tensor([0, 0])) != 0).any()
    assert (estimator(judge, torch.tensor([0, 0]), flat_tolerance=1e-4) == 0).all()
    assert (estimator(*one_group([torch.nan, 1.0, 1.0, 1.0])) == 0).all()


def test_an_all_wrong_group_is_flat_on_its_outcomes_not_on_its_shaped_reward():
    """NeMo-RL #2431, verl-recipe #125: short wrong answers won when accuracy was all 0."""
    shaped, group_ids = one_group([-1.0, -1.0, -1.5, -2.0])
    outcomes, penalties = torch.zeros(4), torch.tensor([0.0, 0.0, -0.5, -1.0])
    assert quantile_advantages(shaped, group_ids, k=0.4, scale="none").tolist() == [0.5, 0.5, 0.0, -0.5]
    assert (outcome_quantile_advantages(outcomes, penalties, group_ids, k=0.4) == 0).all()


@pytest.mark.parametrize(
    ("estimator", "scale", "expected"),
    [
        (mean_advantages, "std", [0.5**0.5, -(0.5**0.5), 0, 0]),
        (mean_advantages, "batch", [1, -1, 0, 0]),
        (mean_advantages, "none", [0.5, -0.5, 0, 0]),
        (quantile_advantages, "std", [2**0.5, 0, 0, 0]),
        (quantile_advantages, "batch", [2, 0, 0, 0]),
        (quantile_advantages, "none", [1, 0, 0, 0]),
    ],
)
def test_batch_scaling_divides_by_the_batch(estimator, scale, expected):
    """TRL #3991: batch scaling divided by the group's deviation. Over all four rewards it is 0.5."""
    rewards, group_ids = torch.tensor([1.0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    found = estimator(rewards, group_ids, scale=scale, divisor="n-1", eps=0)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))
    unscored = torch.tensor([1.0, torch.nan, 0, 1, 1])
    found = estimator(unscored, torch.tensor([0, 0, 0, 1, 1]), scale=scale, divisor="n-1", eps=0)
    assert found[1] == 0
    torch.testing.assert_close(found[[0, 2, 3, 4]], torch.tensor(expected, dtype=found.dtype))
