"""What TRL trains on and logs, against the library's functions on the rewards that TRL logged."""

from importlib.metadata import version

import pytest
import torch

from qae import group_std, mean_advantages, quantile_advantages
from qae.advantages import outcome_quantile_advantages
from qae.integrations.status import record
from trl_cases import MARKS, coin, length, logged, make_trainer, right

pytestmark = MARKS
HOST = {"divisor": "n-1", "eps": 1e-4}
SCALES = {"group": "std", "batch": "batch", "none": "none"}


def ids(rows: int, size: int = 8) -> torch.Tensor:
    return torch.arange(rows) // size


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("baseline", ["mean", "quantile"])
def test_twenty_steps_log_the_librarys_advantages(tmp_path, baseline):
    from trl import GRPOTrainer

    host = GRPOTrainer if baseline == "mean" else None
    trainer = make_trainer(tmp_path, host, reward_funcs=right, max_steps=20)
    trainer.train()
    mixed = 0
    for step in range(1, 21):
        rewards, advantages = logged(tmp_path, step)
        rewards = rewards[:, 0]
        if baseline == "mean":
            close(advantages, mean_advantages(rewards, ids(16), **HOST))
        else:
            close(advantages, quantile_advantages(rewards, ids(16), 0.4, **HOST))
            assert trainer.state.log_history[step - 1]["advantage/zero_frac"] == (advantages == 0).float().mean()
        mixed += int((advantages != 0).any())
    assert mixed > 10
    record("trl", "trained", version("trl"), "tests/integrations/trl/test_advantages.py", source="wheel")


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("k", [0.2, 0.6])
def test_the_loss_receives_what_is_logged(tmp_path, scale, k):
    trainer = make_trainer(tmp_path, scale_rewards=scale, quantile_k=k, gradient_accumulation_steps=2, max_steps=1)
    received = []
    loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: received.append(inputs["advantages"]) or loss(model, inputs)
    trainer.train()
    rewards, advantages = logged(tmp_path, 1)
    close(advantages, quantile_advantages(rewards[:, 0], ids(32), k, scale=SCALES[scale], **HOST))
    assert len(received) == 2
    close(torch.cat(received).sort().values, advantages.sort().values)


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_several_reward_functions_with_weights_and_none(tmp_path, aggregation):
    weights = torch.tensor([1.0, 0.5])
    trainer = make_trainer(
        tmp_path,
        reward_funcs=[coin, length],
        reward_weights=weights.tolist(),
        multi_objective_aggregation=aggregation,
        per_device_train_batch_size=32,
        max_steps=2,
    )
    trainer.train()
    for step in (1, 2):
        rewards, advantages = logged(tmp_path, step)
        assert rewards.isnan().any()
        if aggregation == "sum_then_normalize":
            expected = quantile_advantages((rewards * weights).nansum(1), ids(32), 0.4, **HOST)
        else:
            each = [quantile_advantages(rewards[:, i].contiguous(), ids(32), 0.4, **HOST) for i in (0, 1)]
            total = torch.stack(each, 1) @ weights
            expected = total / (group_std(total, torch.zeros(32, dtype=torch.int64), divisor="n-1") + 1e-4)
        close(advantages, expected)


def test_a_row_that_no_function_scored_gets_0_and_is_outside_its_group(tmp_path):
    trainer = make_trainer(tmp_path, reward_funcs=length, max_steps=1)
    trainer.train()
    rewards, advantages = logged(tmp_path, 1)
    rewards = rewards[:, 0]
    assert rewards.isnan().any()
    assert (advantages[rewards.isnan()] == 0).all()
    close(advantages, quantile_advantages(rewards, ids(16), 0.4, **HOST))
    assert trainer.state.log_history[0]["regime/unscored_frac"] == pytest.approx(rewards.isnan().float().mean())


def test_the_gate_can_look_at_the_outcome_alone(tmp_path):
    trainer = make_trainer(tmp_path, reward_funcs=[length, coin], outcome_reward="coin", max_steps=1)
    trainer.train()
    rewards, advantages = logged(tmp_path, 1)  # columns in the order of FUNCTIONS: coin, length
    expected = outcome_quantile_advantages(rewards[:, 0].contiguous(), rewards[:, 1].nan_to_num(), ids(16), 0.4, **HOST)
    close(advantages, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outcome_reward": "acc"}, "outcome_reward='acc' is no reward function; they are coin"),
        (
            {"outcome_reward": "coin", "scale_rewards": "batch"},
            "needs multi_objective_aggregation='sum_then_normalize'",
        ),
        ({"quantile_k": 40.0}, "must lie strictly between 0 and 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        make_trainer(tmp_path, **options)


def test_evaluation_has_its_own_group_size_and_its_own_table(tmp_path):
    trainer = make_trainer(tmp_path, num_generations_eval=4, per_device_eval_batch_size=8, max_steps=1)
    trainer.eval_dataset = trainer.train_dataset.select(range(2))
    trainer.evaluate()
    rewards, advantages = logged(tmp_path, 0)
    assert len(rewards) == 8
    close(advantages, quantile_advantages(rewards[:, 0], ids(8, 4), 0.4, **HOST))


def test_an_evaluation_with_groups_of_one_trains_nothing_and_warns_of_nothing(tmp_path):
    trainer = make_trainer(tmp_path, num_generations_eval=1, per_device_eval_batch_size=2, max_steps=1)
    trainer.eval_dataset = trainer.train_dataset.select(range(2))
    trainer.evaluate()
    assert logged(tmp_path, 0)[1].tolist() == [0, 0]


def test_flat_groups_are_counted_by_their_rewards_not_by_the_batchs_deviation(tmp_path):
    """TRL #6365: under batch scaling TRL's own share is 0 or 1, since it looks at the batch's deviation."""
    options = {"scale_rewards": "batch", "per_device_train_batch_size": 64, "num_generations": 4, "max_steps": 1}
    trainer = make_trainer(tmp_path, reward_funcs=right, **options)
    trainer.train()
    rewards, _ = logged(tmp_path, 1)
    groups = rewards[:, 0].view(-1, 4)
    flat = (groups.max(1).values == groups.min(1).values).float().mean()
    assert 0 < flat < 1
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == pytest.approx(flat)


def test_a_users_own_function_mixes_advantages(tmp_path):
    """TRL #7291: a hook to replace or mix advantages."""

    def half(rewards, group_ids):
        return 0.5 * quantile_advantages(rewards, group_ids, 0.4) + 0.5 * mean_advantages(rewards, group_ids)

    make_trainer(tmp_path, advantage_function=half, max_steps=1).train()
    rewards, advantages = logged(tmp_path, 1)
    close(advantages, half(rewards[:, 0], ids(16)))
