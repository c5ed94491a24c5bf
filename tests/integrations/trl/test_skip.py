"""Leaving out rows with advantage 0: the gradients, the metrics, and when it is refused."""

import pytest
import torch

from trl_cases import MARKS, gradients, make_trainer

pytestmark = MARKS
LOSSES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
# Two updates for each batch of completions, the second of which is off-policy: ratios differ from 1 and are clipped.
STALE = {"num_iterations": 2, "learning_rate": 3e-3, "max_steps": 2, "max_grad_norm": 0.0, "epsilon_high": 0.28}


def both(tmp_path, **options):
    """Gradients and logs of a dense and of a skipping run."""
    runs = []
    for skip in ("off", "on"):
        trainer = make_trainer(tmp_path / skip, skip_zero_advantage=skip, **options)
        runs.append((gradients(trainer), trainer.state.log_history[:-1]))
    return runs


def assert_equal_gradients(dense, skipped, rtol=2e-5):
    assert len(dense) == len(skipped) > 0
    for a, b in zip(dense, skipped, strict=True):
        assert a.norm() > 1e-4
        assert (a - b).norm() <= rtol * a.norm()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_equal(tmp_path, loss, level, scale):
    options = {"loss_type": loss, "importance_sampling_level": level, "scale_rewards": scale, **STALE}
    if loss == "vespo":  # its weight dies out within one large update
        options["learning_rate"] = 1e-4
    (dense, dense_log), (skipped, log) = both(tmp_path, **options)
    assert_equal_gradients(dense, skipped)
    assert 0 < log[0]["rows/kept_frac"] < 1
    assert log[0]["loss"] == pytest.approx(dense_log[0]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "per_device_train_batch_size": 8},
        {"mask_truncated_completions": True},
        {"delta": 1.5},
        {"off_policy_mask_threshold": 0.01},
        {"quantile_k": 0.8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    ],
    ids=lambda options: next(iter(options)),
)
def test_gradients_are_equal_under_other_settings(tmp_path, options):
    (dense, _), (skipped, _) = both(tmp_path, **STALE, **options)
    assert_equal_gradients(dense, skipped, rtol=2e-4)  # sums of micro-batches that nearly cancel


def test_metrics_are_those_of_all_rows(tmp_path):
    (_, dense), (_, skipped) = both(tmp_path, **STALE)
    for before, after in zip(dense, skipped, strict=True):
        assert after["rows/kept_frac"] < 0.7
        # measured by the clock, or only where rows are left out
        odd = {"step_time", "rows/kept_frac", "tokens/kept_frac"}
        assert set(after) - set(before) == odd - {"step_time"}
        for name in set(before) - odd:
            assert after[name] == pytest.approx(before[name], rel=1e-3, abs=1e-5), name
    assert skipped[0]["entropy"] > 0


def test_entropy_can_be_measured_over_the_kept_rows_only(tmp_path):
    entropies = {}
    forwards = []
    for rows in ("all", "kept"):
        trainer = make_trainer(tmp_path / rows, entropy_rows=rows, **STALE)
        hook = trainer.model.register_forward_pre_hook(
            lambda module, args, kwargs: forwards.append(torch.is_grad_enabled()), with_kwargs=True
        )
        entropies[rows] = (gradients(trainer), trainer.state.log_history[0])
        hook.remove()
        if rows == "kept":
            learning = sum(forwards)
            assert learning == 2
        forwards.clear()
    assert_equal_gradients(entropies["all"][0], entropies["kept"][0])
    log = entropies["kept"][1]
    assert "entropy" not in log
    assert 0 < log["entropy/kept_rows"] < 3


REFUSED = {
    "beta=0.1: the KL term": {"beta": 0.1},
    "entropy bonus": {"entropy_coef": 0.01},
    "use_adaptive_entropy": {"use_adaptive_entropy": True},
    "top_entropy_quantile below 1": {"top_entropy_quantile": 0.2},
}


@pytest.mark.parametrize(("reason", "options"), REFUSED.items(), ids=REFUSED)
def test_refused_where_it_would_change_the_gradient(tmp_path, caplog, reason, options):
    with pytest.raises(ValueError, match=r"skip_zero_advantage='on' would change the gradient: .*") as error:
        make_trainer(tmp_path, skip_zero_advantage="on", **options)
    assert reason in str(error.value)
    trainer = make_trainer(tmp_path, max_steps=1, **options)
    assert not trainer.skips_rows
    assert reason in caplog.text
    trainer.train()
    assert "rows/kept_frac" not in trainer.state.log_history[0]


def test_a_batch_without_any_advantage_has_gradient_0(tmp_path):
    found = gradients(
        make_trainer(tmp_path, reward_funcs=lambda completions, **_: [1.0] * len(completions), max_steps=1)
    )
    assert (found[0] == 0).all()


def test_evaluation_is_dense(tmp_path):
    trainer = make_trainer(tmp_path, per_device_eval_batch_size=16, max_steps=1)
    trainer.eval_dataset = trainer.train_dataset.select(range(2))
    assert "eval_entropy" in trainer.evaluate()
