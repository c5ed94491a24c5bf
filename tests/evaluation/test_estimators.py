import itertools
import random
import statistics
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qae.evaluation.estimators import (
    average,
    bootstrap_interval,
    maj_at_k,
    paired_difference,
    pass_at_k,
)


def test_one_of_four():
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 1) == 0.25


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for n in range(1, 11):
        for c in range(n + 1):
            outcomes = [1] * c + [0] * (n - c)
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(outcomes, k))
                assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def test_pass_at_k_at_sizes_that_overflow_a_float():
    assert pass_at_k(5000, 1, 2500) == 0.5
    assert 0 < pass_at_k(100_000, 1, 1) < 1.1e-5


@pytest.mark.parametrize(
    ("n", "c", "k", "text"),
    [
        (4, 1, 8, "k=8 is more than the n=4 samples drawn: draw at least 8 samples or lower k"),
        (4, 1, 0, "k=0 must be at least 1"),
        (4, 5, 1, "c=5 correct of n=4 samples: c must lie in 0..4"),
        (4, -1, 1, "c=-1 correct"),
    ],
)
def test_pass_at_k_refuses(n, c, k, text):
    with pytest.raises(ValueError, match=text):
        pass_at_k(n, c, k)


def vote_from_definition(answers, correct, k):
    total = Fraction(0)
    subsets = list(itertools.combinations(range(len(answers)), k))
    for subset in subsets:
        votes = Counter("right" if correct[i] else answers[i] for i in subset if correct[i] or answers[i])
        if votes:
            top = max(votes.values())
            tied = [answer for answer, count in votes.items() if count == top]
            total += Fraction("right" in tied, len(tied))
    return float(total / len(subsets))


VOTES = st.sampled_from([("7", True), ("07", True), ("3", False), ("4", False), (None, False)])


@given(st.lists(VOTES, min_size=1, max_size=8), st.data())
@settings(deadline=None)
def test_maj_at_k_is_the_vote_over_all_subsets(samples, data):
    answers, correct = [a for a, _ in samples], [ok for _, ok in samples]
    k = data.draw(st.integers(1, len(samples)))
    value = maj_at_k(answers, correct, k)
    assert value == pytest.approx(vote_from_definition(answers, correct, k), abs=1e-12)
    order = data.draw(st.permutations(range(len(samples))))
    assert maj_at_k([answers[i] for i in order], [correct[i] for i in order], k) == pytest.approx(value, abs=1e-12)
    assert maj_at_k(answers, correct, 1) == pytest.approx(statistics.fmean(correct))


def test_maj_at_k_of_many_samples_is_quick():
    answers = [str(i % 9) for i in range(64)]
    assert 0 < maj_at_k(answers, [a == "0" for a in answers], 16) < 1


def test_maj_at_k_of_counts_beyond_a_float():
    assert maj_at_k(["1"] * 520 + ["2"] * 520, [True] * 520 + [False] * 520, 521) == pytest.approx(0.5)


def test_maj_at_k_edges():
    assert maj_at_k([None, None], [False, False], 2) == 0.0
    assert maj_at_k(["1", "2", "2"], [True, False, False], 3) == 0.0
    with pytest.raises(ValueError, match="2 answers but 1 verdicts"):
        maj_at_k(["1", "2"], [True], 1)
    with pytest.raises(ValueError, match="k=3 is more than the n=2 samples"):
        maj_at_k(["1", "2"], [True, False], 3)


def test_average_weighs_problems_equally():
    assert average([[1, 0], [1, 1, 1, 1]]) == 0.75
    with pytest.raises(ValueError, match="at least one sample for each problem"):
        average([[1], []])


def test_interval_is_seeded_and_degenerate_cases_have_width_zero():
    values = [0.0, 0.1, 0.5, 0.9, 1.0]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    for constant in ([0.0] * 5, [1.0]):
        interval = bootstrap_interval(constant)
        assert interval.low == interval.mean == interval.high


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"values": []}, "at least one problem"),
        ({"values": [1.0], "level": 95}, "level=95 must lie between 0 and 1, e.g. 0.95"),
        ({"values": [1.0], "resamples": 10}, "resamples=10 is too few"),
    ],
)
def test_interval_refuses(arguments, text):
    with pytest.raises(ValueError, match=text):
        bootstrap_interval(**arguments)


def coverage(n, trials, draw, truth, **options):
    rng = random.Random(n)
    hits = 0
    for trial in range(trials):
        interval = bootstrap_interval([draw(rng) for _ in range(n)], seed=trial, **options)
        hits += interval.low <= truth <= interval.high
    return hits / trials


def graded_problem(rng):
    """pass@1 of 8 samples on a problem whose pass rate is drawn from Beta(.6, 1): many hard, some easy."""
    p = rng.betavariate(0.6, 1.0)
    return sum(rng.random() < p for _ in range(8)) / 8


def test_95_percent_interval_covers_the_truth_95_times_in_100():
    assert 0.93 <= coverage(30, 600, graded_problem, 0.375, resamples=400) <= 0.975


def test_coverage_follows_the_level_asked_for():
    assert 0.75 <= coverage(30, 400, graded_problem, 0.375, resamples=400, level=0.8) <= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 30, 100])
def test_coverage_at_length(n):
    assert 0.935 <= coverage(n, 3000, graded_problem, 0.375, resamples=1000) <= 0.965


def test_paired_difference_counts_and_narrows():
    rng = random.Random(0)
    difficulty = [rng.random() for _ in range(60)]
    baseline = [min(1.0, d + rng.gauss(0, 0.02)) for d in difficulty]
    treatment = [min(1.0, d + 0.05 + rng.gauss(0, 0.02)) for d in difficulty]
    result = paired_difference(baseline, treatment)
    alone = bootstrap_interval(treatment)
    assert result.low > 0
    assert result.high - result.low < 0.2 * (alone.high - alone.low)
    assert result.won + result.lost + result.tied == 60
    swapped = paired_difference(treatment, baseline)
    assert (swapped.won, swapped.lost) == (result.lost, result.won)
    with pytest.raises(ValueError, match="2 baseline values but 1 treatment values: pair them by problem"):
        paired_difference([1, 0], [1])
