import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tokenizers import processors

from qae.rewards.function import RewardFunctionError
from qae.tasks import make_task
from qae.tasks.prompts import encode_prompt
from tiny_qwen3 import tiny_qwen3_tokenizer

ROWS = [{"question": f"What is {i} + 1?", "gold": i + 1, "topic": "even" if i % 2 else "odd"} for i in range(60)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def jsonl(tmp_path):
    return write_jsonl(tmp_path / "data.jsonl", ROWS)


def make(path, seed=0, **options):
    return make_task({"path": path, "prompt": "question", "answer": "gold", **options}, seed)


def test_jsonl_and_parquet_hold_the_same_items(jsonl, tmp_path):
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "data.parquet")
    tasks = [make(jsonl, level="topic"), make(str(tmp_path / "data.parquet"), level="topic")]
    lists = [[task.train_item(i) for i in range(task.size)] + task.heldout_items(99) for task in tasks]
    assert lists[0] == lists[1]
    assert {(item.prompt, item.answer, item.level) for item in lists[0]} == {
        (row["question"], str(row["gold"]), row["topic"]) for row in ROWS
    }


def test_each_pass_goes_through_all_rows_in_an_order_of_its_own(jsonl):
    task = make(jsonl, seed=3)
    passes = [[task.train_item(turn * task.size + i).id for i in range(task.size)] for turn in range(3)]
    assert set(passes[0]) == set(passes[1]) == set(passes[2])
    assert len(set(passes[0])) == task.size
    assert passes[0] != passes[1] != passes[2]
    again = make(jsonl, seed=3)
    assert [again.train_item(2 * task.size + i).id for i in reversed(range(task.size))] == passes[2][::-1]
    assert [make(jsonl, seed=4).train_item(i).id for i in range(task.size)] != passes[0]


def test_a_prompt_is_on_one_side_of_the_split_however_often_it_occurs(tmp_path):
    task = make(write_jsonl(tmp_path / "double.jsonl", ROWS + ROWS[::-1]), merge_copies=False)
    heldout = task.heldout_items(1000)
    assert len({item.id for item in heldout}) == len(heldout)
    assert not {item.id for item in heldout} & {task.train_item(i).id for i in range(task.size)}
    assert task.size + 2 * len(heldout) == 2 * len(ROWS)


def test_the_heldout_part_does_not_depend_on_order_or_seed(jsonl, tmp_path):
    turned = write_jsonl(tmp_path / "turned.jsonl", ROWS[::-1])
    assert make(jsonl, seed=1).heldout_items(99) == make(turned, seed=2).heldout_items(99)
    assert make(jsonl).heldout_items(2) == make(jsonl).heldout_items(99)[:2]


def test_an_evaluation_file_is_held_out_whole_and_never_trained_on(jsonl, tmp_path):
    own = write_jsonl(tmp_path / "test.jsonl", ROWS[:7])
    task = make(jsonl, eval_path=own)
    assert {item.prompt for item in task.heldout_items(99)} == {row["question"] for row in ROWS[:7]}
    assert {task.train_item(i).prompt for i in range(task.size)} == {row["question"] for row in ROWS[7:]}


def test_no_heldout_part_if_none_is_wanted(jsonl):
    task = make(jsonl, heldout=0)
    assert (task.size, task.heldout_items(5)) == (len(ROWS), [])


def test_graders_by_name(jsonl):
    item = make(jsonl).train_item(0)
    completions = [item.answer, f"It is {item.answer}.", "nothing"]
    pairs = [(item, completion) for completion in completions]
    assert [g.outcome for g in make(jsonl, grader="exact").grade(pairs)] == [1.0, 0.0, 0.0]
    assert [g.outcome for g in make(jsonl).grade(pairs)] == [1.0, 1.0, 0.0]
    assert [g.outcome for g in make(jsonl, grader="last_number").grade(pairs)] == [1.0, 1.0, 0.0]


