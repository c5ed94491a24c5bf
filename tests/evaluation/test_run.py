import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fake_server import FakeServer, serve
from qae.evaluation.benchmarks import problems_of
from qae.evaluation.command import compare_directories, evaluate_model, find_checkpoint
from qae.evaluation.endpoint import EndpointSampler
from qae.evaluation.run import evaluate
from qae.evaluation.samples import EvalSettings, Sample, SampleFile
from qae.evaluation.summary import compare, read_summary, table_markdown
from qae.policies import PolicyError, load_policy, save_policy
from qae.records import read_metrics, read_rollouts, rollout_files

ROWS = [{"problem": f"{a}+{b}=", "answer": a + b, "level": f"{a}"} for a in range(5) for b in range(4)]
SETTINGS = EvalSettings(samples=4, grader="exact", max_tokens=4)


class Fixed:
    """A sampler whose completions are given by (prompt, sample number)."""

    def __init__(self, answer, name="fixed"):
        self.answer, self.name, self.about, self.drawn = answer, name, {}, []

    def sample(self, requests, settings, suffix):
        for request in requests:
            self.drawn.append((request.item.id, request.sample))
            text = self.answer(request.item, request.sample)
            yield [Sample(request.item.id, request.sample, text, len(text), text == "", 0.5)]


def sets(rows=ROWS, name="sums"):
    return [problems_of(rows, name, where="rows")]


def right_below(count):
    return lambda item, sample: item.answer if sample < count else "wrong"


def test_numbers_and_records(tmp_path):
    (summary,) = evaluate(sets(), Fixed(right_below(1)), SETTINGS, tmp_path, step=7)
    assert summary.pass_at[1].mean == 0.25
    assert summary.pass_at[2].mean == 0.5
    assert summary.pass_at[4].mean == 1.0
    assert summary.maj_at[4].mean == 0.0
    assert summary.by_level == {str(a): 0.25 for a in range(5)}
    assert read_summary(tmp_path / "sums") == summary
    (line,) = read_metrics(tmp_path / "sums")
    assert (line["step"], line["eval/pass@1"], line["eval/pass@4"], line["eval/problems"]) == (7, 0.25, 1.0, 20)
    assert line["eval/pass@1/0"] == 0.25
    ((step, file),) = rollout_files(tmp_path / "sums")
    rollouts = list(read_rollouts(file))
    assert step == 7 and len(rollouts) == 80
    assert sum(r.outcome for r in rollouts) == 20
    assert {r.regime for r in rollouts} == {"hard"}
    assert len({r.group for r in rollouts}) == 20
    table = (tmp_path / "table.md").read_text()
    assert "| fixed | 25.00 / 100.00 (k=4) |" in table
    assert "| fixed | sums | 20 x 4 | 25.00 [25.00, 25.00] |" in table


def test_the_report_reads_it(tmp_path):
    from qae.report import write_report

    evaluate(sets(), Fixed(right_below(2)), SETTINGS, tmp_path)
    page = write_report([tmp_path / "sums"], tmp_path / "report.html")
    assert "pass@1" in page.read_text(encoding="utf-8")


def test_it_goes_on_where_it_stopped(tmp_path):
    class Dies(Fixed):
        def sample(self, requests, settings, suffix):
            for i, some in enumerate(super().sample(requests, settings, suffix)):
                if i == 31:
                    raise KeyboardInterrupt
                yield some

    first = Dies(right_below(1))
    with pytest.raises(KeyboardInterrupt):
        evaluate(sets(), first, SETTINGS, tmp_path)
    path = tmp_path / "sums" / "samples.jsonl"
    path.write_bytes(path.read_bytes() + b'{"problem": "cut of')
    second = Fixed(right_below(1))
    (resumed,) = evaluate(sets(), second, SETTINGS, tmp_path)
    assert len(second.drawn) == 80 - 31
    assert not set(second.drawn) & set(first.drawn[:31])
    (whole,) = evaluate(sets(), Fixed(right_below(1)), SETTINGS, tmp_path / "again")
    assert resumed == whole
    third = Fixed(right_below(1))
    evaluate(sets(), third, EvalSettings(samples=6, grader="exact", max_tokens=4), tmp_path)
    assert len(third.drawn) == 40


