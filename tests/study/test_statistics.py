"""Sign-flip tests, Holm, intervals and verdicts: by hand, by definition, and what few seeds cannot say."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qae.study.statistics import compare, crossed_interval, holm, judge, sign_flip_p, t_interval, t_quantile

differences = st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), min_size=1, max_size=8)


@pytest.mark.parametrize(("seeds", "smallest"), [(1, 1), (3, 0.25), (5, 0.0625), (6, 0.03125), (10, 2 / 1024)])
def test_so_many_seeds_cannot_go_below(seeds, smallest):
    assert sign_flip_p([0.1] * seeds) == smallest


def test_sign_flip_by_hand():
    """[3, 2, -1]: sums over all signs are +-6, +-4, +-2, 0; |sum| >= 4 for 4 of 8."""
    assert sign_flip_p([3, 2, -1]) == 0.5
    assert sign_flip_p([0.0, 0.0]) == 1.0


@given(differences)
def test_sign_flip_is_its_definition(values):
    flips = [
        sum(s * v for s, v in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert sign_flip_p(values) == sum(abs(flip) >= abs(sum(values)) for flip in flips) / len(flips)


@given(differences, st.sampled_from([-1.0, 0.1, 3.0]))
def test_sign_flip_sees_neither_unit_nor_direction(values, factor):
    assert sign_flip_p([factor * value for value in values]) == sign_flip_p(values)


def test_rounding_does_not_break_ties():
    """0.1 + 0.2 against 0.3: sums that are equal on paper must count as equal."""
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip_p([0.1, 0.2, 0.3]) == 0.25


def test_a_test_of_nothing_is_right_in_its_level():
    """Of 400 comparisons without a difference, at most about alpha have p <= alpha."""
    rng = random.Random(0)
    ps = [sign_flip_p([rng.gauss(0, 1) for _ in range(8)]) for _ in range(400)]
    for alpha in (0.05, 0.2):
        assert sum(p <= alpha for p in ps) / 400 < alpha + 3 * math.sqrt(alpha / 400)


def test_too_many_seeds_to_enumerate():
    with pytest.raises(ValueError, match=r"^17 differences: the exact sign-flip test takes 1 to 16$"):
        sign_flip_p([1.0] * 17)
    with pytest.raises(ValueError, match=r"^0 differences"):
        sign_flip_p([])


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_monotone_and_never_below_the_plain_p(ps):
    adjusted = holm(ps)
    assert all(p <= a <= 1 for p, a in zip(ps, adjusted, strict=True))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)
    if ps:
        assert adjusted[order[0]] == min(1, len(ps) * min(ps))


@pytest.mark.parametrize(
    ("freedom", "right"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (500, 1.965)]
)
def test_t_quantile_against_the_tables(freedom, right):
    assert t_quantile(0.975, freedom) == pytest.approx(right, abs=6e-4)


def test_t_interval_covers():
    rng = random.Random(1)
    inside = 0
    for _ in range(2000):
        low, high = t_interval([rng.gauss(0.3, 1) for _ in range(4)])
        inside += low < 0.3 < high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)
    assert t_interval([1.0]) is None


def test_crossed_interval_covers_other_seeds_and_other_problems():
    """Effects of seeds, of problems and of both together, each as large: neither interval alone would cover."""
    rng = random.Random(2)
    inside = narrow = 0
    for _ in range(600):
        seeds, problems = [rng.gauss(0, 0.1) for _ in range(6)], [rng.gauss(0, 0.3) for _ in range(12)]
        table = [[0.2 + s + q + rng.gauss(0, 0.3) for q in problems] for s in seeds]
        low, high = crossed_interval(table)
        inside += low < 0.2 < high
        over_seeds = t_interval([statistics.fmean(row) for row in table])
        narrow += over_seeds[0] < 0.2 < over_seeds[1]
    assert 0.93 < inside / 600 < 0.985
    assert narrow / 600 < 0.9
    assert crossed_interval([[0.1, 0.2]]) is None
    assert crossed_interval([]) is None


def test_compare_corrects_over_the_arms():
    found = compare({"a": [0.1] * 6, "b": [0.1, -0.1, 0.1, -0.1, 0.1, -0.1], "none": []})
    assert list(found) == ["a", "b"]
    assert (found["a"].p, found["a"].p_holm, found["a"].p_smallest) == (2 / 64, 4 / 64, 2 / 64)


def test_arms_that_were_planned_count_before_they_are_there():
    """Six arms were written down: the first one to finish is not tested alone."""
    found = compare({"a": [0.1] * 8, "b": [0.1] * 7 + [-0.1]}, comparisons=6)
    assert (found["a"].p_holm, found["a"].comparisons) == (6 * 2 / 256, 6)
    assert found["b"].p_holm == 5 * found["b"].p
    assert compare({"a": [0.1] * 8, "b": [0.1] * 8}, comparisons=1)["a"].comparisons == 2


def verdict(values, *, arms=1, planned=None, margin=0.05):
    difference = compare({"": values}, comparisons=arms)[""]
    return judge(difference, planned=planned or len(values), margin=margin)


def test_verdicts():
    assert verdict([0.1, 0.2, 0.1, 0.3, 0.1, 0.2])[0] == "higher"
    assert verdict([-0.1, -0.2, -0.1, -0.3, -0.1, -0.2])[0] == "lower"
    assert verdict([0.001, -0.001, 0.002, 0.0, 0.001, -0.001])[0] == "same"
    assert verdict([0.001, -0.001, 0.002, 0.0, 0.001, -0.001], margin=None)[0] == "open"
    assert verdict([0.3, -0.3, 0.2, -0.1, 0.1, 0.2, 0.1])[0] == "open"


def test_a_difference_that_is_sure_but_small_is_none():
    """Six seeds agree on a thousandth: inside the margin it does not matter, without a margin it counts."""
    small = [0.001, 0.002, 0.001, 0.003, 0.001, 0.002]
    assert verdict(small)[0] == "same"
    assert verdict(small, margin=None) == ("higher", "higher: p = 0.0312 over 6 seeds")
    wide = [0.001, 0.12, 0.001, 0.13, 0.001, 0.002]
    assert verdict(wide) == ("higher", "higher, by less than the margin: p = 0.0312 over 6 seeds")


def test_nothing_is_a_verdict_before_the_planned_seeds_are_there():
    values = [0.1, 0.2, 0.1, 0.3, 0.1, 0.2]
    told = "a hint, no verdict: all seeds agree, but 6 of 10 planned seeds are there"
    assert verdict(values, planned=10) == ("hint higher", told)
    assert verdict([value / 100 for value in values], planned=10)[0] == "hint same"


def test_few_seeds_give_hints_and_say_so():
    kind, words = verdict([0.1, 0.2, 0.1])
    assert (kind, words) == (
        "hint higher",
        "a hint, no verdict: all seeds agree, but 3 seeds cannot go below p = 0.25 (a verdict needs 6)",
    )
    assert verdict([0.1, 0.2, 0.1, 0.3, 0.1])[0] == "hint higher"  # p = .0625
    assert verdict([0.001, -0.001, 0.002]) == (
        "hint same",
        "a hint, no verdict: no difference beyond 0.05: the interval over 3 seeds lies within it, but 3 seeds cannot "
        "go below p = 0.25 (a verdict needs 6)",
    )
    assert verdict([-0.1, -0.2, -0.1])[0] == "hint lower"
    assert verdict([0.1, -0.2, 0.1])[0] == "open"
    assert verdict([0.01, 0.1, 0.02])[0] == "open"  # all agree, on less than the margin
    assert verdict([0.2])[0] == "open"


@pytest.mark.parametrize(("values", "seeds"), [([0.5], "1 seed is"), ([0.5, 0.4], "2 seeds are")])
def test_one_or_two_seeds_say_nothing(values, seeds):
    assert verdict(values) == ("open", f"open: {seeds} too few even for a hint")


def test_one_difference_is_enough_for_a_verdict_only_if_the_arms_allow_it():
    """Six seeds give p = .031: a verdict for one arm, none for six."""
    values = [0.1, 0.2, 0.1, 0.3, 0.1, 0.2]
    assert verdict(values)[0] == "higher"
    assert verdict(values, arms=6) == (
        "hint higher",
        "a hint, no verdict: all seeds agree, but 6 seeds cannot go below p = 0.031 (a verdict needs 8)",
    )