def test_a_reward_function_of_the_user_sees_the_row(jsonl, tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def by_topic(completions, answer, topic, prompts):\n"
        "    return [None if t == 'odd' else float(c == a and a in p or c in p)"
        " for c, a, t, p in zip(completions, answer, topic, prompts)]\n"
        "def broken(completion, answer):\n"
        "    raise KeyError('speed')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = make(jsonl, grader="python:my_rewards.by_topic")
    items = [task.train_item(i) for i in range(task.size)]
    for item, grade in zip(items, task.grade([(item, "What") for item in items]), strict=True):
        assert grade.reward == (None if int(item.answer) % 2 else 1.0)
    broken = make(jsonl, grader="python:my_rewards.broken")
    with pytest.raises(RewardFunctionError, match=r"python:my_rewards.broken failed on row 0 .*KeyError: 'speed'"):
        broken.grade([(items[0], "4")])
    with pytest.raises(ValueError, match=r"my_rewards' has no 'by_topics'; functions: broken, by_topic"):
        make(jsonl, grader="python:my_rewards.by_topics")


def test_golds_that_cannot_be_used_are_counted_and_never_rewarded(tmp_path):
    rows = [{"question": f"{i}?", "gold": gold} for i, gold in enumerate(["", None, "see solution", "4"] * 5)]
    task = make(write_jsonl(tmp_path / "golds.jsonl", rows), grader="last_number", heldout=0)
    grades = task.grade([(task.train_item(i), "It is 4") for i in range(task.size)])
    assert sorted(grade.reason for grade in grades) == ["correct"] * 5 + ["unusable_gold"] * 15
    assert all(grade.reward is None for grade in grades if grade.reason == "unusable_gold")
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"question": str(i), "gold": "see solution"} for i in range(20)])
    with pytest.raises(ValueError, match=r"last_number can use none of the 20 answers \(first: 'see solution'\)"):
        make(bad, grader="last_number")


def test_text_goes_through_the_chat_template_with_system_prompt_and_switches(jsonl, qwen3):
    options = {"system": "Be brief.", "suffix": " Use \\boxed{}.", "chat_template_kwargs": {"enable_thinking": False}}
    task = make(jsonl, **options)
    item = task.train_item(0)
    assert qwen3.decode(task.encode(item, qwen3)) == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{item.prompt}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert item.prompt.endswith("? Use \\boxed{}.")
    assert "<think>" not in qwen3.decode(make(jsonl).encode(item, qwen3))


def test_raw_text_on_request(jsonl, qwen3):
    item = make(jsonl).train_item(0)
    assert qwen3.decode(make(jsonl, chat=False).encode(item, qwen3)) == item.prompt


def test_messages_keep_their_own_system_prompt(tmp_path, qwen3):
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "1+1?"}]
    rows = [{"messages": messages, "reward_model": {"ground_truth": "2"}}] * 3
    options = {"prompt": "messages", "answer": "reward_model.ground_truth", "system": "Other.", "heldout": 0}
    task = make_task({"path": write_jsonl(tmp_path / "m.jsonl", rows), **options}, seed=0)
    item = task.train_item(0)
    assert item.prompt == tuple(messages)
    assert item.answer == "2"
    text = qwen3.decode(task.encode(item, qwen3))
    assert text == "<|im_start|>system\nOwn.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"


def test_messages_need_a_chat_template():
    plain = tiny_qwen3_tokenizer()
    plain.chat_template = None
    with pytest.raises(ValueError, match="tokenizer has no chat template; use a policy that was made for chat"):
        encode_prompt(({"role": "user", "content": "hi"},), plain)