def test_other_settings_are_refused_in_the_same_directory(tmp_path):
    evaluate(sets(), Fixed(right_below(1)), SETTINGS, tmp_path)
    with pytest.raises(ValueError, match=r"drawn differently .temperature: 0.7 then, 1.0 now.; choose another"):
        evaluate(
            sets(),
            Fixed(right_below(1)),
            EvalSettings(samples=4, temperature=1.0, grader="exact", max_tokens=4),
            tmp_path,
        )
    with pytest.raises(ValueError, match="model: 'fixed' then, 'other' now"):
        evaluate(sets(), Fixed(right_below(1), "other"), SETTINGS, tmp_path)


def test_unusable_golds_and_truncation_are_counted(tmp_path):
    rows = [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": ""}]
    settings = EvalSettings(samples=2, grader="math")
    answer = lambda item, sample: r"\boxed{1}" if sample else ""  # noqa: E731
    (summary,) = evaluate(sets(rows), Fixed(answer), settings, tmp_path)
    assert (len(summary.problems), summary.unscored) == (1, 1)
    assert summary.pass_at[1].mean == 0.5
    assert summary.truncated_frac == 0.5
    assert summary.unparseable_frac == 0.25
    assert "1 problems left out, nothing of them could be scored (a gold answer" in table_markdown([summary])


def test_compare(tmp_path):
    (a,) = evaluate(sets(), Fixed(right_below(1), "a"), SETTINGS, tmp_path / "a")
    better = lambda item, sample: item.answer if sample < 2 and item.level != "0" else "wrong"  # noqa: E731
    (b,) = evaluate(sets(), Fixed(better, "b"), SETTINGS, tmp_path / "b")
    difference = compare(a, b)[1]
    assert (difference.won, difference.lost, difference.tied) == (16, 4, 0)
    assert difference.mean == pytest.approx(16 / 20 * 0.25 - 4 / 20 * 0.25)
    text = compare_directories(tmp_path / "a", tmp_path / "b")
    assert "b minus a on sums, 20 problems" in text and "| 16 / 4 / 0 |" in text
    assert compare_directories(tmp_path / "a" / "sums", tmp_path / "b") == text
    (c,) = evaluate(sets(ROWS[:7]), Fixed(right_below(1), "c"), SETTINGS, tmp_path / "c")
    with pytest.raises(ValueError, match="on 20 problems of sums, c on 7 of sums, and only 7 are the same"):
        compare(a, c)
    evaluate(sets(name="others"), Fixed(right_below(1), "d"), SETTINGS, tmp_path / "d")
    with pytest.raises(ValueError, match="no set in common"):
        compare_directories(tmp_path / "a", tmp_path / "d")


def test_what_is_no_evaluation_is_said_to_be_none(tmp_path):
    with pytest.raises(ValueError, match=r"none does not exist; give the directory that `qae eval` wrote"):
        compare_directories(tmp_path / "none", tmp_path)
    with pytest.raises(ValueError, match=r" has no finished evaluation \(no summary.json\); give the directory"):
        compare_directories(tmp_path, tmp_path / "none")


def test_a_model_that_is_not_there_is_called_as_it_was_typed(tmp_path, monkeypatch):
    def offline(self, path, **options):
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    (tmp_path / "runs").mkdir()
    with pytest.raises(PolicyError, match=r"^MODEL=runs/nope: no such directory or run \(looked for /.*/runs/nope\)"):
        evaluate_model("runs/nope", EvalSettings(), data=["data.jsonl"])
    with pytest.raises(PolicyError, match=r"^MODEL=run/nope: no directory or run /.*/run/nope, not in the Hub's"):
        evaluate_model("run/nope", EvalSettings(), data=["data.jsonl"])


def test_the_endpoint_engine_resumes_without_repeating_a_request(tmp_path):
    settings = EvalSettings(samples=4, grader="exact", max_tokens=4)
    server = FakeServer(answers=30)
    with serve(server) as url:
        sampler = EndpointSampler(url, "adder", 4, backoff_seconds=0.01)
        with pytest.raises(RuntimeError, match="run the same command again"):
            evaluate(sets(), sampler, settings, tmp_path)
        server.answers_left = None
        before = len(server.requests)
        (summary,) = evaluate(sets(), sampler, settings, tmp_path)
        asked = len(server.requests) - before
    assert asked == 80 - 30
    assert 0 < summary.pass_at[1].mean < 1
    assert summary.truncated_frac == pytest.approx(4 / 20)


@pytest.mark.slow
def test_killed_half_way(tmp_path):
    """kill -9 of the process that evaluates, then the same command again."""
    server = FakeServer()
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with serve(server) as url:
        code = (
            "import sys; from pathlib import Path\n"
            "from qae.evaluation.command import evaluate_model\n"
            "from qae.evaluation.samples import EvalSettings\n"
            "evaluate_model('adder', EvalSettings(samples=10, grader='exact'), data=[sys.argv[2]],\n"
            "               endpoint=sys.argv[1], concurrency=2, out=Path(sys.argv[3]))\n"
        )
        command = [sys.executable, "-c", code, url, str(data), str(tmp_path / "out")]
        process = subprocess.Popen(command)
        while len(server.requests) < 60:
            time.sleep(0.01)
            assert process.poll() is None
        process.kill()
        process.wait()
        kept = len((tmp_path / "out" / "sums" / "samples.jsonl").read_bytes().splitlines())
        before = len(server.requests)
        assert 0 < kept <= before < 200
        subprocess.run(command, check=True, timeout=120)
        assert len(server.requests) - before in range(200 - kept, 203 - kept)
    assert read_summary(tmp_path / "out" / "sums").samples == 10


def test_the_built_in_engine_on_the_shipped_policy(tmp_path):
    rows = [{"prompt": f"{a}*{b}+{c}?", "answer": str(a * b + c)} for a, b, c in [(2, 3, 4), (5, 6, 7), (9, 9, 9)]]
    data = tmp_path / "products.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = EvalSettings(samples=4, grader={"name": "exact", "extract": ["last_number"]}, temperature=1.0)
    (first,), out = evaluate_model("tiny", settings, data=[str(data)], device="cpu", out=tmp_path / "out")
    assert first.mean_tokens > 3 and first.entropy_nats > 0
    (second,), _ = evaluate_model("tiny", settings, data=[str(data)], device="cpu", out=tmp_path / "again")
    texts = [(directory / "products" / "samples.jsonl").read_text() for directory in (out, tmp_path / "again")]
    assert texts[0] == texts[1] and first == second
    with pytest.raises(ValueError, match=r"max_tokens=500 and the longest prompt .* set max_tokens=1\d\d or less"):
        evaluate_model("tiny", EvalSettings(samples=1, max_tokens=500), data=[str(data)], out=tmp_path / "long")


def test_checkpoints_of_a_run(tmp_path):
    for step in ("000025", "000100"):
        (tmp_path / "run" / "checkpoints" / step).mkdir(parents=True)
    assert find_checkpoint(str(tmp_path / "run")) == (str(tmp_path / "run" / "checkpoints" / "000100"), 100)
    assert find_checkpoint(str(tmp_path / "run" / "checkpoints" / "000025"))[1] == 25
    assert find_checkpoint("tiny") == ("tiny", 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"samples": 0}, "samples=0 must be at least 1"),
        ({"temperature": -1}, "temperature=-1 must be a finite number, not negative"),
        ({"temperature": float("nan")}, "temperature=nan must be a finite number"),
        ({"temperature": float("inf")}, "temperature=inf must be a finite number"),
        ({"top_p": float("nan")}, r"top_p=nan must lie in \(0, 1\]"),
        ({"stop": ("a", "")}, "must be texts of at least one character"),
        ({"top_p": 0}, r"top_p=0 must lie in \(0, 1\]"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"temperature": 0.0}, "draws the same completion 32 times; set samples=1"),
    ],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(ValueError, match=text):
        EvalSettings(**settings)


