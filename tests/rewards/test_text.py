import pytest

from qae.rewards.grader import Grader
from qae.rewards.simple import ExactGrader
from qae.rewards.text import LastNumberGrader


@pytest.mark.parametrize(
    ("completion", "gold", "outcome"),
    [
        ("72", "72", 1.0),
        ("so 48 + 24 = 72.", "72", 1.0),
        ("72 apples, 3 pears", "72", 0.0),
        ("1,250", "1250", 1.0),
        ("1250.0", "1,250", 1.0),
        ("it costs $1,250.50.", "1250.5", 1.0),
        ("7,8", "8", 1.0),
        ("-5", "-5", 1.0),
        ("3-5", "-5", 0.0),
        ("x=-5", "-5", 1.0),
        ("5", "-5", 0.0),
        ("v2.5", "2.5", 1.0),
        ("72", "some work\n#### 72", 1.0),
        ("72", "48/2 = 24, #### 1,072", 0.0),
        ("72", "$72", 1.0),
        ("<think>72</think> 71", "72", 0.0),
        ("<think>it is 72", "72", 0.0),
        ("it is</think> 72", "72", 1.0),
        ("none", "72", 0.0),
        ("", "72", 0.0),
        ("72", "", None),
        ("72", "see solution", None),
        ("72", "72 apples", None),
        ("72", "####", None),
    ],
)
def test_last_number(completion, gold, outcome):
    (grade,) = LastNumberGrader().grade([(completion, gold)])
    assert grade.outcome == grade.reward == outcome


def test_exact_is_exact_but_for_white_space():
    pairs = [("Paris\n", "Paris"), ("Paris.", "Paris"), ("", "Paris"), ("", " ")]
    grades = ExactGrader().grade(pairs)
    assert [(g.outcome, g.reason) for g in grades] == [
        (1.0, "correct"),
        (0.0, "wrong"),
        (0.0, "wrong"),
        (None, "unusable_gold"),
    ]


@pytest.mark.parametrize("grader", [ExactGrader(), LastNumberGrader()])
def test_they_answer_as_every_grader(grader):
    assert isinstance(grader, Grader)
    assert grader.grade([]) == []
    grader.close()
