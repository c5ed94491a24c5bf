"""The command: what it prints, its exit codes, and that an error is one line with the next step."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

import qae
import qae.audit
import qae.report
from fake_events import fake_run
from fake_runs import fake_run as recorded_run
from qae import cli
from qae.audit import measure
from qae.evaluation import command
from qae.evaluation.samples import EvalSettings
from qae.records import read_metrics
from qae.settings import as_yaml, by_section, read_arguments
from qae.trainer import loop
from qae.trainer.config import TrainConfig, known_keys
from qae.trainer.keys import ConfigError
from qae.trainer.plan import Shape, describe_plan, memory_bytes, zero_rows

QAE = [sys.executable, "-c", "from qae.cli import main; main()"]
SMALL = [
    "rollout.prompts=2", "rollout.group_size=2", "rollout.max_tokens=8", "update.minibatches=1", "eval.problems=2",
    "eval.samples=2", "algorithm.dynamic_sampling.enabled=false",
]  # fmt: skip
ORIGINAL_EVALUATE = command.evaluate_model
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["qae", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capfd.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A trainer that only tells its events, and a report that only writes its name."""
    called: dict[str, Any] = {}

    def train(config: TrainConfig, *, run_dir: Path | None, resume: Path | None, observer: Any) -> Path:
        directory = resume or run_dir or tmp_path / "run"
        called.update(config=config, run_dir=directory, resume=resume, observer=observer)
        for name, data in fake_run(config, directory):
            observer.event(name, **data)
            if called.get("raises") is not None and name == "step" and data["metrics"]["step"] == 2:
                raise called["raises"]
        return directory

    def write_report(run_dirs: list[Path], out: Path, *, title: str | None = None) -> Path:
        called["report"] = (run_dirs, out, title)
        if called.get("report_raises") is not None:
            raise called["report_raises"]
        return out

    monkeypatch.setattr(loop, "train", train)

    def audit_paths(paths: list[Path]) -> dict[str, Any]:
        if called.get("audit_raises") is not None:
            raise called["audit_raises"]
        return {"paths": paths}

    def save_audit(record: dict[str, Any], run_dir: Path) -> None:
        called["audit"] = (record, run_dir)

    monkeypatch.setattr(qae.report, "write_report", write_report, raising=False)
    monkeypatch.setattr(qae.audit, "audit_paths", audit_paths)
    monkeypatch.setattr(qae.audit, "save_audit", save_audit)
    return called


def one_red_line(code: int, err: str) -> str:
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert "Traceback" not in err
    return err.strip().removeprefix("error: ")


