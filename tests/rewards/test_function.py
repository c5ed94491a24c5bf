import math
import sys

import numpy
import pytest
import torch

from qae.rewards import Grade
from qae.rewards.function import FunctionGrader, RewardFunctionError, load_function
from qae.rewards.weighted import Part, WeightedGrader

PAIRS = [("a cat", "cat"), ("a dog", "cat"), ("", "cat")]


def trl_style(completions, answer, difficulty, **kwargs):
    assert kwargs["prompts"] == ["p", "q", "r"]
    return [float(a in c) * d for c, a, d in zip(completions, answer, difficulty, strict=True)]


def trl_named_solution(prompts, completions, solution):
    return [float(s in c) for c, s in zip(completions, solution, strict=True)]


def trl_chat(completions, **kwargs):
    return [1.0 if c[0]["role"] == "assistant" and "cat" in c[0]["content"] else 0.0 for c in completions]


def verl_style(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "pets" and extra_info == {"index": 7}
    return 1.0 if ground_truth in solution_str else -1.0


def verl_dict(data_source, solution_str, ground_truth, extra_info=None):
    found = ground_truth in solution_str
    return {"score": 0.3 if found else -0.3, "acc": found, "pred": solution_str}


def verl_batch(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(g in s)} for s, g in zip(solution_strs, ground_truths, strict=True)]


def pair(completion, answer):
    return answer in completion


def rewards(grades):
    return [grade.reward for grade in grades]


def outcomes(grades):
    return [grade.outcome for grade in grades]


def test_trl_columns_arrive_as_lists():
    grader = FunctionGrader(trl_style)
    assert grader.style == "trl"
    grades = grader.grade(PAIRS, prompts=["p", "q", "r"], columns={"difficulty": [0.5, 1, 1], "index": [1, 2, 3]})
    assert rewards(grades) == [0.5, 0.0, 0.0]
    assert rewards(FunctionGrader(trl_named_solution).grade(PAIRS)) == [1.0, 0.0, 0.0]


def test_trl_chat_completions_are_messages():
    prompts = [[{"role": "user", "content": "pet?"}]] * 3
    assert rewards(FunctionGrader(trl_chat).grade(PAIRS, prompts=prompts)) == [1.0, 0.0, 0.0]


def test_verl_rows():
    columns = {"data_source": ["pets"] * 3, "extra_info": [{"index": 7}] * 3, "other": [0, 0, 0]}
    grades = FunctionGrader(verl_style).grade(PAIRS, columns=columns)
    assert rewards(grades) == [1.0, -1.0, -1.0]
    assert outcomes(grades) == [1.0, 0.0, 0.0]


def test_verl_dict_keeps_score_and_accuracy_apart():
    grades = FunctionGrader(verl_dict).grade(PAIRS)
    assert rewards(grades) == [0.3, -0.3, -0.3]
    assert outcomes(grades) == [1.0, 0.0, 0.0]


def test_verl_batch_and_pair():
    assert outcomes(FunctionGrader(verl_batch).grade(PAIRS)) == [1.0, 0.0, 0.0]
    assert outcomes(FunctionGrader(pair).grade(PAIRS)) == [1.0, 0.0, 0.0]
    assert FunctionGrader(pair).grade([]) == []


def test_none_and_nan_are_unscored():
    grades = FunctionGrader(lambda completions: [None, math.nan, 1]).grade(PAIRS)
    assert grades == [Grade(None, None, "unscored")] * 2 + [Grade(1.0, 1.0, "correct")]


def test_arrays_and_tensors_of_one_are_numbers():
    values = [numpy.float32(0.5), torch.tensor(1.0), numpy.array([0]), numpy.float32("nan"), True]
    found = [FunctionGrader(lambda completion, answer, v=v: v).grade(PAIRS[:1])[0].reward for v in values]
    assert found == [0.5, 1.0, 0.0, None, 1.0]
    assert rewards(FunctionGrader(lambda completions: torch.tensor([0.0, 1.0, 0.5])).grade(PAIRS)) == [0.0, 1.0, 0.5]


