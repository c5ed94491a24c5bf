"""Dynamic sampling in TRL: flat groups give their place to fresh prompts, a bounded number of times."""

import torch

from trl_cases import MARKS, gradients, make_trainer, often_flat

pytestmark = MARKS


def test_flat_groups_are_replaced(tmp_path):
    batches = []
    options = {"per_device_train_batch_size": 64, "num_generations": 4, "max_steps": 1, "quantile_k": 0.2}
    trainer = make_trainer(tmp_path, reward_funcs=often_flat, dynamic_sampling_refills=10, **options)
    loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: batches.append(inputs) or loss(model, inputs)
    found = gradients(trainer)
    log = trainer.state.log_history[0]
    assert log["groups/kept"] == 16
    assert log["groups/asked"] > 16
    assert 1 <= log["groups/refills"] <= 10
    (batch,) = batches
    assert batch["completion_ids"].shape[0] == 64
    assert batch["num_items_in_batch"] == batch["completion_mask"].sum()
    groups = {}
    for row, advantage in zip(batch["prompt_ids"].tolist(), batch["advantages"].tolist(), strict=True):
        groups.setdefault(tuple(row), []).append(advantage)
    assert all(any(advantages) for advantages in groups.values())
    assert found[0].norm() > 0


def test_refilling_stops_and_trains_on_what_there_is(tmp_path):
    """DAPO #22: nothing but zeros never fills a batch."""
    asked = []

    def zeros(completions, **_):
        asked.append(len(completions))
        return [0.0] * len(completions)

    trainer = make_trainer(tmp_path, reward_funcs=zeros, dynamic_sampling_refills=3, max_steps=1)
    found = gradients(trainer)
    log = trainer.state.log_history[0]
    assert asked == [16] * 4
    assert (log["groups/asked"], log["groups/kept"], log["groups/refills"]) == (8, 0, 3)
    assert (found[0] == 0).all()


def test_without_it_nothing_is_refilled(tmp_path):
    trainer = make_trainer(tmp_path, reward_funcs=often_flat, max_steps=1)
    trainer.train()
    assert "groups/asked" not in trainer.state.log_history[0]


def test_it_combines_with_stale_updates_and_skipping(tmp_path):
    options = {"num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 4}
    options |= {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "dynamic_sampling_refills": 5}
    runs = [gradients(make_trainer(tmp_path / s, skip_zero_advantage=s, **options)) for s in ("on", "off")]
    for kept, dense in zip(*runs, strict=True):
        assert dense.norm() > 1e-4
        torch.testing.assert_close(kept, dense, rtol=1e-3, atol=1e-5)
