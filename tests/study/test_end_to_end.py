"""A real study of the tiny policy: killed in the middle, continued, summed up."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from qae.records import read_metrics

STUDY = {
    "name": "trial",
    "question": "Does the machinery run?",
    "overrides": [
        "steps=3", "rollout.prompts=8", "update.minibatches=2", "eval.problems=4", "eval.samples=4", "eval.every=0",
        "checkpoint.every=1",
    ],
    "arms": {"mean": ["algorithm.advantage=mean"], "random": ["algorithm.advantage=random_mask"]},
    "baseline": "mean",
    "seeds": 2,
    "metrics": ["eval/pass@1", "eval/entropy"],
    "decision": {"metric": "eval/pass@1", "margins": {"eval/pass@1": 0.03}, "rule": "none: two seeds say nothing"},
    "questions": [{"ask": "Do they differ?", "arm": "random", "expect": "same"}],
    "minutes": 1,
}  # fmt: skip


@pytest.mark.slow
def test_killed_in_the_middle_and_continued(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(STUDY))
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from qae.cli import main; main()", "study", str(tmp_path / "trial.yaml")]
    command += ["--out", str(out), "--jobs", "2"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not list(out.glob("runs/all/*/seed-0/checkpoints/000001")):
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/*/finished.json")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert "4 of 4 runs finished" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for run in out.glob("runs/all/*/seed-*"):
        steps = [line["step"] for line in read_metrics(run) if "eval/pass@1" not in line]
        assert steps == [1, 2, 3]
    record = json.loads((out / "summary.json").read_text())
    first = {run["arm"]: run["eval"]["eval/pass@1"][0] for run in record["runs"] if run["seed"] == 1}
    assert first["mean"] == first["random"]  # the same initial policy and the same samples
    assert record["answers"][0]["kind"] in ("open", "same")
