"""kill -9 at random moments of a real run: `make check-long`."""

import random
import signal
import subprocess
import sys
import time

import pytest

from qae.records import read_metrics, read_rollouts

SETTINGS = ["steps=8", "checkpoint.every=2", "eval.every=2", "eval.problems=8", "eval.samples=4", "threads=1"]
QAE = [sys.executable, "-c", "from qae.cli import main; main()"]


def comparable(run):
    """All that a run reports but its times, in order."""
    metrics = [
        {k: v for k, v in record.items() if not k.startswith(("seconds", "memory"))} for record in read_metrics(run)
    ]
    rollouts = {p.name: [vars(r) for r in read_rollouts(p)] for p in sorted((run / "rollouts").iterdir())}
    return metrics, rollouts


@pytest.mark.slow
def test_ten_kills_in_a_row_leave_no_gap_and_no_double(tmp_path):
    whole = tmp_path / "whole"
    started = time.monotonic()
    subprocess.run([*QAE, "train", *SETTINGS, "--plain", "--run-dir", str(whole)], check=True, capture_output=True)
    seconds = time.monotonic() - started
    expected = comparable(whole)
    rng = random.Random(0)
    for attempt in range(10):
        run = tmp_path / f"killed-{attempt}"
        process = subprocess.Popen(
            [*QAE, "train", *SETTINGS, "--plain", "--run-dir", str(run)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (run / "config.yaml").exists():
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.7 * seconds))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            assert comparable(run) == expected
            continue
        resumed = subprocess.run(
            [*QAE, "train", "--resume", str(run), "--plain"], check=False, capture_output=True, text=True
        )
        # A kill after the last checkpoint leaves nothing to resume, and the command says so.
        assert resumed.returncode == 0 or "has already done its 8 steps" in resumed.stderr, resumed.stderr
        assert comparable(run) == expected, f"attempt {attempt}"
