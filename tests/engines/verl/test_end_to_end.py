"""verl's own trainer on two processes of this machine: it learns, K is used, a killed worker is survived.

Each run takes about two minutes, most of it Ray's start; the curves of twenty steps are left to `make check-long`. What
they measure is printed; run with -s to see it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from qae.advantages import quantile_advantages
from qae.engines.verl.records import group_of, read_dump
from qae.records import read_metrics, read_rollouts, rollout_files
from qae.report import write_report

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]
QAE = [sys.executable, "-c", "from qae.cli import main; main()", "train"]
STEPS, STEPS_TO_LEARN = 3, 20
ON_TWO = ["engine=verl", "engine.platform=cpu", "engine.workers=2"]
LEARNS = [
    "task.levels=[2x1]", "rollout.prompts=16", "rollout.group_size=8", "rollout.max_tokens=26",
    "update.minibatches=4", "update.lr=1e-4", "update.warmup=0", "algorithm.dynamic_sampling.enabled=false",
    "eval.problems=48", "eval.samples=4", "eval.every=0", "checkpoint.every=0",
]  # fmt: skip


@dataclass
class Run:
    """A finished run, and what it took.

    Attributes:
        path: its directory.
        seconds: wall time.
        memory_gb: largest sum of the processes' own and shared-out memory.
        code: exit code.
        said: everything printed.
    """

    path: Path
    seconds: float
    memory_gb: float
    code: int
    said: str


def watch_memory(process: psutil.Popen, peak: list[float]) -> None:
    while process.poll() is None:
        total = 0
        try:
            for member in [process, *process.children(recursive=True)]:
                total += member.memory_full_info().pss
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total / 1e9)
        time.sleep(3)


def qae_train(*words: str, kill: Any = None) -> Run:
    """`qae train` as a program; `kill` is called with its process once it runs."""
    began, peak = time.monotonic(), [0.0]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    process = psutil.Popen([*QAE, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    threading.Thread(target=watch_memory, args=(process, peak), daemon=True).start()
    if kill is not None:
        threading.Thread(target=kill, args=(process,), daemon=True).start()
    said = process.communicate()[0]
    path = re.search(r"--run-dir=(\S+)|--resume=(\S+)", " ".join(words))
    assert path is not None
    run = Run(Path(path[1] or path[2]), time.monotonic() - began, peak[0], process.returncode, said)
    print(f"\n{run.path.name}: {run.seconds:.0f} s, {run.memory_gb:.1f} GB at most, exit code {run.code}")
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    where = tmp_path_factory.mktemp("verl") / "quantile"
    return learn("quantile", STEPS, where)


def learn(baseline: str, steps: int, where: Path) -> Run:
    """A run that ends well."""
    words = [*ON_TWO, *LEARNS, f"steps={steps}", f"algorithm.advantage={baseline}", f"--run-dir={where}", "--plain"]
    run = qae_train("tiny", *words)
    assert run.code == 0, run.said[-3000:]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["quantile", "mean"])
def test_two_ranks_learn(baseline: str, tmp_path: Path) -> None:
    run = learn(baseline, STEPS_TO_LEARN, tmp_path / baseline)
    lines = read_metrics(run.path)
    evals = [line for line in lines if "eval/pass@1" in line]
    steps = [line for line in lines if "eval/pass@1" not in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS_TO_LEARN + 1))
    before, after = evals[0]["eval/pass@1"], evals[-1]["eval/pass@1"]
    print(f"held-out pass@1 {before:.3f} -> {after:.3f}, on the same {evals[0]['eval/problems']} problems")
    assert after > before + 0.03


def test_k_is_really_used(finished: Run) -> None:
    """Advantages that the update was given equal the library's, from the scores that verl dumped."""
    seen = set[float]()
    for path in sorted((finished.path / "verl" / "rollouts").glob("*.jsonl")):
        rows = read_dump(path)
        names = {name: i for i, name in enumerate(dict.fromkeys(map(group_of, rows)))}
        scores = torch.tensor([float(row["score"]) for row in rows])
        ids = torch.tensor([names[group_of(row)] for row in rows])
        expected = quantile_advantages(scores, ids, k=0.4)
        found = torch.tensor([row["advantage"] for row in rows])
        assert torch.allclose(found, expected, atol=1e-6)
        seen |= set(found.sign().tolist())
    assert seen == {-1.0, 0.0, 1.0}


