from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qae.rewards.overlong import filter_truncated, overlong_penalty


def test_constants_of_dapo():
    assert overlong_penalty([0, 16383, 16384, 16385, 20480], 20480, 4096) == [
        0.0,
        0.0,
        0.0,
        -1 / 4096,
        -1.0,
    ]


@given(
    st.integers(1, 50).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))),
    st.lists(st.integers(0, 60)),
    st.floats(0, 4),
)
def test_definition(sizes, lengths, factor):
    max_tokens, buffer_tokens = sizes

    def definition(length):
        if length <= max_tokens - buffer_tokens:
            return Fraction(0)
        if length <= max_tokens:
            return Fraction(max_tokens - buffer_tokens - length, buffer_tokens)
        return Fraction(-1)

    expected = [float(definition(length)) * factor for length in lengths]
    assert overlong_penalty(lengths, max_tokens, buffer_tokens, factor) == pytest.approx(expected, abs=1e-12)


def test_no_buffer_is_no_penalty():
    assert overlong_penalty([5, 900], 100, 0) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1], 10, 11), "buffer_tokens=11 must lie between 0 .no penalty. and max_tokens=10"),
        (([1], 10, -1), "buffer_tokens=-1"),
        (([1], 10, 5, -1.0), "factor=-1.0 must not be negative"),
    ],
)
def test_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        overlong_penalty(*arguments)


def test_filter_keeps_places_and_unscored_rows():
    assert filter_truncated([1.0, None, 0.0, 1.0], [True, False, False, True]) == [None, None, 0.0, None]
    with pytest.raises(ValueError, match="2 rewards but 1 truncation flags"):
        filter_truncated([1.0, 0.0], [True])
