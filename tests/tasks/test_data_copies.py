"""verl's and TRL's rows, copies and contradictions, long prompts, graders with settings."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from qae.tasks import Item, make_task
from qae.tasks.columns import ANSWER_COLUMNS, PROMPT_COLUMNS, gold_text, guess_column
from qae.tasks.copies import merge_copies


def verl_rows(count):
    return [
        {
            "data_source": "made/up",
            "prompt": [{"role": "user", "content": f"What is {i} + 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(count)
    ]


def trl_rows(count):
    return [{"prompt": f"What is {i} + 1?", "solution": rf"It is $\boxed{{{i + 1}}}$."} for i in range(count)]


def write_parquet(path, rows):
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_verl_parquet_needs_no_column_names(tmp_path):
    task = make_task({"path": write_parquet(tmp_path / "v.parquet", verl_rows(64))}, seed=0)
    items = [task.train_item(i) for i in range(task.size)] + task.heldout_items(99)
    assert len(items) == 64
    item = next(i for i in items if i.answer == "8")
    assert item.prompt == ({"role": "user", "content": "What is 7 + 1?"},)
    assert [g.outcome for g in task.grade([(item, r"\boxed{8}"), (item, "Answer: 9"), (item, "eight")])] == [1, 0, 0]


def test_a_trl_jsonl_needs_no_column_names(tmp_path):
    task = make_task({"path": write_jsonl(tmp_path / "t.jsonl", trl_rows(64))}, seed=0)
    item = task.train_item(0)
    value = int(item.prompt.split()[2]) + 1
    assert [g.outcome for g in task.grade([(item, f"So \\boxed{{{value}}}"), (item, "Answer: 0")])] == [1.0, 0.0]


def test_a_verl_reward_function_gets_verl_columns(tmp_path):
    path = write_parquet(tmp_path / "v.parquet", verl_rows(64))
    task = make_task({"path": path, "grader": "python:tasks.test_data_copies.compute_score"}, seed=0)
    item = task.train_item(0)
    grades = task.grade([(item, item.answer), (item, "no")])
    assert [(g.outcome, g.reward) for g in grades] == [(1.0, 1.0), (0.0, -1.0)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "made/up" and int(ground_truth) == extra_info["index"] + 1
    return 1.0 if solution_str == ground_truth else -1.0


def test_copies_are_one_problem_and_contradictions_none(tmp_path):
    rows = verl_rows(60) * 20 + [row | {"reward_model": {"ground_truth": "0"}} for row in verl_rows(3)]
    rows += [row | {"reward_model": {"ground_truth": f"{i + 1}.0"}} for i, row in enumerate(verl_rows(6)) if i > 2]
    task = make_task({"path": write_parquet(tmp_path / "v.parquet", rows)}, seed=0)
    assert task.size + len(task.heldout_items(999)) == 57
    assert len(task.notes) == 1
    assert task.notes[0].endswith(
        "1,206 rows are 57 problems: 1,086 copies left out, 3 problems (63 rows) dropped because their copies have "
        "different answers"
    )
    kept = make_task({"path": write_parquet(tmp_path / "v.parquet", rows), "merge_copies": False}, seed=0)
    assert (kept.size > 1000, kept.notes) == (True, ())


def test_as_many_copies_as_dapo_has_are_merged_quickly():
    items = [Item(str(i % 500), f"problem {i % 500}", str(i % 500)) for i in range(50_000)]
    kept, copies = merge_copies(items)
    assert (len(kept), copies.copies, copies.contradicting) == (500, 49_500, 0)
    assert [item.id for item in kept] == [str(i) for i in range(500)]


def test_long_prompts(tmp_path, qwen3):
    rows = [{"prompt": "Add. " * (100 if i == 7 else 1) + f"{i} + 1?", "answer": i + 1} for i in range(64)]
    options = {"path": write_jsonl(tmp_path / "long.jsonl", rows), "chat": False}
    task = make_task(options, seed=0)
    with pytest.raises(ValueError, match=r"1 of 64 prompts have more than 100 tokens .*set task.long_prompts=drop"):
        task.fit_prompts(qwen3, 100)
    task = make_task({**options, "long_prompts": "drop"}, seed=0)
    before = [task.train_item(i) for i in range(task.size)]
    task.fit_prompts(qwen3, 100)
    after = [task.train_item(i) for i in range(task.size)] + task.heldout_items(99)
    assert len(after) == 63 and all("8" != item.answer for item in after)
    assert {i.id for i in after} >= {i.id for i in before if i.answer != "8"}
    assert "1 of 64 prompts have more than 100 tokens" in task.notes[0]
    with pytest.raises(ValueError, match="no training prompt is left"):
        task.fit_prompts(qwen3, 1)
    with pytest.raises(ValueError, match=r"task\.long_prompts='cut' must be 'refuse' or 'drop'"):
        make_task({**options, "long_prompts": "cut"}, seed=0)


def test_graders_with_settings_and_sums(tmp_path):
    path = write_jsonl(tmp_path / "t.jsonl", [{"prompt": f"{i}?", "answer": i} for i in range(64)])
    task = make_task({"path": path, "grader": {"name": "numeric", "tolerance": 0.5}}, seed=0)
    item = task.train_item(0)
    assert task.grade([(item, f"{item.answer}.4")])[0].outcome == 1.0
    task = make_task({"path": path, "grader": ["exact", {"name": "regex", "pattern": r"\d+", "weight": 0.5}]}, seed=0)
    assert [g.reward for g in task.grade([(item, item.answer), (item, f"= {item.answer}")])] == [1.5, 0.5]
    with pytest.raises(
        ValueError, match=r"task\.grader: grader 'maths' does not exist: choose from exact, last_number"
    ):
        make_task({"path": path, "grader": "maths"}, seed=0)


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"problem": "p", "answer": "a"}, "problem", "answer"),
        ({"ID": 1, "Problem": "p", "Solution": "s", "Answer": 2}, "Problem", "Answer"),
        ({"question": "p", "answer": "a", "solution": "s"}, "question", "answer"),
        ({"prompt": [], "reward_model": {"ground_truth": "1"}, "answer": "no"}, "prompt", "reward_model.ground_truth"),
        ({"prompt": "p", "solution": "s"}, "prompt", "solution"),
    ],
)
def test_columns_are_found(row, prompt, answer):
    assert guess_column(row, PROMPT_COLUMNS, "prompt", "x") == prompt
    assert guess_column(row, ANSWER_COLUMNS, "answer", "x") == answer


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match=r"x.jsonl: no column looks like the answer \(tried reward_model.ground_truth"):
        guess_column({"prompt": "p", "reward_model": None}, ANSWER_COLUMNS, "answer", "x.jsonl")


@pytest.mark.parametrize(
    ("value", "text"),
    [(27, "27"), (27.0, "27"), (0.5, "0.5"), (None, ""), (["42"], "42"), ([1, 2], "1, 2"), ("033", "033"), ("", "")],
)
def test_gold_answers_as_text(value, text):
    assert gold_text(value) == text


def test_white_space_does_not_carry_a_problem_into_training(tmp_path):
    rows = trl_rows(64)
    own = [{**row, "prompt": row["prompt"].replace(" ", "  ") + "\n"} for row in rows[:7]]
    paths = {name: write_jsonl(tmp_path / f"{name}.jsonl", r) for name, r in (("path", rows), ("eval_path", own))}
    task = make_task(paths, seed=0)
    assert (task.size, len(task.heldout_items(99))) == (57, 7)
    assert not {i.id for i in task.heldout_items(99)} & {task.train_item(i).id for i in range(task.size)}


def own_answer(completions, answer, index):
    return [float(a == str(i)) for a, i in zip(answer, index, strict=True)]


def test_copies_that_are_kept_keep_their_own_columns(tmp_path):
    rows = [{"prompt": f"{i % 8}?", "answer": str(i), "index": i} for i in range(64)]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    grader = "python:tasks.test_data_copies.own_answer"
    task = make_task({"path": path, "merge_copies": False, "heldout": 0, "grader": grader}, seed=0)
    grades = task.grade([(task.train_item(i), "") for i in range(64)])
    assert [grade.reward for grade in grades] == [1.0] * 64


def fails_on_nothing(completions, **columns):
    return [1 / len(completion) for completion in completions]


def test_a_reward_function_is_not_asked_about_made_up_completions(tmp_path):
    path = write_jsonl(tmp_path / "t.jsonl", trl_rows(64))
    task = make_task({"path": path, "grader": ["math", "python:tasks.test_data_copies.fails_on_nothing"]}, seed=0)
    item = task.train_item(0)
    assert task.grade([(item, "none")])[0].reward == 0.25


@pytest.mark.parametrize(
    ("grader", "text"),
    [
        (5, r"task\.grader=5: Input should be a valid string or .* valid dictionary or"),
        ([], r"task\.grader: a weighted sum of rewards needs at least one grader"),
        ([{"name": "exact", "weight": "half"}], r"grader exact: weight='half' must be a finite number"),
        ([{"name": "exact", "weight": float("nan")}], r"grader exact: weight=nan must be a finite number"),
        ([{"name": "exact", "none": "zero"}], r"none='zero' must be 'skip' or 'unscored'"),
    ],
)
def test_graders_that_are_none(tmp_path, grader, text):
    with pytest.raises(ValueError, match=text):
        make_task({"path": write_jsonl(tmp_path / "t.jsonl", trl_rows(64)), "grader": grader}, seed=0)
