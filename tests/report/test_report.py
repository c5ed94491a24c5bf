"""The report: what it says, that it is one safe file, and (slow) that a browser shows it without complaint."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_runs import HOSTILE, fake_run
from qae.audit import audit_paths, save_audit
from qae.records import Rollout, RunWriter, SchemaError
from qae.report import write_markdown, write_report
from qae.report.runs import arms_of, read_run, series_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # hundreds of small files, none of them precious
        return _fake_runs(folder)


def _fake_runs(folder: Path) -> dict[str, Path]:
    return {
        "quantile-0": fake_run(folder / "quantile-0", steps=30, rows=16, hostile=True),
        "quantile-1": fake_run(folder / "quantile-1", steps=30, rows=16, seed=1),
        "mean-0": fake_run(folder / "mean-0", steps=30, rows=16, advantage="mean"),
        "k80": fake_run(folder / "k80", steps=60, rows=16, k=0.8, entropy="explosion"),
    }


def payload(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_one_run(runs: dict[str, Path], tmp_path: Path) -> None:
    page = write_report([runs["quantile-1"]], tmp_path / "deep" / "report.html")
    text = page.read_text("utf-8")
    assert "30 steps of 32 prompts x 8 completions" in text
    assert "The baseline was the group&#x27;s 0.4-quantile (QAE)." in text
    assert "Entropy stayed healthy" in text
    data = payload(page)
    assert data["arms"] == [{"label": "tiny: quantile K=0.4", "runs": [0]}]
    assert data["runs"][0]["series"]["step"] == list(range(1, 31))
    assert [e["step"] for e in data["runs"][0]["evals"]] == [0, 25, 30]
    assert {s["step"] for s in data["samples"]} >= {1, 30}


def test_several_runs_form_arms_by_seed(runs: dict[str, Path], tmp_path: Path) -> None:
    page = write_report([runs["quantile-0"], runs["mean-0"], runs["quantile-1"], runs["k80"]], tmp_path / "r.html")
    data = payload(page)
    assert [(arm["label"], len(arm["runs"])) for arm in data["arms"]] == [
        ("quantile K=0.4", 2),
        ("mean", 1),
        ("quantile K=0.8", 1),
    ]
    assert [run["label"] for run in data["runs"][:2]] == ["quantile K=0.4, seed 0", "quantile K=0.4, seed 1"]
    assert "entropy: 2 healthy" in page.read_text("utf-8")


def test_the_page_is_one_file_that_fetches_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_report(list(runs.values()), tmp_path / "r.html").read_text("utf-8")
    addresses = re.findall(r"""<[a-z]+ [^>]*?(?:src|href)=["']?([^"'> ]+)""", text)
    assert addresses and all(a.startswith(("data:", "#")) for a in addresses), addresses
    assert "@import" not in text and "fetch(" not in text
    assert (tmp_path / "r.html").stat().st_size < 6_000_000


def test_only_the_pages_own_scripts_may_run(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_report([runs["quantile-0"]], tmp_path / "r.html").read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy and "default-src 'none'" in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert "unsafe-inline' '" not in policy[1].split("style-src")[0]


def test_a_hostile_completion_stays_text_and_is_cut(runs: dict[str, Path], tmp_path: Path) -> None:
    page = write_report([runs["quantile-0"]], tmp_path / "r.html", title='<script>alert("t")</script>')
    text = page.read_text("utf-8")
    assert "document.title=" not in text.replace("\\u003cscript>document.title=", "")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "\x00" not in text
    hostile = [s for s in payload(page)["samples"] if s["text"].startswith(HOSTILE)]
    assert hostile
    assert all(len(s["text"]) + len(s["tail"]) == 5000 and s["cut"] > 90_000 for s in hostile)
    assert all(len(s["pieces"]) <= 1200 for s in hostile if "pieces" in s)


def test_a_hostile_name_and_config_stay_text(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "x", steps=3, rows=8)
    config = (run / "config.yaml").read_text().replace("name: tiny", "name: '</script><img src=x onerror=alert(1)>'")
    (run / "config.yaml").write_text(config)
    text = write_report([run], tmp_path / "r.html").read_text("utf-8")
    assert "<img src=x" not in text


def test_pass_at_k_and_changes_come_from_the_problems_rates(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    for step, rates in [(0, [0.0, 0.25, 0.5, 0.5]), (5, [0.25, 0.5, 0.5, 1.0])]:
        found = {f"p{i}": rate for i, rate in enumerate(rates)}
        line = {"step": step, "eval/pass@1": sum(rates) / 4, "eval/samples": 4, "eval/rates": found}
        writer.append_metrics(line)
    (first, last) = payload(write_report([tmp_path / "run"], tmp_path / "r.html"))["runs"][0]["evals"]
    assert first["eval/pass@2"] == pytest.approx((0 + 1 / 2 + 5 / 6 + 5 / 6) / 4, rel=1e-4)
    assert last["eval/pass@4"] == 1.0
    assert first["eval/pass@2_low"] < first["eval/pass@2"] < first["eval/pass@2_high"]
    assert "eval/rates" not in first
    text = write_markdown([tmp_path / "run"])
    assert "+25.0 points" in text and "better on 3 problems and worse on 0" in text


def test_arms_are_compared_on_the_same_problems(runs: dict[str, Path]) -> None:
    lines = write_markdown([runs["quantile-0"], runs["quantile-1"], runs["mean-0"]]).splitlines()
    assert "after, against quantile K=0.4" in lines[0]
    assert re.search(r"\| [+-]\d+\.\d points \(-?\d", lines[3])


def test_an_explosion_is_told_with_its_evidence(runs: dict[str, Path]) -> None:
    text = write_markdown([runs["k80"]])
    assert re.search(r"Entropy exploded: it left 0\.2\d? nats at about step (1\d|2\d)", text)
    assert re.search(r"By step [34]\d the history was enough to say so\. Before and after the onset: ", text)
    assert "share of completions cut off at the token limit" in text


def test_markdown_compares_arms(runs: dict[str, Path]) -> None:
    lines = write_markdown([runs["quantile-0"], runs["quantile-1"], runs["mean-0"]]).splitlines()
    assert lines[0].startswith("| run | seeds | steps | pass@1 before |")
    assert lines[2].startswith("| quantile K=0.4 | 2 | 30 |")
    assert lines[3].startswith("| mean | 1 | 30 |")


def test_markdown_keeps_odd_names_in_their_cell(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a|b<i>", steps=3, rows=8)
    (run / "config.yaml").unlink()
    assert "| a\\|b&lt;i> | 1 |" in write_markdown([run])


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").append_metrics({"step": 0, "eval/pass@1": 0.25})
    text = write_markdown([tmp_path / "run"])
    assert "No step has been recorded yet." in text and "25.0% (a single evaluation)" in text
    assert write_report([tmp_path / "run"], tmp_path / "r.html").exists()


def test_a_run_without_a_line_yet(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").write_config("name: new\nsteps: 5\n")
    text = write_report([tmp_path / "run"], tmp_path / "r.html").read_text("utf-8")
    assert "No step has been recorded yet." in text and "<h1>new</h1>" in text


def test_broken_lines_are_counted_not_fatal(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", steps=10, rows=8)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "rew')
    last = run / "rollouts" / "000010.jsonl"
    last.write_text(last.read_text()[:-40])
    (run / "config.yaml").write_text("a: [1\n")
    text = write_report([run], tmp_path / "r.html").read_text("utf-8")
    assert "1 broken lines in the records were skipped (metrics.jsonl:" in text
    assert "1 broken lines among the completions were skipped (000010.jsonl:8)." in text


def test_missing_directories_and_newer_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"is not a run directory: it has neither config\.yaml nor metrics\.jsonl"
    ):
        write_report([tmp_path / "none"], tmp_path / "r.html")
    with pytest.raises(ValueError, match="no run directory was given"):
        write_report([], tmp_path / "r.html")
    (tmp_path / "metrics.jsonl").write_text('{"schema": 99, "step": 1}\n')
    with pytest.raises(SchemaError, match="schema 99"):
        write_report([tmp_path], tmp_path / "r.html")


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step, reward in [(1, 0.1), (2, 0.2), (2, 0.5)]:
        writer.append_metrics({"step": step, "reward": reward})
    assert read_run(tmp_path).values("reward") == [0.1, 0.5]


def test_settings_changed_on_the_way_stand_among_the_notes(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["about"]["changes"] = [{"step": 6, "key": "algorithm.advantage.k", "before": 0.2, "now": 0.8}]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    page = write_report([run], tmp_path / "page.html").read_text()
    assert f"{run}: algorithm.advantage.k was 0.2 up to step 6 and is 0.8 now; the figures" in page


def test_long_runs_are_averaged_over_spans(tmp_path: Path) -> None:
    lines = [json.dumps({"step": s, "reward": s, "x": None if s % 3 else 1.0}) for s in range(1, 1001)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    columns = series_of(read_run(tmp_path), points=100)
    assert len(columns["step"]) == 100
    assert columns["reward"][:2] == [5.5, 15.5] and columns["step"][:2] == [10.0, 20.0]
    assert columns["x"][0] == 1.0


def test_arms_with_one_label_are_told_apart(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path / name, steps=2, rows=8) for name in ("a", "b")]
    config = (folders[1] / "config.yaml").read_text().replace("lr: 3.0e-05", "lr: 0.0001")
    (folders[1] / "config.yaml").write_text(config)
    assert [arm.label for arm in arms_of([read_run(f) for f in folders])] == [
        "quantile K=0.4, lr=3e-05",
        "quantile K=0.4, lr=0.0001",
    ]


def test_many_long_runs_stay_under_six_megabytes(tmp_path: Path) -> None:
    lines = [json.dumps({"step": s, **{f"m{i}": s / (i + 3) for i in range(40)}}) for s in range(1, 301)]
    runs: list[Path] = []
    for i in range(4):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        runs.append(tmp_path / str(i))
    assert write_report(runs, tmp_path / "r.html").stat().st_size < 6_000_000


def test_an_audit_in_the_run_directory_becomes_a_section(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", steps=4, rows=16)
    assert 'id="whatif"' not in write_report([run], tmp_path / "r.html").read_text("utf-8")
    save_audit(audit_paths([run], ks=[0.4]) | {"warnings": ["<b>odd</b>"]}, run)
    text = write_report([run], tmp_path / "r.html").read_text("utf-8")
    assert "<td>quantile K=0.4</td>" in text and "&lt;b&gt;odd&lt;/b&gt;" in text
    (run / "audit.json").write_text("{")
    assert 'id="whatif"' not in write_report([run], tmp_path / "r.html").read_text("utf-8")
    (run / "audit.json").write_text('{"schema": 99}')
    with pytest.raises(SchemaError, match=r"audit\.json has schema 99; this qae reads up to 1"):
        write_report([run], tmp_path / "r.html")


def test_a_token_view_becomes_charts_and_tables(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", steps=4, rows=16)
    audit = audit_paths([run])
    assert audit["tokens"]["tokens"] > 0
    audit["tokens"]["carriers"][0]["text"] = "<script>alert(1)</script>"
    step = {"baseline": "<b>mean", "gradient_norm": 0.5, "own_predicted_nats": -1e-6, "predicted_nats": 2e-6}
    audit["entropy_step"] = {
        "checkpoint": "c", "completions": 48, "heldout_tokens": 1000, "steps": [step | {"measured_nats": 2.5e-6}],
    }  # fmt: skip
    save_audit(audit, run)
    page = write_report([run], tmp_path / "r.html")
    text = page.read_text("utf-8")
    assert '<a href="#tokens">Tokens</a>' in text and 'id="charts-tokens"' in text
    assert "<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>" in text and "<script>alert" not in text
    assert "<td>&lt;b&gt;mean</td><td>0.5</td><td>-1.00</td><td>+2.00</td><td>+2.50</td>" in text
    series = payload(page)["runs"][0]["tokens"]
    assert series["step"] == [1, 2, 3, 4] and len(series["effective"]) == 4
    (run / "audit.json").unlink()
    text = write_report([run], tmp_path / "r.html").read_text("utf-8")
    assert 'id="charts-tokens"' not in text and payload(page)["runs"][0]["tokens"] == {}


def test_samples_are_spread_over_cells_prompts_and_steps(runs: dict[str, Path], tmp_path: Path) -> None:
    samples = payload(write_report([runs["mean-0"]], tmp_path / "r.html"))["samples"]
    by_step: dict[int, list[tuple[Any, ...]]] = {}
    for s in samples:
        by_step.setdefault(s["step"], []).append((s["regime"], s["advantage"] > 0, s["id"], "entropies" in s))
    assert len(by_step) == 8
    assert all(len({prompt for _, _, prompt, _ in found}) == 2 for found in by_step.values())
    assert all(sum(detailed for *_, detailed in found) == 2 for found in by_step.values())


def test_long_completions_are_cut_until_the_page_is_small(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    text = "\u8fd9\u4e2a" * 3000
    detail = {"entropies_nats": [0.123456] * 5000, "token_texts": ["\u8fd9"] * 5000, "logprobs": [-0.5] * 5000}
    for step in (1, 2, 3):
        writer.append_metrics({"step": step, "entropy": 0.5})
        rows = [
            Rollout(step, f"{i}", i, text, text, 5000, 1.0, 1.0, 0.5, "hard", False, **detail)  # type: ignore[arg-type]
            for i in range(30)
        ]
        writer.write_rollouts(step, rows)
    page = write_report([tmp_path / "run"], tmp_path / "r.html")
    assert page.stat().st_size < 6_000_000
    assert all(s["cut"] > 0 and s["tail"] for s in payload(page)["samples"])


def test_the_report_never_loads_torch() -> None:
    code = "import sys, qae.report; print(sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[Path], tuple[str, str]]:
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"
    )

    def load(page: Path) -> tuple[str, str]:
        command = [str(CHROMIUM), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)

    return load


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_draws_it_without_complaint(
    runs: dict[str, Path], tmp_path: Path, browse: Callable[[Path], tuple[str, str]]
) -> None:
    for name, chosen in {"one": [runs["quantile-0"]], "all": list(runs.values())}.items():
        dom, console = browse(write_report(chosen, tmp_path / f"{name}.html", title="a title"))
        assert console == ""
        assert 'data-ready="yes"' in dom and "<title>a title - qae report</title>" in dom
        assert dom.count('class="main-svg"') >= 2 * 19
        assert '<img src="x"' not in dom and "100089 tokens" in dom
