"""reasoning-gym behind our task; the library is an extra, so a stand-in with its interface serves without it."""

import sys

import pytest

from qae.tasks import make_task


def make(seed=0, **options):
    return make_task({"name": "reasoning_gym", "dataset": "chain_sum", **options}, seed)


def check_task(task, again, other):
    items = [task.train_item(i) for i in range(200)]
    assert items == [again.train_item(i) for i in range(200)]
    assert items != [other.train_item(i) for i in range(200)]
    heldout = task.heldout_items(40)
    assert heldout == other.heldout_items(40) and heldout[:5] == task.heldout_items(5)
    assert len({item.id for item in heldout}) == 40
    assert not {item.id for item in heldout} & {item.id for item in items}
    assert items[0].prompt.endswith("</answer>.")
    item = items[-1]
    completions = [f"<think>1</think><answer>{item.answer}</answer>", "<answer>x</answer>", "", "<answer>no</answer>"]
    grades = task.grade([(item, completion) for completion in completions])
    assert [g.outcome for g in grades] == [1.0, 0.0, 0.0, 0.0]
    assert [g.reason for g in grades] == ["correct", "wrong", "unparseable", "wrong"]
    return grades


def test_items_split_and_scores(library):
    grades = check_task(make(), make(), make(seed=1))
    assert [g.reward for g in grades] == [1.0, 0.01, 0.0, 0.01]
    assert make(settings={"min_terms": 5}).train_item(0).prompt.count("+") == 4


def test_the_real_library():
    pytest.importorskip("reasoning_gym", reason="the extra `tasks` is not installed")
    check_task(make(), make(), make(seed=1))


def test_chat_and_raw(library, qwen3):
    task = make(system="Be brief.", suffix="")
    item = task.train_item(0)
    assert qwen3.decode(task.encode(item, qwen3)).startswith("<|im_start|>system\nBe brief.")
    assert qwen3.decode(make(chat=False).encode(item, qwen3)) == item.prompt


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dataset": "chain_sums"}, "task.dataset=chain_sums: reasoning-gym has no such task; it has bf, chain_sum"),
        ({"settings": {"terms": 3}}, "task.dataset=chain_sum with settings .*unexpected keyword argument 'terms'"),
        ({"settings": {"min_terms": 0}}, "with settings .*min_terms must be positive"),
        ({"heldout": 0}, "task.heldout=0.0 must lie between 0 and 1"),
        ({"problems": 1}, "task.problems=1 must be at least 2"),
        ({"extract": ["box"]}, "answer extraction"),
    ],
)
def test_errors(library, options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"needs its library: pip install 'qae\[tasks\]'"):
        make()


def test_what_the_library_evaluates_can_neither_hang_nor_end_the_run(library, monkeypatch):
    monkeypatch.setattr("qae.rewards.gym._TIMEOUT_SECONDS", 0.5)
    task = make(dataset="bf")
    item = task.train_item(0)
    answers = [item.answer, f"{item.answer}+0", "1", "9**9**9**9", "(", "exit()", "[0] * 10**10"]
    grades = task.grade([(item, f"<answer>{answer}</answer>") for answer in answers])
    assert [g.reason for g in grades] == [
        "correct", "correct", "wrong", "timeout", "unparseable", "unparseable", "timeout",
    ]  # fmt: skip
    assert [g.reward for g in grades] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
