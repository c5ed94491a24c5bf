import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from qae.evaluation.benchmarks import BENCHMARKS, BOXED_SUFFIX, load_benchmark, load_data, problems_of
from qae.evaluation.command import evaluate_model
from qae.evaluation.samples import EvalSettings

# made up, in the shapes of the published sets
PROBLEMS = [(f"Find the remainder when {n}^3 is divided by 1000.", n**3 % 1000) for n in range(11, 41)]


def hub_shape(p, a, i):
    return {"id": i, "problem": p, "solution": f"It is $\\boxed{{{a}}}$.", "answer": str(a), "year": "2024"}


def capital_shape(p, a, i):
    return {"ID": f"2024-I-{i}", "Problem": p, "Solution": "By hand.", "Answer": a}


def question_shape(p, a, i):
    return {"question": p, "answer": str(a).zfill(3)}


def float_shape(p, a, i):
    return {"id": i, "problem": p, "answer": float(a), "url": "none"}


def solution_shape(p, a, i):
    return {"id": i, "problem": p, "solution": rf"\boxed{{{a}}}", "url": "none"}


def verl_shape(p, a, i):
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve.\n\n{p}\n\nRemember Answer:"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(a), "style": "rule"},
        "extra_info": {"index": i},
    }


SHAPES = [hub_shape, capital_shape, question_shape, float_shape, solution_shape, verl_shape]


def write(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_column_variant_gives_the_same_problems(shape, ending, tmp_path):
    from qae.rewards import MathGrader

    file = write(tmp_path / f"aime.{ending}", [shape(p, a, i) for i, (p, a) in enumerate(PROBLEMS)])
    found = load_benchmark(f"aime24={file}")
    assert len(found.items) == 30
    assert found.notes == ()
    assert found.suffix == BOXED_SUFFIX
    grades = MathGrader().grade(
        [(rf"\boxed{{{a}}}", i.answer) for (_, a), i in zip(PROBLEMS, found.items, strict=True)]
    )
    assert {grade.outcome for grade in grades} == {1.0}
    text = found.items[0].prompt
    assert PROBLEMS[0][0] in (text if isinstance(text, str) else text[0]["content"])


@pytest.mark.parametrize("shape", SHAPES)
def test_960_rows_are_30_problems(shape, tmp_path):
    rows = [shape(p, a, i) for i, (p, a) in enumerate(PROBLEMS * 32)]
    found = load_benchmark(f"aime24={write(tmp_path / 'aime.parquet', rows)}")
    assert len(rows) == 960
    assert len(found.items) == 30
    assert found.notes == ("960 rows are 30 problems: 930 copies left out",)


def test_another_number_of_problems_is_said(tmp_path):
    file = write(tmp_path / "amc.jsonl", [hub_shape(p, a, i) for i, (p, a) in enumerate(PROBLEMS)])
    assert load_benchmark(f"amc23={file}").notes == ("amc23 has 40 problems, this copy 30",)


def test_contradicting_copies_are_dropped_with_a_count():
    rows = [{"problem": "a", "answer": 1}, {"problem": "b", "answer": "1/2"}, {"problem": "b ", "answer": 0.5}]
    rows += [{"problem": "a", "answer": 2}]
    found = problems_of(rows, "x", where="x.jsonl")
    assert [(i.prompt, i.answer) for i in found.items] == [("b", "1/2")]
    assert found.notes[0] == (
        "4 rows are 1 problems: 1 copies left out, 1 problems (2 rows) dropped because their copies have different "
        "answers"
    )


def test_named_columns_and_levels(tmp_path):
    rows = [{"q": "1+1", "gold": {"value": 2}, "Level": 3, "answer": "not this"}]
    found = load_data(str(write(tmp_path / "mine.jsonl", rows)), prompt="q", answer="gold.value")
    assert (found.name, found.items[0].answer, found.items[0].level, found.suffix) == ("mine", "2", "3", "")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: load_benchmark("aime23"), "benchmark 'aime23' is unknown: choose from aime24, aime25, amc23"),
        (lambda f: load_data(str(f)), "no column looks like the prompt .*its columns are text, answer"),
        (lambda f: load_data(str(f), prompt="txt"), "no column 'txt', did you mean 'text'"),
        (lambda f: load_data(str(f), prompt="answer"), "row 1: answer must be text or a list of messages"),
    ],
)
def test_errors(call, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        call(write(tmp_path / "x.jsonl", [{"text": "1+1", "answer": 2}]))


def test_benchmark_table_names_where_each_lies():
    assert {name: b.problems for name, b in BENCHMARKS.items()} == {"aime24": 30, "aime25": 30, "amc23": 40}


def test_a_hub_id_with_its_subset_and_split(monkeypatch, tmp_path):
    asked = []

    def load_dataset(path, subset, split):
        asked.append((path, subset, split))
        return [{"question": "2*3+4?", "answer": "So\n#### 10"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    settings = EvalSettings(samples=1, max_tokens=4)
    (summary,), _ = evaluate_model(
        "tiny", settings, data=["openai/gsm8k"], subset="main", split="train", device="cpu", out=tmp_path
    )
    assert asked == [("openai/gsm8k", "main", "train")]
    assert (summary.name, len(summary.problems)) == ("gsm8k", 1)