def test_nothing_to_evaluate_on():
    with pytest.raises(ValueError, match="nothing to evaluate on: give a benchmark"):
        evaluate_model("tiny", EvalSettings())


def test_sets_need_names_of_their_own(tmp_path):
    with pytest.raises(ValueError, match="names of their own, got sums, sums"):
        evaluate([*sets(), *sets()], Fixed(right_below(1)), SETTINGS, tmp_path)


def test_a_sample_file_keeps_odd_text(tmp_path):
    file = SampleFile(tmp_path, {"model": "m"})
    odd = Sample("p", 0, "a\nb\x00\udcff\u2028", 3, False)
    file.append([odd])
    assert file.read() == {("p", 0): odd}


def by_columns(completions, answer, topic):
    return [float(c == str(a) and t == "sums") for c, a, t in zip(completions, answer, topic, strict=True)]


def test_a_reward_function_sees_the_columns_and_casts_no_votes(tmp_path):
    rows = [{**row, "topic": "sums"} for row in ROWS]
    settings = EvalSettings(samples=4, grader="python:evaluation.test_run.by_columns")
    (summary,) = evaluate(sets(rows), Fixed(right_below(2)), settings, tmp_path)
    assert summary.pass_at[1].mean == 0.5
    assert summary.maj_at == {}, "what is right is known, what was answered is not"
    assert "| 20 x 4 | 50.00 [50.00, 50.00] | 100.00 [100.00, 100.00] (k=4) | - |" in table_markdown([summary])


