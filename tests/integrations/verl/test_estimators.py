"""The estimators through verl's own calls: values by hand, groups of every kind, and what is refused."""

from typing import Any

import pytest
import torch

from qae.integrations.checks import REWARDS
from qae.integrations.verl.checks import advantages_of, compose
from qae.integrations.verl.estimators import RowView, estimate, row_view
from qae.rewards import Grade
from qae.sampling import Completion
from qae.tasks import Item
from qae.trainer.batch import Group
from qae.trainer.config import TrainConfig
from qae.trainer.loop import advantages_of as local_advantages_of

pytestmark = pytest.mark.verl
A, B = ["a"] * 4, ["b"] * 4


def batch(rewards: list[float], uids: list[str], lengths: list[int] | None = None) -> Any:
    """verl's DataProto with the reward at each row's last token; length 0 is padding."""
    import numpy as np
    from verl import DataProto

    lengths = lengths or [2 + i % 3 for i in range(len(rewards))]
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    tokens = torch.zeros(mask.shape)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        tokens[row, max(length - 1, 0)] = reward
    return DataProto.from_dict(
        tensors={"token_level_rewards": tokens, "response_mask": mask},
        non_tensors={"uid": np.array(uids, dtype=object)},
    )


def by_verl(data: Any, *overrides: str) -> torch.Tensor:
    """[n t] by the trainer's own call of the V1 trainer."""
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    config = compose(list(overrides))
    algorithm = config.algorithm
    keys = [f"{uid}_{i}_0" for i, uid in enumerate(data.non_tensor_batch["uid"])]
    found = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=keys,
        adv_estimator=algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )
    assert torch.equal(found.batch["returns"], found.batch["advantages"])
    return found.batch["advantages"]


def first(advantages: torch.Tensor) -> list[float]:
    return [round(x, 4) for x in advantages[:, 0].tolist()]


def test_values_by_hand() -> None:
    rewards = [1.0, 0, 0, 0, 1, 1, 1, 0]
    got = by_verl(batch(rewards, A + B), "algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4")
    assert first(got) == [2, 0, 0, 0, 0, 0, 0, -2]  # std with n-1 is 1/2
    got = by_verl(batch(rewards, A + B), "algorithm.adv_estimator=qae", "+algorithm.qae_k=0.8")
    assert first(got) == [0, -2, -2, -2, 0, 0, 0, -2]


def test_both_trainers_call_it_alike() -> None:
    config = compose(["algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4"])
    by_v0 = advantages_of(config)
    by_v1 = by_verl(batch(REWARDS, ["a"] * 8 + ["b"] * 8), "algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4")
    assert by_v0 == pytest.approx(by_v1[:, 0].tolist(), abs=1e-6)
    assert by_v0[0] == pytest.approx(8**0.5, abs=1e-4)


def test_the_authors_name_of_k() -> None:
    got = by_verl(batch([1.0, 0, 0, 0], A), "algorithm.adv_estimator=qae", "++algorithm.quantile_k=0.8")
    assert first(got) == [0, -2, -2, -2]


def test_linear_is_the_authors_code() -> None:
    rewards = [0.0] * 3 + [1.0] * 5
    scores = torch.tensor(rewards)
    got = by_verl(batch(rewards, ["a"] * 8), "algorithm.adv_estimator=qae_linear", "+algorithm.qae_k=0.4")
    expected = (scores - torch.quantile(scores, 0.4)) / (scores.std() + 1e-6)
    assert torch.allclose(got[:, 0], expected, atol=1e-6)
    exact = by_verl(batch(rewards, ["a"] * 8), "algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4")
    assert first(exact)[3:] == [0] * 5 and first(got)[3] > 0  # where the two differ


