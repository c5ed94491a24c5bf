"""Benchmark scripts run at a test's size and print what they promise. No time and no memory is asserted."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FEW = ["rollout.prompts=2", "rollout.max_tokens=8", "update.minibatches=1"]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def printed(module, capsys, *argv):
    module.main(list(argv))
    return json.loads(capsys.readouterr().out)


def has_origin(result, *packages):
    assert {"python", "qae", *packages} <= set(result["versions"])
    assert result["processor"]
    assert result["config"]


def test_startup_follows_a_training_run_to_its_first_step(script):
    found = script("startup").first_moments(["tiny"], [*FEW, "task.levels=[1x1]", "eval.problems=1", "eval.samples=2"])
    assert 0 < found["first_line"] < found["first_token"] < found["first_step"]


def test_startup_says_that_the_run_failed(script):
    with pytest.raises(
        RuntimeError, match=r"ended without first_line, first_token, first_step: run `qae train tiny k=1"
    ):
        script("startup").first_moments(["tiny"], ["k=1"])


def test_startup_reports_all_sides(script, capsys, monkeypatch):
    startup = script("startup")
    monkeypatch.setattr(startup, "first_moments", lambda *_: dict.fromkeys(startup.EVENTS, 1.0))
    result = printed(startup, capsys, "--alternations", "1", "--train-alternations", "2")
    has_origin(result, "torch", "typer")
    assert set(result["help_seconds"]) == {"qae", "floor"}
    assert result["qae_help_over_floor"]["runs"] == 1
    assert result["train_seconds"]["without_evaluation"]["first_token"] == {
        "median": 1, "min": 1, "max": 1, "runs": 2
    }  # fmt: skip


def run_here(memory, monkeypatch):
    """Children's work in this process: their own would spend seconds on imports."""
    monkeypatch.setattr(memory, "ask", lambda python, launcher, task: json.loads(json.dumps(memory.child(task))))


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")


@linux_only
def test_memory_measures_our_sides_and_the_phases(script, capsys, monkeypatch):
    memory = script("memory")
    run_here(memory, monkeypatch)
    result = printed(
        memory, capsys, "--small", "--policy", "tiny", "--dtype", "float32", "--alternations", "2",
        "--phase-steps", "1", "--phase-overrides", *FEW, "task.levels={add1: 1}", "--sides", *memory.OURS,
    )  # fmt: skip
    has_origin(result, "torch", "transformers")
    for work in ("few_shot", "words"):
        sides = result["works"][work]["sides"]
        assert set(sides) == set(memory.OURS)
        assert sides["qae_dense"]["rows_kept_frac"] == 1
        assert sides["qae"]["above_state_mb"]["runs"] == 2
        assert sides["qae"]["peak_mb"]["min"] > sides["qae"]["state_mb"]
    # K = .4: of groups with 3 and 1 right, these 4 of 16 rows act
    assert result["works"]["few_shot"]["sides"]["qae"]["rows_kept_frac"] == 4 / 16
    (phases,) = result["phases"]
    assert phases["memory/sample_peak_mb"] > 0
    assert phases["memory/update_peak_mb"] > 0


@linux_only
@pytest.mark.trl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["trl", "trl_checkpointing"])
def test_memory_measures_trl_on_the_same_rows(script, side):
    memory = script("memory")
    rows = memory.make_rows(memory.SMALL_WORKS["few_shot"], 40)
    from qae.policies.source import TINY

    found = memory.measure_trl(side, str(TINY), "float32", rows, 2)
    assert len(found["peak_mb"]) == 2
    assert min(found["peak_mb"]) > found["state_mb"]


def test_scaling_fits_exponents(script, capsys):
    result = printed(
        script("scaling"), capsys, "--alternations", "1", "--width", "32", "--layers", "1", "--prompts", "2",
        "--group-size", "2", "4", "--completion-tokens", "4", "8", "16", "--vocabulary",
    )  # fmt: skip
    has_origin(result, "torch")
    assert set(result["axes"]) == {"group_size", "completion_tokens"}
    found = result["axes"]["completion_tokens"]["update"]
    assert found["sizes"] == [4, 8, 16]
    assert len(found["local"]) == 2
    assert found["bends_at"]["size"] == 8
    assert result["axes"]["group_size"]["sample"]["bends_at"] is None


def test_a_slope_is_the_exponent_of_a_power_law(script):
    found = script("scaling").slopes([1, 2, 4, 8], [3.0, 3.0, 3.0, 12.0])
    assert found["local"] == pytest.approx([0, 0, 2])
    assert found["bends_at"] == {"size": 4, "slope_before": pytest.approx(0), "slope_after": pytest.approx(2)}
    assert script("scaling").slopes([1, 10, 100], [5.0, 500.0, 50000.0])["exponent"] == pytest.approx(2)