def test_raw_text_never_gets_an_eos_behind_it(qwen3):
    closing = tiny_qwen3_tokenizer()
    closing.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", closing.eos_token_id)],
    )
    assert encode_prompt("4 + 5", closing) == [0, *encode_prompt("4 + 5", qwen3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows in it"),
        ("\n \n", "no rows in it"),
        ('{"question": "a", "gold": 1}\n{oops\n', r"line 2: not JSON .*each line must be one object"),
        ('["a"]\n', "line 1: list instead of an object"),
        ('{"qestion": "a", "gold": 1}\n', r"has no column 'question', did you mean 'qestion'\?; its columns are qest"),
        ('{"question": "a"}\n', r"has no column 'gold'; its columns are question"),
        ('{"question": "", "gold": 1}\n', r"row 1: question must be text or a list of messages .*got ''"),
        ('{"question": [{"role": "user"}], "gold": 1}\n', r"row 1: question must be text or a list of messages"),
        ('{"question": 7, "gold": 1}\n', r"row 1: question must be text or a list of messages .*got '7'"),
        ('{"question": "a", "gold": 1}\n', r"task.heldout=0.1 of 1 rows holds none out; raise it, give task.eval"),
        ('{"question": "a", "gold": 1}\n{"question": "b"}\n', "broken.jsonl, row 2 has no column 'gold'"),
        ('{"question": "a", "gold": 1, "gold": 2}\n', "line 1: the column gold stands there twice; keep one"),
        ('{"question": "a", "gold": ' + "1" * 5_000 + "}\n", "line 1: not JSON .*4300 digits"),
        ("[" * 100_000 + "\n", "line 1: not JSON .*recursion"),
        ("[{\n", "line 1: not JSON"),
    ],
)
def test_broken_files_are_named_with_the_place(tmp_path, text, message):
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        make(str(path))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.jsonl", r"task.path=nowhere.jsonl: no such file \(looked for /.*nowhere.jsonl\)"),
        ("./nowhere", r"no such file \(looked for /.*nowhere\)"),
        ("data.xlsx", r"cannot read .xlsx files; give .jsonl or .parquet"),
    ],
)
def test_paths_that_are_no_data(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.xlsx").write_text("x")
    with pytest.raises(ValueError, match=message):
        make(path)


def test_wrong_options_say_what_would_be_right(jsonl):
    with pytest.raises(ValueError, match=r"task.grader: grader 'mth' does not exist: choose from exact, last_number"):
        make(jsonl, grader="mth")
    with pytest.raises(ValueError, match=r"task.anser: no option of task data, did you mean 'answer'\?"):
        make(jsonl, anser="gold")
    with pytest.raises(ValueError, match=r"all 60 rows are held out; lower task.heldout"):
        make(jsonl, heldout=1.0)


def test_a_hub_id_is_read_through_datasets(monkeypatch):
    asked = []

    def load_dataset(path, subset, split):
        asked.append((path, subset, split))
        return [{**row, "question": f"{split}: {row['question']}"} for row in ROWS]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    task = make("openai/gsm8k", subset="main", eval_path="openai/gsm8k")
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert (task.size, len(task.heldout_items(999))) == (60, 60)

    def fail(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
    with pytest.raises(ValueError, match=r"openai/gsm8k: no such file here, and the Hub did not give it .*no route"):
        make("openai/gsm8k")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"to read it from the Hub: pip install 'qae\[hub\]'"):
        make("openai/gsm8k")


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
        b"\r\n".join(json.dumps(row).encode() for row in ROWS) + b"\r\n",
        b"\n\n".join(json.dumps({**row, "long": "x" * 100_000}).encode() for row in ROWS),
    ],
    ids=["byte order mark", "line ends of Windows", "long lines and empty ones"],
)
def test_files_as_other_programs_write_them(tmp_path, jsonl, content):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    assert make(str(path)).heldout_items(99) == make(jsonl).heldout_items(99)


def test_text_that_is_not_utf8_is_named_with_the_place(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(json.dumps(ROWS[0]).encode() + b'\n{"question": "\xe9", "gold": 1}\n')
    with pytest.raises(ValueError, match=r"latin.jsonl, line 2: not UTF-8 .*; save the file as UTF-8"):
        make(str(path))


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing more", b"PAR1" + bytes(64) + b"PAR1"])
def test_a_parquet_file_that_is_none(tmp_path, content):
    path = tmp_path / "broken.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.parquet: not a Parquet file that can be read"):
        make(str(path))


def test_a_parquet_column_twice(tmp_path):
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["question", "gold", "gold"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice.parquet: the column gold stands there twice"):
        make(str(tmp_path / "twice.parquet"))


def test_one_stop_string_is_not_its_letters(jsonl):
    assert make(jsonl, stop="Question:").stop == ("Question:",)
    assert make(jsonl, stop=["a", "b"]).stop == ("a", "b")
    with pytest.raises(ValueError, match=r"stop=\[''\] must be texts of at least one character"):
        make(jsonl, stop="")


def test_options_of_another_type_are_named(jsonl):
    with pytest.raises(ValueError, match=r"task.heldout='many': Input should be a valid number"):
        make(jsonl, heldout="many")
    assert make(jsonl, heldout="0.5").size < 45


@pytest.mark.parametrize("heldout", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none(jsonl, heldout):
    with pytest.raises(ValueError, match=r"task.heldout=.* must lie between 0 .hold nothing out. and 1"):
        make(jsonl, heldout=heldout)


def test_a_suffix_moves_no_problem_across_the_split(jsonl):
    ids = [[item.id for item in make(jsonl, suffix=suffix).heldout_items(99)] for suffix in ("", " Be brief.")]
    assert ids[0] == ids[1]
    assert make(jsonl, suffix=" Be brief.").train_item(0).prompt.endswith("? Be brief.")
