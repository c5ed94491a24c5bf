import pytest

from qae.rewards import GRADERS, make_grader
from qae.rewards.simple import ExactGrader, NumericGrader, RegexGrader


def reasons(grader, *pairs):
    return [grade.reason for grade in grader.grade(list(pairs))]


def test_exact():
    assert reasons(ExactGrader(), (" a b ", "a b"), ("a  b", "a b"), ("A b", "a b")) == ["correct", "wrong", "wrong"]
    assert reasons(ExactGrader(ignore_case=True), ("A B", "a b")) == ["correct"]
    tagged = ExactGrader(extract=("tag",))
    assert reasons(tagged, ("x <answer>a</answer>", "a"), ("a", "a"), ("a", " ")) == [
        "correct",
        "unparseable",
        "unusable_gold",
    ]


@pytest.mark.parametrize(
    ("settings", "answer", "gold", "reason"),
    [
        ({}, "1/3", "0.3333333", "correct"),
        ({}, "0.333", "1/3", "wrong"),
        ({"tolerance": 0.5}, "42.5", "42", "correct"),
        ({"tolerance": 0.5}, "42.51", "42", "wrong"),
        ({"tolerance": 0, "relative_tolerance": 0.01}, "1009", "1000", "correct"),
        ({"tolerance": 0, "relative_tolerance": 0.01}, "1011", "1000", "wrong"),
        ({"relative_tolerance": 0.1}, "-9.5", "-10", "correct"),
        ({"tolerance": 0, "relative_tolerance": 0.07}, "1070", "1000", "correct"),
        ({"tolerance": 0, "relative_tolerance": 0.07}, "1070.000001", "1000", "wrong"),
        ({"relative_tolerance": 0.1}, "9" * 390, "1" + "0" * 390, "correct"),
        ({}, r"\boxed{5\text{ cm}}", "5", "correct"),
        ({}, "inf", "5", "unparseable"),
        ({}, "x", "5", "unparseable"),
        ({}, "5", "inf", "unusable_gold"),
        ({}, "5", "", "unusable_gold"),
        ({}, "5", "nan", "unusable_gold"),
    ],
)
def test_numeric(settings, answer, gold, reason):
    assert reasons(NumericGrader(**settings), (answer, gold)) == [reason]


def test_regex_takes_the_last_match_and_the_named_group():
    grader = RegexGrader(pattern=r"(?:choice|option) (?P<answer>[A-D])", ignore_case=True)
    assert reasons(grader, ("Option A, no, CHOICE b", "B"), ("option A", "B"), ("B", "B"), ("option A", "")) == [
        "correct",
        "wrong",
        "unparseable",
        "unusable_gold",
    ]
    assert reasons(RegexGrader(pattern=r"\d+"), ("1 2", "2")) == ["correct"]
    assert reasons(RegexGrader(pattern=r"x(\d)?"), ("x", "2")) == ["unparseable"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            "maths",
            "grader 'maths' does not exist: choose from exact, last_number, math, numeric, regex or "
            "python:module.function",
        ),
        ({"tolerance": 1}, "needs a name: choose from"),
        ({"name": "numeric", "tolerence": 1}, "grader 'numeric' with settings .*tolerence"),
        ({"name": "numeric", "tolerance": -1}, "tolerance=-1 must be a finite number >= 0"),
        ({"name": "regex", "pattern": "("}, "is no regular expression"),
        ({"name": "exact", "extract": ["box"]}, "answer extraction"),
        ("regex", "pattern"),
        ([{"name": "exact", "none": "maybe"}], "none='maybe' must be 'skip' or 'unscored'"),
        ([], "at least one grader"),
        (["exact", "exact"], "names of their own"),
    ],
)
def test_make_grader_refuses(spec, text):
    with pytest.raises(ValueError, match=text):
        make_grader(spec)


def test_make_grader_makes_every_grader_of_the_table():
    needed = {"regex": {"pattern": r"\d+"}}
    for name in GRADERS:
        grader = make_grader({"name": name, **needed.get(name, {})})
        assert [g.outcome for g in grader.grade([("7", "7"), ("8", "7"), ("7", "")])] == [1.0, 0.0, None]
        assert grader.grade([]) == []
        grader.close()


def test_a_list_is_a_weighted_sum():
    grader = make_grader(["exact", {"name": "python:rewards.test_graders.brevity", "weight": 0.5, "label": "short"}])
    grades = grader.grade([("cat", "cat"), ("a cat", "cat"), ("cat", "")])
    assert [grade.reward for grade in grades] == [1.5, 0.5, None]
    assert [grade.outcome for grade in grades] == [1.0, 0.0, None]


def test_none_of_a_function_leaves_out_its_term():
    grader = make_grader(["exact", "python:rewards.test_graders.never"])
    assert [grade.reward for grade in grader.grade([("cat", "cat")])] == [1.0]


def brevity(completions):
    return [1.0 if len(completion) < 9 else 0.0 for completion in completions]


def never(completions):
    return [None] * len(completions)


@pytest.mark.parametrize(
    ("spec", "first", "second", "other"),
    [
        ("last_number", "so 1,000.0", "it is 1000", "1001"),
        ("numeric", r"\boxed{0.50}", "Answer: 1/2", "0.51"),
        ({"name": "regex", "pattern": "[a-z]+$", "ignore_case": True}, "is Yes", "is yes", "is no"),
        ({"name": "exact", "ignore_case": True}, " Paris", "paris", "Rome"),
    ],
)
def test_votes_for_the_same_answer_are_the_same(spec, first, second, other):
    grader = make_grader(spec)
    assert grader.vote(first) == grader.vote(second) != grader.vote(other)


@pytest.mark.parametrize("spec", ["last_number", "numeric", {"name": "regex", "pattern": "[0-9]"}])
def test_without_an_answer_there_is_no_vote(spec):
    assert make_grader(spec).vote("none") is None