def test_help_lists_the_commands(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name in ("train", "eval", "recipes", "fetch", "audit", "report"):
        assert re.search(rf"\b{name}\b", out)


def test_version(run: Run) -> None:
    assert run("--version")[:2] == (0, f"qae {qae.__version__}\n")


def test_train_help_has_every_key_with_default_and_meaning(run: Run) -> None:
    code, out, _ = run("train", "--help")
    assert code == 0
    lines = out.splitlines()
    for key, meaning in known_keys().items():
        at = next(i for i, line in enumerate(lines) if line.split("=")[0].strip() == key)
        assert "=" in lines[at] or key.endswith("*")
        assert " ".join(" ".join(lines[at + 1 : at + 5]).split()).startswith(" ".join(meaning.split())), key
    assert "  algorithm.loss.clip_high=0.28  (preset dapo)" in out
    assert "--resume" in out and "--dry-run" in out
    assert "algorithm.preset=rloo" in out and "tau_negative=1.05" in out


def test_help_names_choices_that_the_meaning_does_not() -> None:
    entries = dict(by_section(known_keys()))
    assert list(entries)[:2] == ["run", "policy"]
    assert "track" in entries["run"]


def test_recipes_have_one_line_each(run: Run) -> None:
    code, out, _ = run("recipes")
    assert code == 0
    tiny = next(line for line in out.splitlines() if line.startswith("tiny "))
    assert "0.6M-parameter" in tiny


def test_a_recipe_can_be_printed(run: Run) -> None:
    code, out, _ = run("recipes", "tiny")
    assert code == 0 and yaml.safe_load(out)["name"] == "tiny"
    assert one_red_line(*run("recipes", "tinny")[::2]) == "no recipe or file 'tinny'; did you mean tiny?"


def test_a_wrong_key_is_one_red_line(run: Run) -> None:
    assert one_red_line(*run("train", "stpes=3")[::2]) == "unknown key 'stpes'; did you mean 'steps'?"


def test_k_in_per_cent_is_refused(run: Run) -> None:
    assert one_red_line(*run("train", "tiny", "algorithm.advantage.k=40")[::2]).endswith("40 per cent is k=0.4")


def test_a_missing_model_is_one_red_line(run: Run, tmp_path: Path) -> None:
    line = one_red_line(*run("train", "policy=./nowhere", "--dry-run")[::2])
    assert line.startswith("policy.path=./nowhere: no such directory") and "give tiny, smollm2" in line
    line = one_red_line(*run("train", "policy=./nowhere", f"--run-dir={tmp_path / 'run'}")[::2])
    assert line.startswith("policy.path=./nowhere: no such directory")


def test_a_key_without_a_value_says_so(run: Run) -> None:
    assert one_red_line(*run("train", "steps")[::2]) == "'steps' is a key: give it a value, steps=VALUE"
    assert one_red_line(*run("train", "tiny", "steps")[::2]) == (
        "'steps' is not of the form key.path=value; the recipe comes first, and once"
    )


def test_only_smollm2_can_be_fetched(run: Run) -> None:
    assert one_red_line(*run("fetch", "gpt")[::2]) == "nothing called 'gpt' to fetch; try: qae fetch smollm2"


def test_a_red_line_is_never_wrapped_and_never_markup(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("train", "x" * 150 + "[bold]=1")
    assert code == 2 and err.count("\n") == 1 and "[bold]" in err


@pytest.mark.parametrize("asked", ["--debug", "QAE_DEBUG"])
def test_debug_keeps_the_traceback(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked == "QAE_DEBUG":
        monkeypatch.setenv("QAE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["qae", "train", "stpes=3", *([asked] if asked == "--debug" else [])])
    with pytest.raises(ConfigError):
        cli.main()


def test_an_error_that_nobody_foresaw_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any]
) -> None:
    for error in (RuntimeError("shape mismatch"), ValueError("raised outside qae"), KeyError("x")):
        trainer["raises"] = error
        monkeypatch.setattr(sys, "argv", ["qae", "train", "steps=3"])
        with pytest.raises(type(error)):
            cli.main()


def test_the_trainers_own_refusals_are_one_red_line(run: Run, trainer: dict[str, Any]) -> None:
    trainer["raises"] = loop.NothingToLearn("no group to learn from in 3 steps")
    code, out, err = run("train", "steps=3", "--plain")
    assert one_red_line(code, err) == "no group to learn from in 3 steps"
    assert "2/3 " in out


def test_train_says_what_it_does_before_torch_is_loaded(run: Run, trainer: dict[str, Any]) -> None:
    code, out, err = run("train", "steps=3", "algorithm.advantage=mean")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"qae {qae.__version__}: tiny steps=3 algorithm.advantage=mean"
    assert lines[1] == "loading torch and the policy"
    assert sum("/3 " in line for line in lines) == 3
    assert "held-out problems" in out and "report.html" in lines[-1]
    assert trainer["config"] == TrainConfig.load("tiny", "steps=3", "algorithm.advantage=mean")
    assert trainer["report"] == ([trainer["run_dir"]], trainer["run_dir"] / "report.html", None)
    assert trainer["audit"] == ({"paths": [trainer["run_dir"]]}, trainer["run_dir"])


def test_a_failing_audit_or_report_does_not_fail_the_run(run: Run, trainer: dict[str, Any]) -> None:
    trainer["audit_raises"] = KeyError("y")
    code, out, _ = run("train", "steps=3")
    assert code == 0 and f"warning: the audit failed (KeyError: 'y'); try: qae audit {trainer['run_dir']}" in out
    assert trainer["report"]
    trainer["report_raises"] = ZeroDivisionError("x")
    code, out, _ = run("train", "steps=3")
    assert code == 0
    assert f"warning: the report failed (ZeroDivisionError: x); try: qae report {trainer['run_dir']}" in out
    assert "look at it" not in out


def test_an_interrupted_run_says_how_to_go_on(run: Run, trainer: dict[str, Any]) -> None:
    trainer["raises"] = loop.Interrupted("stopped after step 2; continue with `qae train --resume here`")
    code, out, err = run("train", "steps=3")
    assert (code, err) == (130, "")
    assert out.splitlines()[-1] == "stopped after step 2; continue with `qae train --resume here`"


def test_a_second_interrupt_names_the_last_checkpoint(run: Run, trainer: dict[str, Any], tmp_path: Path) -> None:
    trainer["raises"] = KeyboardInterrupt()
    code, out, _ = run("train", "steps=3", f"--run-dir={tmp_path}")
    assert code == 130
    assert out.splitlines()[-1] == "stopped before the first checkpoint: there is nothing to continue from"
    (tmp_path / "checkpoints" / "000025").mkdir(parents=True)
    code, out, _ = run("train", "steps=3", f"--run-dir={tmp_path}")
    assert out.splitlines()[-1] == f"stopped at once; continue from step 25 with `qae train --resume {tmp_path}`"


def test_resume_reads_the_runs_own_configuration(run: Run, trainer: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig.load("tiny", "steps=3", "seed=7")
    written = {**config.model_dump(mode="json"), "about": {"qae": "0.1.0"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    code, out, _ = run("train", "--resume", str(tmp_path), "steps=5")
    assert code == 0 and trainer["resume"] == tmp_path
    assert out.startswith(f"qae {qae.__version__}: resuming {tmp_path} steps=5")
    assert trainer["config"] == TrainConfig.load("tiny", "steps=5", "seed=7")


def test_resume_of_nothing_names_the_newest_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--resume .*nowhere: no run there \(no config.yaml\); give the directory"):
        read_arguments([], tmp_path / "nowhere")
    (tmp_path / "tiny-1").mkdir()
    (tmp_path / "tiny-1" / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"the newest there is .*tiny-1$"):
        read_arguments([], tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"continues .* with its own configuration; leave out 'stage'"):
        read_arguments(["stage"], tmp_path / "tiny-1")


def test_a_file_with_an_equals_sign_is_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "k=0.3.yaml"
    recipe.write_text("algorithm: {advantage: {k: 0.3}}")
    assert read_arguments([str(recipe)]).config.algorithm.advantage.k == 0.3


def test_report_writes_beside_one_run_and_here_for_several(run: Run, trainer: dict[str, Any]) -> None:
    assert run("report", "a")[:2] == (0, "a/report.html\n")
    assert run("report", "a", "b")[:2] == (0, "report.html\n")
    run("report", "a", "b", "-o", "c.html", "--title", "Mine")
    assert trainer["report"] == ([Path("a"), Path("b")], Path("c.html"), "Mine")


def test_report_as_markdown_is_shown_or_written(run: Run, tmp_path: Path) -> None:
    made = recorded_run(tmp_path / "made", steps=6, rows=8)
    code, out, _ = run("report", str(made), "--markdown")
    assert code == 0 and out.startswith("| run | seeds |") and "- 6 steps of 32 prompts" in out
    file = tmp_path / "deep" / "r.md"
    assert run("report", str(made), "--markdown", "-o", str(file))[:2] == (0, f"{file}\n")
    assert file.read_text() == out


def test_report_options_that_contradict_are_one_red_line(run: Run) -> None:
    line = one_red_line(*run("report", "a", "--watch", "--png")[::2])
    assert line == "--watch cannot go with --png: leave out one of them"
    assert one_red_line(*run("report", "a", "--markdown", "--png")[::2]).startswith("--markdown cannot go with --png")


@pytest.mark.parametrize("options", [[], ["--watch"], ["--markdown"], ["--png"]])
def test_report_of_no_run_is_one_red_line(run: Run, tmp_path: Path, options: list[str]) -> None:
    line = one_red_line(*run("report", str(tmp_path), *options)[::2])
    assert line.startswith(f"{tmp_path} is not a run directory: it has neither config.yaml nor metrics.jsonl")
    assert line.endswith("or audit other programs' logs with `qae audit`")


def test_a_port_that_is_taken_is_one_red_line(run: Run, tmp_path: Path) -> None:
    made = recorded_run(tmp_path / "made", steps=3, rows=8)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_red_line(*run("report", str(made), "--watch", f"--port={port}")[::2])
    assert line.startswith(f"port {port} cannot be used (") and line.endswith("0 takes any free one")


def test_report_watches_until_ctrl_c(tmp_path: Path) -> None:
    made = recorded_run(tmp_path / "made", steps=3, rows=8)
    process = subprocess.Popen(
        [*QAE, "report", str(made), "--watch", "--port=0"], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout
    address = process.stdout.readline().split()[0]
    with urllib.request.urlopen(address, timeout=20) as answer:
        assert b"3 steps of 32 prompts" in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_audit_of_a_run_is_kept_for_its_report(run: Run, tmp_path: Path) -> None:
    made = recorded_run(tmp_path / "made", steps=6, rows=16)
    numbers = tmp_path / "numbers.json"
    code, out, err = run("audit", str(made), "--k=0.25", "--k=0.5", "--json", str(numbers))
    assert (code, err) == (0, "")
    assert "| quantile K=0.25 " in out and "| quantile K=0.4 " not in out
    assert f"kept: {made / 'audit.json'}    look at it: qae report {made}" in out
    assert json.loads(numbers.read_text()) == json.loads((made / "audit.json").read_text())
    assert run("report", str(made))[0] == 0
    assert "What other baselines would have done" in (made / "report.html").read_text()


def test_audit_of_a_dump_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    dump.write_text("".join(f'{{"prompt_id": "u{i}", "reward": {i % 2}}}\n' for i in range(8)))
    code, out, _ = run("audit", str(dump))
    assert code == 0 and "every group has one member, so there is no baseline" in out
    assert list(tmp_path.iterdir()) == [dump]


def test_audit_can_measure_a_step_of_a_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"baseline": "mean", "gradient_norm": 0.5, "own_predicted_nats": -1e-6, "predicted_nats": 2e-6}
    step |= {"measured_nats": 2.5e-6}

    def measured(run_dir: Path, *, batches: int, tell: Callable[[str], None]) -> dict[str, Any]:
        tell("one step of mean")
        paired = {"from_mean_nats": 5e-7, "from_mean_se_nats": 2e-7} if batches > 1 else {}
        paired |= {"signal_norm": 0.0625, "noise_norm": 0.2} if batches > 1 else {}
        lengths = {"success_norm2": 2.0, "failure_norm2": 8.0, "least_noise_k": 0.2} if batches > 1 else {}
        steps = [step | paired]
        return {
            "checkpoint": "c",
            "batches": batches,
            "completions": 48,
            "heldout_tokens": 1000,
            "steps": steps,
            **lengths,
        }

    monkeypatch.setattr(measure, "measure_entropy_steps", measured)
    made = recorded_run(tmp_path / "made", steps=3, rows=8)
    code, out, err = run("audit", str(made), "--measure", "--word=so")
    assert (code, err) == (0, "one step of mean\n")
    assert "Entropy change of one small gradient step from c (48 completions), in millionths of a nat" in out
    kept = json.loads((made / "audit.json").read_text())
    assert kept["entropy_step"]["steps"] == [step] and kept["tokens"]["words"] == ["so"]
    out = run("audit", str(made), "--measure", "--batches=4")[1]
    assert "(48 completions in 4 batches)" in out and "+0.50 +- 0.20" in out
    assert "gradient that batches share" in out and "0.0625" in out
    assert "4 times as long, squared, as that of a success" in out and "K = 1 / (1 + 4) = 0.20" in out
    line = one_red_line(*run("audit", str(made / "rollouts"), "--measure")[::2])
    assert line == f"--measure needs one run directory with a config.yaml, got {made / 'rollouts'}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["missing"],
            "missing does not exist; give the directory that a run printed, or a file or directory of its logs",
        ),
        (["empty"], "found neither rollouts nor scalars in empty; expected JSONL with a prompt and a reward"),
        (["dump.jsonl", "--k=40"], "k=40.0 must lie strictly between 0 and 1 (k is a fraction: 0.4?)"),
    ],
)
def test_audit_errors_are_one_red_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("dump.jsonl").write_text('{"prompt_id": 1, "rewards": [1, 0]}')
    assert one_red_line(*run("audit", *arguments)[::2]) == says


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """An evaluation that only reports its progress."""
    called: dict[str, Any] = {}

    def evaluate_model(model: str, settings: EvalSettings, **options: Any) -> tuple[list[Any], Path]:
        called.update(options, model=model, settings=settings)
        options["watch"]("aime24", 0, 96)
        options["progress"](48, 96, 400)
        if called.get("raises") is not None:
            raise called["raises"]
        options["watch"]("aime24", 96, 96)
        (tmp_path / "table.md").write_text("| the table |\n")
        return [], tmp_path

    monkeypatch.setattr(command, "evaluate_model", evaluate_model)
    return called


def test_eval_hands_its_options_over_and_shows_the_table(run: Run, evaluator: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = run(
        "eval", "tiny", "--bench", "aime24,amc23=f.jsonl", "--data", "a.jsonl", "--data", "b.jsonl", "--samples", "4",
        "--stop", "Q:", "--no-chat", "--endpoint-extra", '{"top_k": 0}', "-o", "here",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert evaluator["settings"] == EvalSettings(samples=4, stop=("Q:",), chat=False)
    assert (evaluator["bench"], evaluator["data"]) == (["aime24", "amc23=f.jsonl"], ["a.jsonl", "b.jsonl"])
    assert (evaluator["endpoint_extra"], evaluator["out"]) == ({"top_k": 0}, Path("here"))
    assert "aime24: 0/96 completions" in out and out.count("aime24: 96/96 completions") == 1
    assert "| the table |" in out and str(tmp_path) in out


def test_eval_options_default_to_the_evaluations_own(run: Run, evaluator: dict[str, Any]) -> None:
    run("eval", "tiny", "--bench", "aime24")
    assert evaluator["settings"] == EvalSettings()
    defaults = {
        name: p.default for name, p in signature(ORIGINAL_EVALUATE).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    for name in set(defaults) - {"bench", "data", "watch", "progress"}:
        assert evaluator[name] == defaults[name], name


def test_an_interrupted_eval_says_how_to_go_on(run: Run, evaluator: dict[str, Any]) -> None:
    evaluator["raises"] = KeyboardInterrupt()
    code, out, _ = run("eval", "tiny", "--bench", "aime24")
    assert code == 130 and out.splitlines()[-1] == "stopped; the same command goes on from here"


def test_eval_refusals_are_one_red_line(run: Run) -> None:
    assert one_red_line(*run("eval")[::2]) == "nothing to evaluate: give a MODEL, or --compare with two evaluations"
    assert "give a benchmark (--bench aime24)" in one_red_line(*run("eval", "tiny")[::2])
    for text in ("{", "3"):
        code, _, err = run("eval", "tiny", "--data", "x.jsonl", "--endpoint-extra", text)
        assert "--endpoint-extra" in one_red_line(code, err)


def test_eval_compares_two_evaluations(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "compare_directories", lambda a, b: f"| {a} against {b} |")
    assert "| one against two |" in run("eval", "--compare", "one", "two")[1]


def test_dry_run_shows_values_sources_and_the_plan(run: Run) -> None:
    code, out, err = run("train", "steps=5", "--dry-run")
    assert (code, err) == (0, "")
    row = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith("  ")}
    assert row["steps"] == ["5", "command line"]
    assert row["algorithm.advantage.k"] == ["0.4", "recipe tiny"]
    assert row["algorithm.loss.clip_high"] == ["0.28", "preset dapo"]
    assert row["algorithm.loss.clip_low"] == ["0.2", "loss default"]
    assert row["update.lr"] == ["3e-05", "default"]
    assert "algorithm.loss.tau_positive" not in row
    for said in ("18,432 tokens", "202,752", "left out of the update", "parameters", "about ", "runs/tiny-<time>"):
        assert said in out, said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.skip_zero_advantage=off", "computed like all others (algorithm.skip_zero_advantage=off)"),
        ("algorithm.kl=0.1", "computed like all others: the KL penalty"),
        ("algorithm.preset=clip_cov", "left out of the backward pass; computed forward"),
        ("algorithm.preset=kl_cov", "left out of the backward pass, unless the KL term selects"),
        ("algorithm.preset=grpo", "left out of the update: their gradient is exactly 0"),
    ],
)
def test_the_plan_says_what_happens_to_zero_rows(override: str, said: str) -> None:
    assert zero_rows(TrainConfig.load("tiny", override)).startswith(said)


def test_the_plan_counts_memory_by_what_needs_it() -> None:
    shape = Shape(parameters=1000, layers=2, width=8, inner_width=16, cache_width=8, vocabulary=100, context_tokens=64)
    plain = memory_bytes(TrainConfig.load("tiny"), shape)
    assert (plain["weights"], plain["gradients and moments"]) == (8000, 12000)
    assert memory_bytes(TrainConfig.load("tiny", "algorithm.kl=0.1"), shape)["weights"] == 12000
    assert memory_bytes(TrainConfig.load("tiny", "policy.lora={r: 8}"), shape)["gradients and moments"] == 0
    wide = memory_bytes(TrainConfig.load("tiny", "update.tokens_per_microbatch=65536"), shape)
    narrow = memory_bytes(
        TrainConfig.load("tiny", "update.tokens_per_microbatch=65536", "update.checkpoint_activations=true"), shape
    )
    assert plain["work"] < narrow["work"] < wide["work"]


def test_the_plan_names_the_model() -> None:
    plan = dict(describe_plan(TrainConfig.load("tiny", "eval.every=0", "algorithm.dynamic_sampling.enabled=false")))
    assert re.fullmatch(r"tiny: 0\.\d+ M parameters, \d+ layers", plan["policy"])
    assert plan[""] == "= 18,432 tokens"
    assert plan["evaluation"] == "before and after: 96 held-out problems x 16 samples"
    assert dict(describe_plan(TrainConfig.load("tiny", "eval.problems=0")))["evaluation"] == "none (eval.problems=0)"


def test_completions_longer_than_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens=100000 leaves no room for a prompt in the \d+ tokens"):
        list(describe_plan(TrainConfig.load("tiny", "rollout.max_tokens=100000")))


def test_values_print_as_they_are_typed() -> None:
    for value in (None, True, 3, 1e-4, "text", [1, "a\nb"], {"r": [16]}, "yes", "", "a: b"):
        assert "\n" not in as_yaml(value)
        assert yaml.safe_load(as_yaml(value)) == value or float(as_yaml(value)) == value


def test_a_whole_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    done = subprocess.run(
        [*QAE, "train", "steps=1", *SMALL, f"--run-dir={directory}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("qae ")
    assert [line["step"] for line in read_metrics(directory)] == [0, 1, 1]
    assert (directory / "report.html").is_file()
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupt_saves_and_resume_finishes(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    started = subprocess.Popen(
        [*QAE, "train", "steps=2000", *SMALL, f"--run-dir={directory}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(read_metrics(directory)) < 2 and time.monotonic() < deadline and started.poll() is None:
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    said = re.search(r"stopped after step (\d+); continue with `qae train --resume (.*)`", out)
    assert said is not None and Path(said[2]) == directory, out
    assert "Traceback" not in err
    target = int(said[1]) + 2
    done = subprocess.run(
        [*QAE, "train", "--resume", said[2], f"steps={target}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [line["step"] for line in read_metrics(directory) if "outcome" in line]
    assert steps == list(range(1, target + 1))
