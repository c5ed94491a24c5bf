"""Fast checks of the estimators, each a function of the library's names, so that it can be given a mutated library.

`tests/test_estimator_mutants.py` runs them on the library, where all pass, and on every mutant, where one must fail.
"""

import warnings
from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import torch

import reference

NAN = float("nan")
# Ragged, interleaved, with an unscored row, a group of one, a flat group of a non-dyadic reward, an all-NaN group.
GROUP_IDS = [3, -1, 3, 7, -1, 3, 3, -1, 7, 5, 7, 8, 8, 9, 9, 3, -1, 3, 6, 6, 6]
REWARDS = [0, 1, 1, 0.5, 1, 0, None, 0, 0.25, 1, 0, 0.95, 0.95, None, None, 0, 1, 0, -0.5, 0.75, 0]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    values = [NAN if r is None else r for r in REWARDS]
    return torch.tensor(values, dtype=torch.float64), torch.tensor(GROUP_IDS)


def exact() -> list[Fraction | None]:
    return [None if r is None else Fraction(r) for r in REWARDS]


def agree(found: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=1e-12, atol=1e-12)


@cache
def definitions() -> list[tuple[str, tuple[float, ...], dict[str, object], list[float]]]:
    """(estimator, positional arguments, options, right values), computed once for all mutants."""
    scales = [{"scale": "std", "divisor": d, "eps": 1e-3} for d in ("n", "n-1")]
    scales += [{"scale": "none", "divisor": "n", "eps": 1e-3}]
    cases: list[tuple[str, tuple[float, ...], dict[str, object], list[float]]] = []
    for options in scales:
        right = reference.mean_advantages(exact(), GROUP_IDS, **options)
        cases.append(("mean_advantages", (), options, right))
        for percent in (20, 40, 50, 60, 75):
            for method in ("exact", "linear"):
                right = reference.quantile_advantages(
                    exact(), GROUP_IDS, Fraction(percent, 100), method=method, **options
                )
                cases.append(("quantile_advantages", (percent / 100,), {"method": method, **options}, right))
    for options in scales:
        for name, setting, right in (
            ("asymre", {"shift": 0.125}, {"below_mean": Fraction(1, 8)}),
            ("fixed", {"baseline": 0.25}, {"baseline": Fraction(1, 4)}),
        ):
            definition = reference.constant_advantages(exact(), GROUP_IDS, **right, **options)
            cases.append((f"{name}_advantages", (), setting | options, definition))
        for percent in (20, 40, 60):
            k = Fraction(percent, 100)
            for side in ("pos", "neg"):
                right = reference.masked_advantages(exact(), GROUP_IDS, k, side, **options)
                cases.append((f"{side}_mask_advantages", (percent / 100,), options, right))
            for method in ("exact", "linear"):
                right = reference.leave_one_out_quantile_advantages(exact(), GROUP_IDS, k, method=method, **options)
                arguments = {"method": method, **options}
                cases.append(("leave_one_out_quantile_advantages", (percent / 100,), arguments, right))
            keys = [(7 * i + 4) % 23 for i in range(len(REWARDS))]  # the smallest is of a row that was not scored
            right = reference.random_mask_advantages(exact(), GROUP_IDS, keys, k, **options)
            arguments = {"row_keys": torch.tensor(keys), **options}
            cases.append(("random_mask_advantages", (percent / 100,), arguments, right))
    for weight in (Fraction(0), Fraction(1, 8)):
        right = reference.w_reinforce_advantages(exact(), GROUP_IDS, weight)
        cases.append(("w_reinforce_advantages", (), {"positive_weight": float(weight)}, right))
    right = reference.leave_one_out_advantages(exact(), GROUP_IDS)
    return [*cases, ("leave_one_out_advantages", (), {}, right)]


def estimators_equal_their_definitions(lib: SimpleNamespace) -> None:
    for name, arguments, options, right in definitions():
        agree(getattr(lib, name)(*batch(), *arguments, **options), right)


def maxrl_divides_by_the_mean(lib: SimpleNamespace) -> None:
    rewards, group_ids = torch.tensor([1.0, 0, 0, 0.5], dtype=torch.float64), torch.tensor([1, 1, 1, 1])
    agree(lib.mean_advantages(rewards, group_ids, scale="mean", eps=0.125), [1.25, -0.75, -0.75, 0.25])