def test_a_failure_names_function_and_row():
    def brittle(completion, answer):
        return 1 / len(completion)

    with pytest.raises(RewardFunctionError, match=r"brittle failed on row 2 .completion '', answer 'cat'.*ZeroDiv"):
        FunctionGrader(brittle).grade(PAIRS)
    with pytest.raises(RewardFunctionError, match=r"failed on row 0 .*SystemExit: 3"):
        FunctionGrader(lambda completion, answer: sys.exit(3)).grade(PAIRS)
    with pytest.raises(RewardFunctionError, match=r"failed on a batch of 3 rows .*KeyError: 'difficulty'"):
        FunctionGrader(lambda completions, **kw: kw["difficulty"]).grade(PAIRS)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda completions: [1.0], "returned 1 rewards for 3 rows"),
        (lambda completions: 1.0, "returned float for 3 rows; return a list"),
        (lambda completion, answer: "good", "returned 'good' on row 0"),
        (lambda completion, answer: math.inf, "returned inf on row 0.*finite number, or None"),
        (lambda completion, answer: numpy.float32("inf"), "returned np.float32.inf. on row 0"),
        (lambda completion, answer: numpy.zeros(2), "on row 0 .*; return a finite number"),
        (lambda completion, answer: torch.zeros(2), "on row 0 .*; return a finite number"),
        (lambda completion, answer: 10**400, "on row 0 .*; return a finite number"),
        (lambda completion, answer: 1 + 2j, "on row 0 .*; return a finite number"),
        (lambda solution_str: {"acc": 1}, "returned a dict without 'score' on row 0"),
    ],
)
def test_what_is_no_reward_is_an_error(function, text):
    with pytest.raises(RewardFunctionError, match=text):
        FunctionGrader(function).grade(PAIRS)


async def asynchronous(completions):
    return completions


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda one: 0, r"has parameters \(one\), which fits none of: f\(completions"),
        (lambda one, two, three: 0, "fits none of"),
        (asynchronous, "is async"),
        ("math.sqrt", "must be written python:module.function"),
        ("python:sqrt", "must be written python:module.function"),
        ("python:no_such_module.f", "cannot import 'no_such_module'"),
        ("python:math.nothing", "module 'math' has no 'nothing'"),
        ("python:math.pi", "is a float, not a function"),
    ],
)
def test_unfit_functions_are_refused_before_training(function, text):
    with pytest.raises(ValueError, match=text):
        FunctionGrader(function)


def test_a_module_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_pet_rewards.py").write_text("def f(completion, answer):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("python:my_pet_rewards.f")("", "") == 1


def made(value):
    return FunctionGrader(lambda completions: [value] * len(completions))


def test_weighted_sum():
    grader = WeightedGrader([Part("right", made(1.0), 1.0), Part("short", made(0.5), 0.2)])
    assert grader.grade(PAIRS[:1]) == [Grade(1.0, 1.1, "correct")]
    parts = grader.grade_parts(PAIRS[:1])
    assert {name: grades[0].reward for name, grades in parts.items()} == {"right": 1.0, "short": 0.5}


@pytest.mark.parametrize(
    ("values", "rules", "expected"),
    [
        ((None, 1.0), ("unscored", "skip"), None),
        ((1.0, None), ("unscored", "skip"), 1.0),
        ((1.0, None), ("unscored", "unscored"), None),
        ((None, 0.5), ("skip", "skip"), 0.5),
        ((None, None), ("skip", "skip"), None),
    ],
)
def test_none_in_a_weighted_sum_never_poisons(values, rules, expected):
    parts = [Part(str(i), made(v), none=r) for i, (v, r) in enumerate(zip(values, rules, strict=True))]
    assert WeightedGrader(parts).grade(PAIRS[:1])[0].reward == expected


def test_a_weighted_sum_needs_distinct_names():
    with pytest.raises(ValueError, match="need names of their own"):
        WeightedGrader([Part("a", made(1)), Part("a", made(1))])
    with pytest.raises(ValueError, match="at least one grader"):
        WeightedGrader([])
