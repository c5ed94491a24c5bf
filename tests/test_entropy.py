"""Regimes, the regime table and the predicted change of entropy: hand values, definitions, laws, invariances."""

import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qae.advantages import quantile_advantages
from qae.entropy import (
    EASY,
    FLAT,
    HARD,
    REGIMES,
    UNSCORED,
    expected_zero_frac,
    predicted_entropy_change,
    regime_table,
    regimes,
)
from reward_batches import batches, binary, floats, integers, law, levels

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")
NAN = torch.nan


def test_regimes_hand_values():
    outcomes = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, NAN, 1])
    group_ids = torch.tensor([5, 5, 5, 5, 2, 2, 2, 2, 9, 9, 9, 7])
    names = [REGIMES[code] for code in regimes(outcomes, group_ids, k=0.4).tolist()]
    assert names == ["hard"] * 4 + ["easy"] * 4 + ["flat"] * 2 + ["unscored", "flat"]


@law
@given(batches(binary), levels)
def test_regimes_equal_their_definition(batch, k):
    def regime(row: int) -> int:
        members = [r for r, g in zip(*batch, strict=True) if g == batch[1][row] and r is not None]
        if batch[0][row] is None:
            return UNSCORED
        if len(set(members)) < 2:
            return FLAT
        return HARD if Fraction(sum(members), len(members)) <= 1 - k else EASY

    found = regimes(floats(batch[0]), integers(batch[1]), float(k))
    assert found.tolist() == [regime(row) for row in range(len(batch[0]))]


@law
@given(batches(binary), levels, st.randoms(use_true_random=False))
def test_regimes_follow_a_permutation_and_the_scale_of_the_outcome(batch, k, rng: random.Random):
    outcomes, group_ids = floats(batch[0]), integers(batch[1])
    order = list(range(len(outcomes)))
    rng.shuffle(order)
    codes = regimes(outcomes, group_ids, float(k))
    assert torch.equal(regimes(outcomes[order], group_ids[order], float(k)), codes[order])
    assert torch.equal(regimes(2 * outcomes - 1, group_ids, float(k)), codes)


@law
@given(batches(binary), levels)
def test_the_regime_says_which_sign_the_advantages_have(batch, k):
    outcomes, group_ids = floats(batch[0]), integers(batch[1])
    codes = regimes(outcomes, group_ids, float(k))
    advantages = quantile_advantages(outcomes, group_ids, float(k))
    assert (advantages[codes == HARD] >= 0).all()
    assert (advantages[codes == EASY] <= 0).all()
    assert (advantages[codes >= FLAT] == 0).all()


def test_regime_table_hand_values():
    outcomes = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, NAN, NAN])
    group_ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3])
    (row,) = regime_table(outcomes, group_ids, [0.4])
    assert row.k == 0.4
    assert (row.hard_frac, row.easy_frac, row.flat_frac) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert (row.positive_frac, row.negative_frac, row.zero_frac) == pytest.approx((0.1, 0.1, 0.8))
    assert row.zero_frac_mixed == pytest.approx(6 / 8)


@law
@given(batches(binary), levels)
def test_regime_table_counts_what_the_estimators_do(batch, k):
    outcomes, group_ids = floats(batch[0]), integers(batch[1])
    (row,) = regime_table(outcomes, group_ids, [float(k)])
    scored = ~outcomes.isnan()
    if not scored.any():
        assert math.isnan(row.hard_frac) and math.isnan(row.zero_frac)
        return
    advantages = quantile_advantages(outcomes, group_ids, float(k))[scored]
    assert row.positive_frac == pytest.approx((advantages > 0).double().mean())
    assert row.negative_frac == pytest.approx((advantages < 0).double().mean())
    assert row.zero_frac == pytest.approx((advantages == 0).double().mean())
    codes = regimes(outcomes, group_ids, float(k))
    of_group = {int(g): int(code) for g, code in zip(group_ids[scored], codes[scored], strict=True)}
    for code, share in ((HARD, row.hard_frac), (EASY, row.easy_frac), (FLAT, row.flat_frac)):
        assert share == pytest.approx(sum(c == code for c in of_group.values()) / len(of_group))
    mixed = codes[scored] < FLAT
    if mixed.any():
        assert row.zero_frac_mixed == pytest.approx((advantages[mixed] == 0).double().mean())
    else:
        assert math.isnan(row.zero_frac_mixed)