def test_rollout_and_actor_agree(finished: Run) -> None:
    steps = [line for line in read_metrics(finished.path) if "rollout/probs_diff_max" in line]
    worst = max(line["rollout/probs_diff_max"] for line in steps)
    nats = max(line["logprob_gap_max"] for line in steps)
    print(f"largest difference between rollout and actor: probability {worst:.1e}, log-prob {nats:.1e} nats")
    assert len(steps) == STEPS and worst < 1e-5 and 0 < nats < 1e-4
    assert all(line["grad_norm"] > 0 for line in steps)


def test_rows_are_skipped(finished: Run) -> None:
    kept = [line["rows/kept_frac"] for line in read_metrics(finished.path) if "rows/kept_frac" in line]
    assert len(kept) == STEPS
    assert sum(kept) / STEPS < 0.7


def test_the_run_directory_is_ready_for_a_report(finished: Run) -> None:
    rollouts = [row for _, path in rollout_files(finished.path) for row in read_rollouts(path)]
    assert len(rollouts) == STEPS * 16 * 8
    assert {row.regime for row in rollouts} >= {"hard", "easy"}
    assert all(row.entropy_mean_nats is not None for row in rollouts)
    assert (finished.path / "report.html").stat().st_size > 10_000
    assert write_report([finished.path], finished.path / "again.html").exists()


def test_the_policy_can_be_loaded(finished: Run) -> None:
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(finished.path / "checkpoints" / f"{STEPS:06d}").num_parameters() > 5e5


def test_a_killed_worker_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    """SIGKILL to one of the two training processes after a checkpoint; then --resume."""
    where = tmp_path / "killed"
    killed: list[int] = []

    def kill(process: psutil.Popen) -> None:
        # verl saves a step before it reports it
        while process.poll() is None and not any("reward" in line for line in read_metrics(where)):
            time.sleep(0.2)
        for child in process.children(recursive=True):
            if "WorkerDict" in child.name() or "WorkerDict" in " ".join(child.cmdline()):
                killed.append(child.pid)
                child.send_signal(signal.SIGKILL)
                return

    small = [
        "steps=3", "rollout.prompts=4", "rollout.group_size=4", "rollout.max_tokens=40", "update.minibatches=2",
        "task.levels=[2x1]", "eval.problems=0", "checkpoint.every=1", "algorithm.dynamic_sampling.enabled=false",
    ]  # fmt: skip
    run = qae_train("tiny", *ON_TWO, *small, f"--run-dir={where}", "--plain", kill=kill)
    assert killed and run.code == 2
    message = " ".join(run.said.split())
    assert re.search(r"error: verl failed: a worker process died, WorkerDict \(pid \d+\)", message), message[-2000:]
    saved = int(re.search(r"Continue from step (\d+) with `qae train --resume", message)[1])  # pyright: ignore
    assert saved >= 1
    again = qae_train(f"--resume={where}", "--plain")
    assert again.code == 0, again.said[-3000:]
    assert [line["step"] for line in read_metrics(where)] == [1, 2, 3]
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(where) in " ".join(p.info["cmdline"] or [])]


def test_the_command_alone_is_enough(tmp_path: Path) -> None:
    """What engine.prepare_only writes composes in verl: the keys exist, the values fit."""
    where = tmp_path / "prepared"
    run = qae_train("tiny", *ON_TWO, "engine.prepare_only=true", f"--run-dir={where}", "--plain")
    assert run.code == 0, run.said
    script = (where / "verl" / "command.sh").read_text().rstrip() + " --cfg job --resolve"
    done = subprocess.run(
        ["sh", "-c", script.replace("python -m", f"{sys.executable} -m")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "adv_estimator: qae" in done.stdout and "qae_k: 0.4" in done.stdout
    assert json.loads((where / "verl" / "task.json").read_text())["seed"] == 0
