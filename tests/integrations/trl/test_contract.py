"""An upgrade of TRL that moves the seam is caught, when the trainer is made or in its first batch."""

import pytest

from qae.integrations.trl import quantile_trainer
from qae.integrations.trl.contract import TRLChangedError
from trl_cases import MARKS, make_trainer

pytestmark = MARKS


def subclass_of_trl(**members):
    from trl import GRPOTrainer

    return type("NextGRPOTrainer", (GRPOTrainer,), members)


@pytest.mark.parametrize("method", ["_calculate_rewards", "_generate_and_score_completions"])
def test_a_renamed_method_stops_construction(tmp_path, monkeypatch, method):
    from trl import GRPOTrainer

    made = quantile_trainer(GRPOTrainer)
    monkeypatch.setattr(GRPOTrainer, f"{method}_v2", getattr(GRPOTrainer, method), raising=False)
    monkeypatch.delattr(GRPOTrainer, method)
    with pytest.raises(TRLChangedError) as error:
        make_trainer(tmp_path, made)
    assert f"GRPOTrainer has no method {method}. qae knows TRL 1.16, this is 1." in str(error.value)
    assert "Install 'trl==1.16.*' or a newer qae, and see `qae doctor trl`" in str(error.value)


def test_a_changed_signature_stops_construction(tmp_path):
    host = subclass_of_trl(_calculate_rewards=lambda self, rollouts: None)
    with pytest.raises(TRLChangedError, match=r"_calculate_rewards takes \(rollouts\), expected \(inputs, prompts, "):
        quantile_trainer(host)


def test_the_trainer_that_scores_elsewhere_is_refused():
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    with pytest.raises(TRLChangedError, match="AsyncGRPOTrainer computes its advantages in the rollout worker"):
        quantile_trainer(AsyncGRPOTrainer)


def test_rewards_in_another_order_are_caught_in_the_first_batch(tmp_path):
    """The host reorders rows after scoring them: our rewards would belong to other rows."""
    from trl import GRPOTrainer

    def rolled(self, inputs):
        batch = GRPOTrainer._generate_and_score_completions(self, inputs)
        batch["advantages"] = batch["advantages"].roll(3)
        return batch

    trainer = make_trainer(tmp_path, quantile_trainer(subclass_of_trl(_generate_and_score_completions=rolled)))
    with pytest.raises(TRLChangedError, match="not the mean-baseline advantages of the rewards that were scored"):
        trainer.train()


@pytest.mark.parametrize(
    ("left", "words"), [(None, "did not call _calculate_rewards"), (8, "returned 8 rows, expected those of all")]
)
def test_rewards_that_do_not_come_through_are_caught(tmp_path, left, words):
    """The host scores elsewhere, or gathers later than it did."""
    from trl import GRPOTrainer

    def elsewhere(self, inputs):
        batch = GRPOTrainer._generate_and_score_completions(self, inputs)
        self._gathered_rewards = None if left is None else self._gathered_rewards[:left]
        return batch

    trainer = make_trainer(tmp_path, quantile_trainer(subclass_of_trl(_generate_and_score_completions=elsewhere)))
    with pytest.raises(TRLChangedError, match=words):
        trainer.train()


def test_a_loss_that_no_longer_asks_for_logprobs_is_caught(tmp_path):
    from trl import GRPOTrainer

    def own_forward(self, model, inputs):
        learns, self._skip_next = self._skip_next, []
        try:
            return GRPOTrainer._compute_loss(self, model, inputs)
        finally:
            self._skip_next = learns

    trainer = make_trainer(tmp_path, quantile_trainer(subclass_of_trl(_compute_loss=own_forward)))
    with pytest.raises(TRLChangedError, match="did not call _get_per_token_logps_and_entropies"):
        trainer.train()


def test_any_subclass_can_be_the_host(tmp_path):
    seen = []

    def compute_loss(self, *args, **keywords):
        seen.append(type(self).__name__)
        return super(host, self).compute_loss(*args, **keywords)

    host = subclass_of_trl(compute_loss=compute_loss)
    trainer = make_trainer(tmp_path, quantile_trainer(host), max_steps=1)
    assert type(trainer).__name__ == "QuantileNextGRPOTrainer"
    trainer.train()
    assert seen == ["QuantileNextGRPOTrainer"]
    assert trainer.state.log_history[0]["k"] == 0.4
