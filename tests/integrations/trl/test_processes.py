"""Two gloo processes: one group lies on both, advantages are computed over all of it, and skipping stays exact."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qae import quantile_advantages
from trl_cases import MARKS, logged

pytestmark = MARKS
WORKER = """
import json, sys
from pathlib import Path
import torch
import trl_cases
from trl_cases import gradients, make_trainer
out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
reward = getattr(trl_cases, options.pop("reward", "coin"))
trainer = make_trainer(out, reward_funcs=reward, **options)
received = []
loss = trainer._compute_loss
trainer._compute_loss = lambda model, inputs: received.append(inputs["advantages"]) or loss(model, inputs)
found = gradients(trainer)
rank = trainer.accelerator.process_index
saved = {"grads": found, "advantages": received, "log": trainer.state.log_history}
torch.save(saved, out / f"rank{rank}.pt")
"""


def run_two(out: Path, **options) -> list[dict]:
    out.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = out / "worker.py"
    script.write_text(WORKER)
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"PYTHONPATH": str(Path(__file__).parents[2]), "ACCELERATE_USE_CPU": "true"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(out), json.dumps(options)],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [worker.communicate(timeout=200)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], said
    return [torch.load(out / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("rows", [4, 8])
def test_a_group_on_two_processes_is_one_group(tmp_path, rows):
    """Four rows on each of two processes, groups of eight: every group spans both."""
    stale = {"num_iterations": 2, "importance_sampling_level": "sequence", "learning_rate": 3e-3}
    options = {"per_device_train_batch_size": rows, "max_steps": 4, "max_grad_norm": 0.0, **stale}
    ranks = run_two(tmp_path / "on", skip_zero_advantage="on", **options)
    for step in (1, 3):
        rewards, advantages = logged(tmp_path / "on", step)
        assert len(rewards) == 2 * rows
        expected = quantile_advantages(rewards[:, 0], torch.arange(2 * rows) // 8, 0.4, divisor="n-1", eps=1e-4)
        torch.testing.assert_close(advantages.float(), expected, rtol=0, atol=1e-6)
        received = torch.cat([rank["advantages"][step - 1] for rank in ranks])
        torch.testing.assert_close(received.sort().values, expected.sort().values, rtol=0, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(ranks[0]["grads"], ranks[1]["grads"], strict=True))
    if rows == 4:
        dense = run_two(tmp_path / "off", skip_zero_advantage="off", **options)
        for kept, full in zip(ranks[0]["grads"], dense[0]["grads"], strict=True):
            assert (kept - full).norm() <= 2e-5 * full.norm()
        for kept, full in zip(ranks[0]["log"][:-1], dense[0]["log"][:-1], strict=True):
            assert kept["entropy"] == pytest.approx(full["entropy"], rel=1e-4)


def test_dynamic_sampling_keeps_both_processes_together(tmp_path):
    options = {"per_device_train_batch_size": 8, "max_steps": 3, "dynamic_sampling_refills": 4, "quantile_k": 0.6}
    ranks = run_two(tmp_path / "refill", reward="often_flat", **options)
    logs = ranks[0]["log"][:-1]
    assert any(log["groups/refills"] for log in logs)
    assert all(log["groups/kept"] <= 2 <= log["groups/asked"] for log in logs)
    assert all(torch.equal(a, b) for a, b in zip(ranks[0]["grads"], ranks[1]["grads"], strict=True))