def test_leave_one_out_is_hosts_rloo() -> None:
    rewards = [1.0, 0, 0, 0, 1, 1, 1, 0]
    ours = by_verl(batch(rewards, A + B), "algorithm.adv_estimator=qae_rloo")
    theirs = by_verl(batch(rewards, A + B), "algorithm.adv_estimator=rloo")
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_loo_is_the_quantile_of_the_others() -> None:
    unscaled = "algorithm.norm_adv_by_std_in_grpo=False"
    got = by_verl(batch([1.0, 1, 0], ["a"] * 3), "algorithm.adv_estimator=qae_loo", "+algorithm.qae_k=0.4", unscaled)
    assert first(got) == [1, 1, -1]  # others of a success: {0, 1}, whose .4-quantile is 0; of the failure: {1, 1}


@pytest.mark.parametrize("scaled", [True, False])
def test_only_the_baseline_differs_from_hosts_grpo(scaled: bool) -> None:
    made = torch.Generator().manual_seed(1)
    rewards = torch.rand(24, generator=made).tolist()
    uids = [f"u{int(i)}" for i in torch.randint(0, 3, (24,), generator=made)]
    scale = f"algorithm.norm_adv_by_std_in_grpo={scaled}"
    ours = by_verl(batch(rewards, uids), "algorithm.adv_estimator=qae_mean", scale)
    theirs = by_verl(batch(rewards, uids), "algorithm.adv_estimator=grpo", scale)
    assert torch.allclose(ours, theirs, atol=2e-6)


def test_singletons_padding_and_short_groups() -> None:
    rewards = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    uids = ["alone", "short", "short", "pad1", "short", "pad1"]
    got = by_verl(
        batch(rewards, uids, lengths=[3, 2, 3, 0, 1, 0]), "algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4"
    )
    assert torch.isfinite(got).all()
    assert got[[0, 3, 5]].abs().sum() == 0
    assert first(got)[1] < 0  # of 0, 1, 1: an easy group
    assert got[4, 1:].abs().sum() == 0  # outside its mask


def test_order_does_not_matter() -> None:
    made = torch.Generator().manual_seed(2)
    rewards, order = torch.rand(12, generator=made), torch.randperm(12, generator=made)
    uids = [f"u{i % 3}" for i in range(12)]
    overrides = ("algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4")
    plain = by_verl(batch(rewards.tolist(), uids, [2] * 12), *overrides)
    mixed = by_verl(batch(rewards[order].tolist(), [uids[i] for i in order], [2] * 12), *overrides)
    assert torch.equal(mixed, plain[order])


def test_same_rewards_same_advantages_as_the_local_engine() -> None:
    made = torch.Generator().manual_seed(3)
    outcomes = (torch.rand(5, 8, generator=made) < 0.5).double().tolist()
    item, none = Item("i", "p", "1"), torch.zeros(1)
    groups = [
        Group(item, [1], [Completion(0, [1], "", none, none, False)] * 8, [Grade(o, o) for o in row], [0.0] * 8)
        for row in outcomes
    ]
    from qae.engines.verl.overrides import overrides
    from verl_places import PLACE, PROMPTS

    for words in (
        ("algorithm.advantage.k=0.3",),
        ("algorithm.advantage.divisor=n-1",),
        ("algorithm.advantage.method=linear",),
        ("algorithm.advantage=mean",),
        ("algorithm.advantage=mean", "algorithm.advantage.scale=mean"),
        ("algorithm.preset=dr_grpo",),
        ("algorithm.preset=rloo",),
    ):
        config = TrainConfig.load("tiny", "engine=verl", *words)
        given = overrides(config, PLACE, PROMPTS)
        settings = [f"{key}={value}" for key, value in given.items() if "algorithm.qae_" in key or "norm_adv" in key]
        rewards = [o for row in outcomes for o in row]
        uids = [f"g{i}" for i in range(5) for _ in range(8)]
        got = by_verl(batch(rewards, uids), f"algorithm.adv_estimator={given['algorithm.adv_estimator']}", *settings)
        expected = local_advantages_of(config, groups).float()
        assert torch.allclose(got[:, 0], expected, atol=1e-6), words


