import re
from collections import Counter

import pytest

from qae.rewards import Grade
from qae.tasks import Item, generated, make_task
from qae.tasks.arithmetic import HELDOUT_FRAC, LEVELS, ArithmeticTask
from qae.tasks.generated import draw_heldout_items, is_heldout, level_weights


def value(prompt: str) -> int:
    a, b, c = map(int, re.fullmatch(r"(\d+)\*(\d+)\+(\d+)\?", prompt).groups())
    return a * b + c


def test_items_are_right_and_of_their_level():
    task = ArithmeticTask(seed=3, levels=LEVELS)
    seen = Counter()
    for item in [task.train_item(i) for i in range(400)] + task.heldout_items(200):
        assert str(value(item.prompt)) == item.answer
        a, b = item.prompt.split("+")[0].split("*")
        assert f"{len(a)}x{len(b)}" == item.level
        seen[item.level] += 1
    assert min(seen.values()) > 100


def test_train_item_depends_on_seed_and_index_only():
    forwards = [ArithmeticTask(seed=1).train_item(i) for i in range(50)]
    task = ArithmeticTask(seed=1)
    backwards = [task.train_item(i) for i in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert forwards != [ArithmeticTask(seed=2).train_item(i) for i in range(50)]


def test_no_heldout_problem_is_ever_trained_on():
    task = ArithmeticTask(seed=0, levels=["1x1"])  # few problems: an overlap would show
    heldout = {item.id for item in task.heldout_items(100)}
    trained = {task.train_item(i).id for i in range(1500)}
    assert len(heldout) == 100
    assert not heldout & trained
    assert len(trained) > 1000


def test_both_orders_of_a_product_are_one_problem():
    task = ArithmeticTask(seed=0, levels=["1x1"])
    by_id: dict[str, set[str]] = {}
    for i in range(1200):
        item = task.train_item(i)
        by_id.setdefault(item.id, set()).add(item.prompt)
    assert any(len(prompts) == 2 for prompts in by_id.values())
    assert all(len({value(prompt) for prompt in prompts}) == 1 for prompts in by_id.values())


def test_heldout_items_ignore_the_seed_are_distinct_and_extend():
    items = ArithmeticTask(seed=0).heldout_items(100)
    assert items == ArithmeticTask(seed=9).heldout_items(100)
    assert items[:37] == ArithmeticTask(seed=0).heldout_items(37)
    assert len({item.id for item in items}) == 100
    assert all(is_heldout(item.id, HELDOUT_FRAC) for item in items)


def test_heldout_mix_follows_the_shares_exactly():
    items = ArithmeticTask(levels={"2x1": 3, "2x2": 1, "3x2": 0}).heldout_items(40)
    assert Counter(item.level for item in items) == {"2x1": 30, "2x2": 10}


def test_a_level_that_runs_out_leaves_its_places_to_the_others(monkeypatch):
    monkeypatch.setattr(generated, "_TRIES_BEFORE_EXHAUSTED", 300)

    def draw(rng, level):
        number = rng.randrange(20 if level == "few" else 10**9)
        return Item(f"{level}/{number}", "", "", level)

    def heldout(levels, count):
        shares = level_weights("test", levels, ["few", "many"])
        return draw_heldout_items("test", draw, shares, 0.3, count)

    few = heldout(["few"], 100)
    assert {item.id for item in few} == {f"few/{i}" for i in range(20) if is_heldout(f"few/{i}", 0.3)}
    mixed = Counter(item.level for item in heldout(["few", "many"], 100))
    assert mixed == {"few": len(few), "many": 100 - len(few)}


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("92+5=97#97", Grade(1.0, 1.0, "correct")),
        ("#97", Grade(1.0, 1.0, "correct")),
        ("#11,no#97", Grade(1.0, 1.0, "correct")),
        ("#97#", Grade(0.0, 0.0, "wrong")),
        ("#97#11", Grade(0.0, 0.0, "wrong")),
        ("#9", Grade(0.0, 0.0, "wrong")),
        ("#977", Grade(0.0, 0.0, "wrong")),
        ("#097", Grade(0.0, 0.0, "wrong")),
        ("# 97", Grade(0.0, 0.0, "wrong")),
        ("97", Grade(0.0, 0.0, "unparseable")),
        ("", Grade(0.0, 0.0, "unparseable")),
    ],
)
def test_grade(completion, verdict):
    item = Item("arithmetic/23*4+5", "23*4+5?", "97", "2x1")
    assert ArithmeticTask().grade([(item, completion)]) == [verdict]


def test_grades_keep_the_order():
    item = Item("x", "1*1+1?", "2")
    pairs = [(item, text) for text in ("#2", "#3", "#2", "")]
    assert [grade.outcome for grade in ArithmeticTask().grade(pairs)] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "arithmatic"}, r"task.name: unknown task 'arithmatic', did you mean 'arithmetic'\?"),
        (
            {"name": "arithmetic", "level": ["1x1"]},
            r"task.level: no option of task arithmetic, did you mean 'levels'",
        ),
        ({"name": "arithmetic", "levels": ["9x9"]}, r"unknown level '9x9'; levels are 1x1, 2x1, 2x2, 3x2"),
        ({"name": "arithmetic", "levels": {"1x1": -1}}, r"weight of level '1x1' is -1.0, must be at least 0"),
        ({"name": "arithmetic", "levels": {"1x1": 0}}, r"no level has a weight above 0"),
    ],
)
def test_wrong_configs_say_what_would_be_right(config, message):
    with pytest.raises(ValueError, match=message):
        make_task(config, seed=0)


def test_a_null_option_is_the_default():
    assert make_task({"name": "arithmetic", "levels": None}, seed=4).train_item(5) == ArithmeticTask(4).train_item(5)