def test_gradient_noise_of_the_arms_of_a_study(script, capsys, tmp_path):
    """Failures alone scatter more than successes alone; rows of the batch are the same for all arms."""
    study = {
        "name": "two-signs", "question": "Which sign scatters more?", "baseline": "mean", "seeds": 1, "minutes": 1,
        "overrides": ["rollout.prompts=6", "update.minibatches=1"],
        "arms": {
            "mean": ["algorithm.advantage=mean"],
            "successes": ["algorithm.advantage=fixed", "algorithm.advantage.baseline=0"],
            "failures": ["algorithm.advantage=fixed", "algorithm.advantage.baseline=1"],
        },
        "decision": {"metric": "eval/pass@1", "margins": {}, "rule": "none"},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    noise = script("gradient_noise")
    result = printed(noise, capsys, "--study", str(tmp_path / "study.yaml"), "--alternations", "2")
    assert {"python", "torch"} <= set(result["environment"]["versions"])
    assert result["config"]["batches"] == 2
    norms = {arm: found["noise_norm"] for arm, found in result["arms"].items()}
    assert norms["failures"] > 1.5 * norms["successes"] > 0
    assert result["least_noise_k"] < 0.4


def test_gpu_script_runs_on_a_processor(script, capsys, tmp_path):
    gpu = script("gpu")
    out = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--device", "cpu", "--small", "--alternations", "1", "--out", str(out)])
    assert ended.value.code == 0
    result = json.loads(out.read_text())
    assert result == json.loads(capsys.readouterr().out)
    has_origin(result, "torch")
    assert result["device"] == "cpu"
    assert result["attention"]["grouped/chosen"]["works"]
    assert result["attention"]["grouped/chosen"]["relative_error"] < 0.02
    assert set(result["sampling"]["tokens_per_second"]) == {"qae", "generate"}
    assert result["update"]["rows_kept_frac"]["shared"] == 1
    assert 0 < result["update"]["rows_kept_frac"]["shared_skip"] < 1
    assert result["gradients"]["padded_norm"] > 0
    assert all(difference < 1e-5 for difference in result["gradients"]["relative_difference"].values())
    assert len(result["training"]["steps"]) == 1


def test_gpu_script_keeps_the_other_sections_when_one_fails(script, capsys, monkeypatch):
    gpu = script("gpu")

    def fail(bench):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(gpu.SECTIONS, "sampling", fail)
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--device", "cpu", "--small", "--alternations", "1", "--sections", "sampling", "attention"])
    result = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    assert result["sampling"] == {"error": "RuntimeError: out of memory"}
    assert "grouped/math" in result["attention"]


def test_a_script_that_cannot_run_here_is_left_out(script, capsys, monkeypatch):
    gpu = script("gpu")
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 77
    assert "skipped: torch sees no CUDA device" in capsys.readouterr().err


def test_make_bench_goes_on_past_what_is_left_out_and_names_what_failed(tmp_path):
    for name, code in (("a", 3), ("b", 77), ("c", 0)):
        (tmp_path / f"{name}.py").write_text(f"print('{name} ran'); raise SystemExit({code})")
    scripts = [str(tmp_path / f"{name}.py") for name in "abc"]

    def bench(*scripts):
        command = ["make", "-s", "-o", ".venv/.installed-dev", "bench", f"BENCHMARKS={' '.join(scripts)}"]
        where = [f"BIN={Path(sys.executable).parent}"]
        return subprocess.run(
            [*command, *where], cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=60, check=False
        )

    done = bench(*scripts)
    assert done.stdout.split("\n")[:3] == ["a ran", "b ran", "c ran"]
    assert done.returncode != 0
    assert f"failed: {scripts[0]}\n" in done.stderr
    assert bench(*scripts[1:]).returncode == 0


def test_step_adds_to_what_an_earlier_call_measured(script, tmp_path):
    step = script("step")
    versions = {"versions": {"torch": "2"}, "trl": "1.16.0", "trl_torch": "2"}
    now = {"config": {"prompts": 32}, "policy": "tiny", "warmup": 0, "environment": versions | {"load_average": 1.0}}
    out = tmp_path / "step.json"
    assert step.kept_steps(out, dict(now)) == {}
    steps = {side: [{"seconds": seconds}] for side, seconds in zip(step.SIDES, (8.0, 4.0, 2.0, 1.0), strict=True)}
    summed = step.summary(steps)
    assert summed["ratios"]["trl_over_qae"] == {"median": 8, "min": 8, "max": 8, "runs": 1}
    busier = {"environment": versions | {"load_average": 9.0}}
    out.write_text(json.dumps(now | busier | {"works": {"words": summed}}))
    assert step.kept_steps(out, dict(now)) == {"words": steps}
    for other in ({"config": {"prompts": 8}}, {"warmup": 1}, {"environment": versions | {"trl": "1.17.0"}}):
        with pytest.raises(SystemExit, match="was made with another configuration or other versions"):
            step.kept_steps(out, now | other)
