"""The gradient's noise: a brute-force gate against the rule, and where the rule comes from."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qae.noise import gradient_noise, least_noise_k

LENGTHS = st.floats(0.01, 100)


def test_worked_by_hand():
    """p = 1/4: a quarter of the rows are successes of weight 1 - b, three quarters failures of weight b."""
    assert gradient_noise(0.25, 0, success_norm2=2, failure_norm2=8) == 0.5
    assert gradient_noise(0.25, 1, success_norm2=2, failure_norm2=8) == 6
    assert gradient_noise(0.25, 0.25, success_norm2=2, failure_norm2=8) == 0.25 * 0.5625 * 2 + 0.75 * 0.0625 * 8
    assert least_noise_k(success_norm2=2, failure_norm2=8) == 0.2


@given(success=LENGTHS, failure=LENGTHS, k=st.floats(0.01, 0.99), size=st.integers(2, 16))
def test_no_other_gate_is_less_noisy_on_any_prompt(success, failure, k, size):
    def noise(level, right):
        p = Fraction(right, size)
        b = 0 if p <= 1 - Fraction(level) else 1
        return gradient_noise(float(p), b, success_norm2=success, failure_norm2=failure)

    best = least_noise_k(success_norm2=success, failure_norm2=failure)
    for right in range(1, size):
        assert noise(best, right) <= noise(k, right) * (1 + 1e-9)


@given(success=LENGTHS, failure=LENGTHS, p=st.floats(0.01, 0.99), b=st.floats(0, 1))
def test_the_least_noisy_baseline_lies_below_the_pass_rate_where_failures_are_longer(success, failure, p, b):
    """Its minimum over all b, p s_1 / (p s_1 + (1 - p) s_0), is the pass rate only for equal lengths."""
    best = p * success / (p * success + (1 - p) * failure)
    noise = [gradient_noise(p, x, success_norm2=success, failure_norm2=failure) for x in (best, b)]
    assert noise[0] <= noise[1] * (1 + 1e-9)
    assert best == pytest.approx(p) if success == failure else (best < p) == (failure > success)


def test_the_mean_is_the_less_noisy_one_where_lengths_are_equal_and_need_not_be_where_they_are_not():
    """From r = s_0 / s_1 > 2 on, successes alone are less noisy than the mean for p < (r - 2) / (r - 1)."""
    for r, p in ((1.0, 0.5), (1.0, 0.1), (2.0, 0.1), (5.0, 0.8)):
        zero, mean = (gradient_noise(p, b, success_norm2=1, failure_norm2=r) for b in (0, p))
        assert mean < zero
    for r, p in ((3.0, 0.4), (5.0, 0.7), (9.0, 0.8)):
        zero, mean = (gradient_noise(p, b, success_norm2=1, failure_norm2=r) for b in (0, p))
        assert zero < mean


@pytest.mark.parametrize("lengths", [{"success_norm2": 0.0}, {"failure_norm2": -1.0}, {"failure_norm2": float("nan")}])
def test_lengths_are_positive(lengths):
    name, value = next(iter(lengths.items()))
    with pytest.raises(ValueError, match=f"^{name} is a squared length above 0, got {value:g}$"):
        least_noise_k(**{"success_norm2": 1.0, "failure_norm2": 1.0} | lengths)