def estimate_with(rewards: list[float], settings: dict[str, Any], **view: Any) -> list[float]:
    tokens = torch.tensor(rewards)[:, None]
    index = view.pop("index")
    if not view:
        return estimate(tokens, torch.ones_like(tokens), index, settings)[0][:, 0].tolist()
    with row_view(RowView(**view)):
        return estimate(tokens, torch.ones_like(tokens), index, settings)[0][:, 0].tolist()


def test_a_session_counts_once_and_its_outputs_share_its_advantage() -> None:
    sessions, order = ["s0", "s0", "s0", "s1", "s2", "s3"], [0, 2, 1, 0, 0, 0]
    rewards = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # the last output of s0 succeeded; without the view p would be 1/6 too
    got = estimate_with(rewards, {"qae_k": 0.4}, index=["p"] * 6, sessions=sessions, order=order)
    assert got == pytest.approx([2, 2, 2, 0, 0, 0], abs=1e-4)


def test_sessions_can_change_the_regime() -> None:
    sessions, order = ["s0"] * 3 + ["s1"], [0, 1, 2, 0]
    rewards = [1.0, 1.0, 1.0, 0.0]
    plain = estimate_with(rewards, {"qae_k": 0.4}, index=["p"] * 4)
    counted = estimate_with(rewards, {"qae_k": 0.4}, index=["p"] * 4, sessions=sessions, order=order)
    assert plain[0] == 0 and plain[3] < 0  # three of four: easy
    assert counted[0] > 0 and counted[3] == 0  # one of two: hard


def test_outcome_is_not_moved_by_shaping() -> None:
    rewards, outcomes = [1.0, -0.5, 0.0, 0.0], torch.tensor([1.0, 0, 0, 0])
    view = {"sessions": list("abcd"), "order": [0] * 4, "outcomes": outcomes, "index": ["p"] * 4}
    got = estimate_with(rewards, {"qae_k": 0.4, "qae_on": "outcome"}, **view)
    assert got == pytest.approx([2.25, -0.75, 0.25, 0.25], abs=1e-4)


def test_unscored_rows_are_outside_their_group() -> None:
    outcomes = torch.tensor([1.0, 0, 0, torch.nan])
    view = {"sessions": list("abcd"), "order": [0] * 4, "outcomes": outcomes, "index": ["p"] * 4}
    got = estimate_with([1.0, 0, 0, 0], {"qae_k": 0.4}, **view)
    assert got[3] == 0 and got[0] == pytest.approx(3**0.5, abs=1e-4)  # std of 1, 0, 0 with n-1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"qae_k": 1.0}, r"algorithm\.qae_k=1\.0 must be a fraction strictly between 0 and 1"),
        ({"quantile_k": -1}, r"algorithm\.quantile_k=-1 must be .*; for the mean baseline use .*grpo"),
        ({"qae_k": 0.4, "quantile_k": 0.6}, r"qae_k=0\.4 and algorithm\.quantile_k=0\.6: give one"),
        ({"qae_k": 0.4, "qae_on": "outcome"}, r"set trainer\.v1\.trainer_mode=qae_sync"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_with([1.0, 0.0], settings, index=["p", "p"])


def test_an_option_that_an_estimator_does_not_have_is_refused() -> None:
    tokens = torch.ones(2, 1)
    with pytest.raises(ValueError, match=r"algorithm\.qae_eps=1: qae_rloo has no such option"):
        estimate(tokens, tokens, ["p", "p"], {"qae_eps": 1}, estimator="qae_rloo")


def test_without_ids_it_says_so() -> None:
    tokens = torch.ones(2, 1)
    with pytest.raises(ValueError, match="needs their uid"):
        estimate(tokens, tokens, None, {"qae_k": 0.4})


def test_a_missing_k_is_said() -> None:
    with pytest.warns(UserWarning, match=r"algorithm\.qae_k is not set: K=0\.4 is used"):
        estimate_with([1.0, 0.0], {}, index=["p", "p"])
