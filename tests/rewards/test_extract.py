import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qae.rewards.compare import NeedsAlgebra, canonical, gold_problem, judge, without_algebra
from qae.rewards.extract import METHODS, extract_answer, strip_thinking


def test_order_of_methods_is_the_callers():
    text = r"\boxed{1} <answer>2</answer> #### 3" + "\nAnswer: 4\nso 5"
    found = {name: extract_answer(text, [name]) for name in METHODS}
    assert found == {"boxed": "1", "tag": "2", "hash": "3", "answer_line": "4", "last_number": "5"}
    assert extract_answer(text, ["answer_line", "boxed"]) == "4"


def test_the_answer_may_stand_anywhere():
    assert extract_answer(r"\boxed{42}" + " and so on" * 50_000) == "42"


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning"])
def test_thinking_tags(tag):
    assert strip_thinking(f"<{tag}>1</{tag}>2<{tag}>3</{tag}>4") == "4"
    assert strip_thinking(f"<{tag}>1") == ""


@pytest.mark.parametrize(
    "unit", ["answer ", "answer:", r"\boxed{", "not the ", " \\", "1,", "-", "$", "####", "<think>"]
)
def test_a_long_text_is_searched_to_its_end(unit):
    """A search that goes back over the text would not end within the time limit of a test."""
    short, long = (extract_answer(unit * (length // len(unit)) + " 4") for length in (700, 320_000))
    assert (short is None) == (long is None)


PIECES = st.sampled_from(
    [
        *r"\frac { } ( ) [ ] \{ \} 1 2 x , ; = < ^ _ \text{ $ \% cm and \cup \pm . - / \infty ^\circ : ! '".split(),
        *r"\boxed{ B is not answer: #### <think> </think> \overline{3} \begin{pmatrix} & \in x= ** 1,234".split(),
        *" \n\\\x00\u00bd\u2212\ud800",
    ]
)


@given(
    st.lists(PIECES, max_size=40).map("".join), st.sampled_from(["42", "x+1", "(1,2)", r"\{1,2\}", "B", "yes", "3:4"])
)
@settings(deadline=None, max_examples=120)
def test_no_text_breaks_the_search_or_the_comparison(text, gold):
    answer = extract_answer(text)
    assert answer is None or answer.strip() == answer != ""
    gold_problem(text)
    canonical(text)
    try:
        assert judge(gold, text, without_algebra) in ("correct", "wrong", "unparseable")
    except NeedsAlgebra:
        pass