def test_regime_table_of_nothing_is_nan():
    (row,) = regime_table(torch.tensor([]), torch.tensor([], dtype=torch.int64), [0.4])
    assert all(math.isnan(share) for name, share in vars(row).items() if name != "k")


def test_expected_zero_share_hand_values():
    assert expected_zero_frac(torch.tensor([0.1, 0.9]), 0.4) == pytest.approx(0.9)
    assert expected_zero_frac(torch.tensor([0.6], dtype=torch.float64), 0.4) == pytest.approx(0.4)  # the tie is hard
    assert expected_zero_frac(torch.tensor([0.61]), 0.4) == pytest.approx(0.61)


@law
@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), levels)
def test_expected_zero_share_is_that_of_groups_with_these_pass_rates(wins, k):
    outcomes = torch.cat([(torch.arange(8) < w).double() for w in wins])
    (row,) = regime_table(outcomes, torch.arange(len(wins)).repeat_interleave(8), [float(k)])
    assert expected_zero_frac(torch.tensor(wins) / 8, float(k)) == pytest.approx(row.zero_frac)


def slow_entropy_change(logits: list[float], advantages: list[float], step_size: float, *, centred: bool) -> float:
    """-eta Cov(log pi, pi a), term by term."""
    total = math.fsum(math.exp(z) for z in logits)
    probs = [math.exp(z) / total for z in logits]
    if centred:
        mean = math.fsum(p * a for p, a in zip(probs, advantages, strict=True))
        advantages = [a - mean for a in advantages]
    step = [p * a for p, a in zip(probs, advantages, strict=True)]
    logs = [math.log(p) for p in probs]
    e_log = math.fsum(p * x for p, x in zip(probs, logs, strict=True))
    e_step = math.fsum(p * s for p, s in zip(probs, step, strict=True))
    return -step_size * math.fsum(p * (x - e_log) * (s - e_step) for p, x, s in zip(probs, logs, step, strict=True))


actions = st.lists(st.tuples(st.floats(-4, 4), st.floats(-2, 2)), min_size=1, max_size=6)


@law
@given(actions, st.booleans())
def test_predicted_change_equals_the_covariance(actions, centred):
    logits, advantages = map(list, zip(*actions, strict=True))
    found = predicted_entropy_change(
        torch.tensor(logits, dtype=torch.float64), torch.tensor(advantages, dtype=torch.float64), 0.5, centred=centred
    )
    assert float(found) == pytest.approx(slow_entropy_change(logits, advantages, 0.5, centred=centred), abs=1e-12)


def test_predicted_change_hand_value():
    """pi = (3/4, 1/4), A = (1, 0): step pi (A - 3/4) = (3/16, -3/16), log pi - E log pi = log(3) (1/4, -3/4)."""
    logits, advantages = torch.tensor([math.log(3.0), 0.0]), torch.tensor([1.0, 0.0])
    expected = -math.log(3) * (3 / 4 * 1 / 4 * 3 / 16 + 1 / 4 * 3 / 4 * 3 / 16)
    assert float(predicted_entropy_change(logits, advantages, 1.0)) == pytest.approx(expected)


@law
@given(actions, st.floats(-3, 3))
def test_only_the_paper_s_identity_sees_a_shift_of_the_advantages(actions, shift):
    logits, advantages = (torch.tensor(side, dtype=torch.float64) for side in zip(*actions, strict=True))
    torch.testing.assert_close(
        predicted_entropy_change(logits, advantages + shift, 1.0),
        predicted_entropy_change(logits, advantages, 1.0),
        rtol=0,
        atol=1e-12,
    )


def test_impossible_actions_add_nothing_and_batches_go_through():
    logits = torch.tensor([[1.0, 0.0, -torch.inf], [1.0, 0.0, -2.0]])
    advantages = torch.tensor([[1.0, 0.0, 5.0], [1.0, 0.0, 5.0]])
    change = predicted_entropy_change(logits, advantages, 0.1)
    assert change.shape == (2,)
    assert change[0] == predicted_entropy_change(logits[0, :2], advantages[0, :2], 0.1)
    assert change[0] != change[1]


@pytest.mark.parametrize("centred", [True, False])
def test_a_uniform_policy_s_entropy_does_not_move_at_first_order(centred):
    change = predicted_entropy_change(torch.zeros(5), torch.tensor([1.0, 0, 0, 0, -1]), 1.0, centred=centred)
    assert float(change) == pytest.approx(0, abs=1e-7)
