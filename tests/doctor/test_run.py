"""Which baseline a run has, read off dumps that are made here with every estimator."""

import json
import random

import pytest
import torch

from qae import leave_one_out_advantages, mean_advantages, quantile_advantages
from qae.advantages import outcome_quantile_advantages
from qae.doctor import check_run, verdict_text

SIZE = 8


def rewards_of(groups: int, values=(0.0, 1.0), seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random.Random(seed)
    shares = [rng.random() for _ in range(groups)]
    rewards = [
        values[int(rng.random() < p)] if len(values) == 2 else rng.choice(values) for p in shares for _ in range(SIZE)
    ]
    return torch.tensor(rewards, dtype=torch.float64), torch.arange(groups * SIZE) // SIZE


def dump(path, rewards, ids, advantages):
    lines = [
        {"step": 1, "prompt_id": f"p{i}", "reward": None if r != r else r, "advantage": a}
        for r, i, a in zip(rewards.tolist(), ids.tolist(), advantages.float().tolist(), strict=True)
    ]
    random.Random(1).shuffle(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [path]


SCALES = [
    {"divisor": "n", "eps": 1e-6},
    {"divisor": "n-1", "eps": 1e-4},
    {"scale": "batch", "divisor": "n-1"},
    {"scale": "none"},
]


@pytest.mark.parametrize("options", SCALES, ids=str)
@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 1.0), (0.0, 0.3, 0.7, 1.0)], ids=str)
def test_mean_and_quantile_are_told_apart_whatever_they_are_divided_by(tmp_path, options, values):
    rewards, ids = rewards_of(40, values)
    verdict = check_run(dump(tmp_path / "mean.jsonl", rewards, ids, mean_advantages(rewards, ids, **options)))
    assert verdict.kind == "mean"
    for k in (0.2, 0.4, 0.8):
        advantages = quantile_advantages(rewards, ids, k, **options)
        verdict = check_run(dump(tmp_path / f"{k}.jsonl", rewards, ids, advantages))
        assert verdict.kind == "quantile"
        assert verdict.k[0] < k <= verdict.k[1]
        assert verdict.k[1] - verdict.k[0] <= 1 / SIZE + 1e-9


def test_the_scale_is_named(tmp_path):
    rewards, ids = rewards_of(40)
    words = ["std (n)", "std (n-1)", "everywhere", "not divided"]
    for options, word in zip(SCALES, words, strict=True):
        verdict = check_run(dump(tmp_path / "run.jsonl", rewards, ids, quantile_advantages(rewards, ids, **options)))
        assert word in verdict.scale
    verdict = check_run(dump(tmp_path / "loo.jsonl", rewards, ids, leave_one_out_advantages(rewards, ids)))
    assert (verdict.kind, verdict.scale) == ("mean", "leave one out")


def test_the_interpolated_quantile_is_named(tmp_path):
    rewards, ids = rewards_of(60)
    advantages = quantile_advantages(rewards, ids, 0.4, method="linear")
    verdict = check_run(dump(tmp_path / "run.jsonl", rewards, ids, advantages))
    assert verdict.kind == "quantile"
    assert "interpolated" in verdict.found
    assert verdict.k == (0.4, 0.4)


def test_flat_data_cannot_tell(tmp_path):
    ids = torch.arange(24) // 8
    rewards = ids.double()
    verdict = check_run(dump(tmp_path / "flat.jsonl", rewards, ids, torch.zeros(24)))
    assert verdict.kind == "unknown"
    assert verdict.found == "all 3 groups are flat, where every baseline gives 0: this run cannot tell"
    assert verdict_text(verdict).startswith("cannot tell: all 3 groups are flat")


def test_data_on_which_mean_and_quantile_agree_cannot_tell(tmp_path):
    """The middle of (0, 1, 2) is its mean, its median and its quantile for K in (1/3, 2/3]."""
    rewards, ids = torch.tensor([0.0, 1, 2, 2, 1, 0], dtype=torch.float64), torch.arange(6) // 3
    advantages = mean_advantages(rewards, ids)
    torch.testing.assert_close(advantages, quantile_advantages(rewards, ids, 0.5))
    verdict = check_run(dump(tmp_path / "run.jsonl", rewards, ids, advantages))
    assert (verdict.kind, verdict.decisive) == ("unknown", 0)


def test_a_dump_without_advantages_cannot_tell(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"prompt_id": 1, "reward": 1}\n{"prompt_id": 1, "reward": 0}\n')
    assert check_run([path]).found == "no advantages were logged with the rollouts: nothing to compare"


def test_a_changing_k_is_a_quantile_all_the_same(tmp_path):
    rewards, ids = rewards_of(80)
    low, high = (quantile_advantages(rewards, ids, k) for k in (0.2, 0.8))
    verdict = check_run(dump(tmp_path / "run.jsonl", rewards, ids, torch.where(ids < 40, low, high)))
    assert (verdict.kind, verdict.k) == ("quantile", None)
    assert "K changes during the run" in verdict.found


def test_what_is_neither_is_said_to_be_neither(tmp_path):
    rewards, ids = rewards_of(40)
    shifted = mean_advantages(rewards, ids, scale="none") - 0.1
    flat = mean_advantages(rewards, ids) == 0
    verdict = check_run(dump(tmp_path / "shifted.jsonl", rewards, ids, shifted.masked_fill(flat, 0.0)))
    assert verdict.kind == "other"
    whitened = quantile_advantages(rewards, ids)
    whitened = (whitened - whitened.mean()) / whitened.std()
    assert check_run(dump(tmp_path / "whitened.jsonl", rewards, ids, whitened)).kind == "other"


def test_an_outcome_gate_beside_a_penalty_is_not_called_by_another_name(tmp_path):
    outcomes, ids = rewards_of(40)
    rng = random.Random(3)
    penalties = torch.tensor([-rng.random() * (rng.random() < 0.4) for _ in outcomes], dtype=torch.float64)
    advantages = outcome_quantile_advantages(outcomes, penalties, ids)
    verdict = check_run(dump(tmp_path / "run.jsonl", outcomes + penalties, ids, advantages))
    assert verdict.kind == "other"
    assert "it depends on more than the logged reward" in verdict.found


def test_unscored_rows_are_left_out(tmp_path):
    rewards, ids = rewards_of(40)
    rewards[::7] = torch.nan
    verdict = check_run(dump(tmp_path / "run.jsonl", rewards, ids, quantile_advantages(rewards, ids, 0.4)))
    assert verdict.kind == "quantile"


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no rollouts in .*; give a run directory or its dumps"):
        check_run([tmp_path])