def test_votes_are_counted_by_answer_and_not_by_wording(tmp_path):
    settings = EvalSettings(samples=4, grader="last_number")
    answer = lambda item, sample: item.answer if sample == 0 else f"sample {sample}: {10**6}"  # noqa: E731
    (summary,) = evaluate(sets(), Fixed(answer), settings, tmp_path)
    assert summary.maj_at[4].mean == 0.0


def test_samples_of_another_checkpoint_are_never_taken_for_this_one_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "products.jsonl"
    data.write_text('{"prompt": "2*3+4?", "answer": "10"}\n')
    policy = load_policy("tiny", device="cpu")
    settings = EvalSettings(samples=2, max_tokens=4)
    save_policy(policy, Path("run/checkpoints/000001"))
    _, first = evaluate_model("run", settings, data=[str(data)], device="cpu")
    with torch.no_grad():
        next(policy.model.parameters()).add_(0.01)
    save_policy(policy, Path("run/checkpoints/000002"))
    (summary,), second = evaluate_model("run", settings, data=[str(data)], device="cpu")
    assert [str(path) for path in (first, second)] == ["evals/run-checkpoints-000001", "evals/run-checkpoints-000002"]
    assert summary.model == "run (step 2)"
    evaluate_model("run/checkpoints/000002", settings, data=[str(data)], device="cpu", out=tmp_path / "own")
    save_policy(load_policy("tiny", device="cpu"), Path("run/checkpoints/000002"))
    with pytest.raises(ValueError, match=r"samples that were drawn differently .weights: "):
        evaluate_model("run/checkpoints/000002", settings, data=[str(data)], device="cpu", out=tmp_path / "own")


def test_a_set_without_a_usable_gold_is_refused_before_anything_is_drawn(tmp_path):
    rows = [{"problem": f"{i}?", "answer": {"value": i}} for i in range(3)]
    sampler = Fixed(right_below(1))
    with pytest.raises(ValueError, match=r"sums: the grader math can use none of the 3 gold answers .first: "):
        evaluate(sets(rows), sampler, EvalSettings(samples=2), tmp_path)
    assert sampler.drawn == []


def none_for_the_first(completions, answer):
    return [None if c == "first" else float(c == str(a)) for c, a in zip(completions, answer, strict=True)]


def test_completions_without_a_reward_are_counted(tmp_path):
    answer = lambda item, sample: "first" if sample == 0 else item.answer  # noqa: E731
    settings = EvalSettings(samples=4, grader="python:evaluation.test_run.none_for_the_first")
    (summary,) = evaluate(sets(), Fixed(answer), settings, tmp_path)
    assert (summary.pass_at[1].mean, summary.unscored_samples, max(summary.pass_at)) == (1.0, 20, 3)
    assert "20 completions of the other problems could not be scored" in table_markdown([summary])


def test_where_to_write_must_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="sums cannot be made, a file is in its way; give another"):
        evaluate(sets(), Fixed(right_below(1)), SETTINGS, tmp_path / "file")
