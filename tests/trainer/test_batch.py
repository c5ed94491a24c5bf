"""Collecting a rollout batch: refills, bounds, shaping, unscored rows."""

import math

from fake_parts import ScriptedEngine, ScriptedTask
from qae.trainer.batch import collect, difficulty_report
from qae.trainer.config import TrainConfig
from tiny_models import random_policy

MIXED, RIGHT, WRONG = [1.0, 0.0, 0.0, 1.0], [1.0] * 4, [0.0] * 4


def config(*overrides):
    base = ("rollout.prompts=4", "rollout.group_size=4", "rollout.max_tokens=8", "update.minibatches=1")
    return TrainConfig.load({}, *base, *overrides)


def collected(outcomes, *overrides, engine=None, cursor=0, levels=lambda i: ""):
    task, engine = ScriptedTask(outcomes, levels), engine or ScriptedEngine()
    plan = config(*overrides)
    batch = collect(plan, random_policy(), task, engine, step=1, cursor=cursor, phase=lambda *_: None)
    return batch, task, engine


def test_all_mixed_needs_no_refill():
    batch, _, engine = collected(lambda i: MIXED, cursor=7)
    assert [group.item.id for group in batch.groups] == ["item-7", "item-8", "item-9", "item-10"]
    assert (batch.refills, batch.cursor, len(engine.calls)) == (0, 11, 1)
    assert engine.calls[0][3].stop == ("\n",)


def test_flat_groups_are_replaced_and_accepted_ones_kept():
    batch, _, _ = collected(lambda i: RIGHT if i % 2 else MIXED)
    assert [group.item.id for group in batch.groups] == ["item-0", "item-2", "item-4", "item-6"]
    assert batch.refills == 1
    assert batch.cursor == 8
    assert len(batch.sampled) == 8


def test_refills_are_bounded_and_what_there_is_is_kept():
    batch, _, engine = collected(lambda i: MIXED if i == 2 else WRONG, "algorithm.dynamic_sampling.max_refills=3")
    assert [group.item.id for group in batch.groups] == ["item-2"]
    assert (batch.refills, len(engine.calls)) == (3, 4)


def test_an_all_zero_grader_ends_after_the_bound_with_a_report():
    batch, _, _ = collected(
        lambda i: WRONG, "algorithm.dynamic_sampling.max_refills=2", levels=lambda i: "even" if i % 2 == 0 else "odd"
    )
    assert batch.groups == []
    assert difficulty_report(batch.sampled) == "pass rate by level: even 0.00, odd 0.00; verdicts: wrong 48"


def test_without_dynamic_sampling_flat_groups_stay():
    batch, _, _ = collected(lambda i: WRONG, "algorithm.dynamic_sampling.enabled=false")
    assert len(batch.groups) == 4
    assert not any(group.is_mixed for group in batch.groups)


def test_lengths_cannot_hide_a_flat_group():
    """All wrong, but with an overlong penalty the shaped rewards differ: still flat, still dropped."""
    batch, _, _ = collected(
        lambda i: WRONG if i < 4 else MIXED,
        "algorithm.overlong.buffer_tokens=4",
        engine=ScriptedEngine(length=lambda row: 2 + row % 7),
    )
    assert {group.item.id for group in batch.groups} == {"item-4", "item-5", "item-6", "item-7"}
    assert len({reward for group in batch.sampled[:4] for reward in group.rewards}) > 1


def test_overlong_penalty_moves_the_reward_and_not_the_outcome():
    batch, _, _ = collected(
        lambda i: MIXED, "algorithm.overlong.buffer_tokens=4", engine=ScriptedEngine(length=lambda row: 4 + row % 4)
    )
    assert batch.groups[0].outcomes == MIXED
    assert batch.groups[0].rewards == [1.0, -0.25, -0.5, 0.25]


def test_overlong_filter_leaves_truncated_rows_unscored():
    batch, _, _ = collected(
        lambda i: MIXED,
        "algorithm.overlong.filter=true",
        engine=ScriptedEngine(length=lambda row: 8 if row % 4 == 0 else 3),
    )
    assert len(batch.groups) == 4
    assert all(math.isnan(group.rewards[0]) for group in batch.groups)
    assert batch.groups[0].outcomes[1:] == MIXED[1:]


def test_unscored_rows_count_neither_way():
    batch, _, _ = collected(lambda i: [None, 1.0, 0.0, 0.0] if i < 4 else [None, 1.0, 1.0, None])
    group = batch.groups[0]
    assert math.isnan(group.rewards[0])
    assert group.is_mixed
    assert batch.reasons["unusable_gold"] == 4


def test_streams_do_not_depend_on_refills_of_other_steps():
    _, _, engine = collected(lambda i: MIXED, cursor=20)
    again = ScriptedEngine()
    collected(lambda i: MIXED, engine=again, cursor=20)
    assert engine.calls[0][2] == again.calls[0][2]
    assert len(set(engine.calls[0][2])) == 16
