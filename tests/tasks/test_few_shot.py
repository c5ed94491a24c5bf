import re
from collections import Counter

import pytest

from qae.rewards import Grade
from qae.tasks import Item, make_task
from qae.tasks.few_shot import LEVELS, FewShotArithmeticTask, WordedArithmeticTask

PROBLEM = re.compile(r"(\d+) ([+*]) (\d+) =\Z")


def parse(item):
    a, sign, b = PROBLEM.search(item.prompt).groups()
    return int(a), sign, int(b)


def test_prompts_are_four_right_lines_and_an_open_one():
    task = FewShotArithmeticTask(levels=LEVELS)
    for item in [task.train_item(i) for i in range(200)]:
        *solved, line = item.prompt.split("\n")
        assert len(solved) == 4
        for shown in solved:
            a, sign, b, total = re.fullmatch(r"(\d+) ([+*]) (\d+) = (\d+)", shown).groups()
            assert int(total) == (int(a) + int(b) if sign == "+" else int(a) * int(b))
            assert sign in line
        a, sign, b = parse(item)
        assert item.answer == str(a + b if sign == "+" else a * b)


def test_no_solved_line_is_ever_asked():
    task = FewShotArithmeticTask(levels=LEVELS)
    for item in [task.train_item(i) for i in range(1000)]:
        a, sign, b = parse(item)
        solved = item.prompt.rpartition("\n")[0].split("\n")
        assert not {f"{x} {sign} {y} = {item.answer}" for x, y in ((a, b), (b, a))} & set(solved)


def test_levels_have_their_digits():
    task = FewShotArithmeticTask(levels=LEVELS)
    largest = {
        "add1": (9, 9),
        "add2": (99, 99),
        "add2x1": (99, 9),
        "add3": (999, 999),
        "mul1": (9, 9),
        "mul2x1": (99, 9),
    }
    for item in [task.train_item(i) for i in range(600)]:
        a, sign, b = parse(item)
        assert a <= largest[item.level][0]
        assert b <= largest[item.level][1]
        assert sign == ("+" if item.level.startswith("add") else "*")


def test_no_heldout_problem_is_trained_on_in_either_order():
    task = FewShotArithmeticTask(levels=["add1", "mul1"])
    heldout = task.heldout_items(15)
    trained = [task.train_item(i) for i in range(1000)]

    def unordered(items):
        return {(min(a, b), sign, max(a, b)) for a, sign, b in map(parse, items)}

    assert len(heldout) == 15
    assert not unordered(heldout) & unordered(trained)
    assert len(unordered(heldout)) == len(heldout)
    assert {item.level for item in heldout} == {"add1", "mul1"}


def test_there_are_enough_heldout_additions_to_measure():
    items = FewShotArithmeticTask(levels=["add2"]).heldout_items(200)
    assert len({item.id for item in items}) == 200
    assert items == FewShotArithmeticTask(seed=5, levels=["add2"]).heldout_items(200)


def test_the_default_mix_is_even():
    task = FewShotArithmeticTask()
    seen = Counter(task.train_item(i).level for i in range(800))
    assert set(seen) == {"add1", "add2", "mul1", "mul2x1"}
    assert min(seen.values()) > 140


RIGHT, WRONG, NONE = Grade(1.0, 1.0, "correct"), Grade(0.0, 0.0, "wrong"), Grade(0.0, 0.0, "unparseable")


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        (" 84", RIGHT),
        ("84", RIGHT),
        (" 84 + 1 = 85", RIGHT),
        (" 84.0", RIGHT),
        (" 84.", RIGHT),
        (" 8", WRONG),
        (" 840", WRONG),
        (" 84.5", WRONG),
        (" -84", WRONG),
        (" 084", WRONG),
        (" = 84", NONE),
        (" eighty-four 84", NONE),
        ("", NONE),
    ],
)
def test_the_line_is_graded_by_its_first_number(completion, verdict):
    item = Item("x", "48 + 36 =", "84", "add2")
    assert FewShotArithmeticTask().grade([(item, completion)]) == [verdict]


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("48 + 36 = 84.", RIGHT),
        ("The answer is 84", RIGHT),
        ("84, not 85", WRONG),
        ("It is 8", WRONG),
        ("no idea", NONE),
    ],
)
def test_words_are_graded_by_their_last_number(completion, verdict):
    item = Item("x", ({"role": "user", "content": "What is 48 + 36?"},), "84", "add2")
    assert WordedArithmeticTask().grade([(item, completion)]) == [verdict]


def test_worded_problems_go_through_the_chat_template(qwen3):
    task = make_task({"name": "worded_arithmetic", "levels": ["add2"]}, seed=0)
    item = task.heldout_items(1)[0]
    text = qwen3.decode(task.encode(item, qwen3))
    assert text == f"<|im_start|>user\n{item.prompt[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert task.stop == ()


def test_lines_are_raw_text_that_a_newline_ends(qwen3):
    task = make_task({"name": "few_shot_arithmetic"}, seed=0)
    item = task.train_item(0)
    assert qwen3.decode(task.encode(item, qwen3)) == item.prompt
    assert task.stop == ("\n",)