def batch_scale_is_over_all_scored_rewards(lib: SimpleNamespace) -> None:
    rewards = torch.tensor([1.0, 1, 1, 0, 0, 0, NAN, 1, 0, 0, 0, 1], dtype=torch.float64)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    found = lib.quantile_advantages(rewards, ids, 0.4, scale="batch", divisor="n", eps=0.0)
    deviation = float(rewards[~rewards.isnan()].std(correction=0))
    agree(found, [0, 0, 0, 0, 0, 0, 0, 1 / deviation, 0, 0, 0, 1 / deviation])


def outcome_equals_its_definition(lib: SimpleNamespace) -> None:
    penalties = [Fraction(-(i % 5), 4) if i % 7 else None for i in range(len(REWARDS))]
    found = lib.outcome_quantile_advantages(
        batch()[0], torch.tensor([NAN if p is None else float(p) for p in penalties]).double(), batch()[1], 0.4
    )
    agree(found, reference.outcome_quantile_advantages(exact(), penalties, GROUP_IDS, Fraction(2, 5), eps=1e-6))


def ties_and_ranks_are_integers(lib: SimpleNamespace) -> None:
    for percent, failures, size in ((28, 7, 25), (40, 4, 10), (29, 29, 100), (7, 7, 100), (56, 14, 25)):
        rewards, group_ids = (torch.arange(size) >= failures).float(), torch.zeros(size, dtype=torch.int64)
        assert (lib.group_quantile(rewards, group_ids, percent / 100) == 0).all()
        assert (lib.group_quantile(rewards, group_ids, percent / 100 + 0.001) == 1).all()


def flat_groups_are_exactly_zero(lib: SimpleNamespace) -> None:
    for size in (1, 2, 3, 7, 8):
        for dtype in (torch.float32, torch.float64):
            rewards, group_ids = torch.full((size,), 0.95, dtype=dtype), torch.zeros(size, dtype=torch.int64)
            assert lib.group_flat(rewards, group_ids).all()
            for divisor in ("n", "n-1"):
                assert (lib.group_std(rewards, group_ids, divisor=divisor) == 0).all()
            for method in ("exact", "linear"):
                assert torch.equal(lib.group_quantile(rewards, group_ids, 0.4, method=method), rewards)
            assert torch.equal(lib.group_mean(rewards, group_ids), rewards)
            for estimator in (lib.quantile_advantages, lib.mean_advantages, lib.leave_one_out_advantages):
                assert (estimator(rewards, group_ids) == 0).all()


def tolerance_and_size_are_bounds(lib: SimpleNamespace) -> None:
    rewards, group_ids = torch.tensor([0.5, 0.75, 0.0, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 1])

    def random_mask(rewards: torch.Tensor, group_ids: torch.Tensor, **options: float) -> torch.Tensor:
        return lib.random_mask_advantages(rewards, group_ids, row_keys=torch.arange(len(rewards)), **options)

    for estimator in (
        lib.quantile_advantages,
        lib.mean_advantages,
        lib.leave_one_out_advantages,
        lib.leave_one_out_quantile_advantages,
        lib.pos_mask_advantages,
        lib.neg_mask_advantages,
        lib.w_reinforce_advantages,
        lib.asymre_advantages,
        lib.fixed_advantages,
        random_mask,
    ):
        assert (estimator(rewards, group_ids) != 0).tolist()[:2] != [False, False]
        assert (estimator(rewards, group_ids, flat_tolerance=0.25)[:2] == 0).all()
        assert (estimator(rewards, group_ids, flat_tolerance=0.2)[:2] != 0).any()
        assert (estimator(rewards, group_ids, min_size=3)[:2] == 0).all()
        assert (estimator(rewards, group_ids, min_size=3)[2:] != 0).any()
        assert (estimator(torch.tensor([1.0, 0.0, NAN]), torch.tensor([4, 4, 4]), min_size=3) == 0).all()


def a_group_without_a_scored_row_has_no_statistic(lib: SimpleNamespace) -> None:
    values, group_ids = torch.tensor([1.0, NAN, 0.0, NAN]), torch.tensor([0, 1, 0, 1])
    empty = [False, True, False, True]
    assert lib.group_mean(values, group_ids).isnan().tolist() == empty
    assert lib.group_std(values, group_ids, divisor="n-1").isnan().tolist() == empty
    assert lib.group_quantile(values, group_ids, 0.4).isnan().tolist() == empty
    assert lib.group_flat(values, group_ids).tolist() == empty
    assert lib.group_size(values, group_ids).tolist() == [2, 0, 2, 0]


def nothing_passes_a_gradient_or_changes_dtype(lib: SimpleNamespace) -> None:
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    for estimator in (lib.quantile_advantages, lib.mean_advantages, lib.leave_one_out_advantages):
        advantages = estimator(rewards, torch.tensor([0, 0]))
        assert not advantages.requires_grad
        assert advantages.dtype == torch.float32


def ids_made_per_completion_are_warned_of(lib: SimpleNamespace) -> None:
    for group_ids, warned in (([0, 1, 2, 3, 3], True), ([0, 1, 1, 2, 2], False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lib.mean_advantages(torch.zeros(5), torch.tensor(group_ids))
        assert bool(caught) == warned


def refusals(lib: SimpleNamespace) -> None:
    rewards, group_ids = torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
    for call in (
        lambda: lib.quantile_advantages(rewards, group_ids, 1.0),
        lambda: lib.quantile_advantages(rewards, group_ids, 0.0),
        lambda: lib.quantile_advantages(rewards, group_ids, eps=-1.0),
        lambda: lib.quantile_advantages(rewards / 0, group_ids),
        lambda: lib.mean_advantages(rewards, group_ids, scale="mean"),
        lambda: lib.random_mask_advantages(rewards, group_ids),
        lambda: lib.w_reinforce_advantages(rewards, group_ids, positive_weight=-1.0),
        lambda: lib.asymre_advantages(rewards, group_ids, shift=NAN),
        lambda: lib.fixed_advantages(rewards, group_ids, baseline=NAN),
    ):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError("not refused")


def regimes_and_shares(lib: SimpleNamespace) -> None:
    outcomes = torch.tensor([1.0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, NAN])
    group_ids = torch.tensor([0] * 5 + [1] * 5 + [2] * 3)
    assert lib.regimes(outcomes, group_ids, 0.4).tolist() == [0] * 5 + [1] * 5 + [2, 2, 3]
    assert torch.equal(lib.regimes(2 * outcomes - 1, group_ids, 0.4), lib.regimes(outcomes, group_ids, 0.4))
    (row,) = lib.regime_table(outcomes, group_ids, [0.4])
    shares = (row.hard_frac, row.easy_frac, row.flat_frac, row.positive_frac, row.negative_frac, row.zero_frac)
    agree(torch.tensor(shares, dtype=torch.float64), [1 / 3, 1 / 3, 1 / 3, 1 / 12, 1 / 12, 10 / 12])
    assert abs(row.zero_frac_mixed - 0.8) < 1e-12
    for dtype in (torch.float32, torch.float64):
        pass_rates = torch.tensor([0.1, 0.6, 0.7], dtype=dtype)
        assert abs(lib.expected_zero_frac(pass_rates, 0.4) - (0.9 + 0.4 + 0.7) / 3) < 1e-7


def entropy_prediction(lib: SimpleNamespace) -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, -torch.inf], dtype=torch.float64)
    advantages = torch.tensor([1.0, 0.0, -0.5, 3.0], dtype=torch.float64)
    probs = logits.softmax(-1)

    def entropy(z: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=z[:3]).entropy()

    for centred in (True, False):
        step = 1e-6 * probs * (advantages - (probs @ advantages) * centred)
        measured = (entropy(logits + step) - entropy(logits)) / 1e-6
        predicted = lib.predicted_entropy_change(logits, advantages, 1.0, centred=centred)
        torch.testing.assert_close(predicted, measured, rtol=1e-4, atol=1e-6)


CHECKS = (
    estimators_equal_their_definitions,
    maxrl_divides_by_the_mean,
    batch_scale_is_over_all_scored_rewards,
    outcome_equals_its_definition,
    ties_and_ranks_are_integers,
    flat_groups_are_exactly_zero,
    a_group_without_a_scored_row_has_no_statistic,
    tolerance_and_size_are_bounds,
    nothing_passes_a_gradient_or_changes_dtype,
    ids_made_per_completion_are_warned_of,
    refusals,
    regimes_and_shares,
    entropy_prediction,
)
