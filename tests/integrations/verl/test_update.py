"""verl's real FSDP2 engine: the same loss as the local trainer's, and rows skipped without a change of gradient."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qae.integrations.verl.checks import compose

pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]
TESTS = Path(__file__).parents[2]


def run(task: str, ranks: int) -> list[dict[str, Any]]:
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(TESTS),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "qae.integrations.verl.load",
    }
    launch = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    done = subprocess.run([*launch, str(TESTS / "verl_update.py"), task], capture_output=True, text=True, env=env)
    lines = [line.removeprefix("report ") for line in done.stdout.splitlines() if line.startswith("report ")]
    assert done.returncode == 0 and lines, done.stderr[-3000:]
    return json.loads(lines[-1])


def test_the_first_update_has_the_local_engines_loss() -> None:
    for case in run("same", 1):
        ours, theirs = case["loss"]
        assert theirs == pytest.approx(ours, abs=1e-5), case
        ours, theirs = case["norm"]
        assert theirs == pytest.approx(ours, rel=1e-4), case


def test_skipping_on_two_ranks_keeps_the_gradient() -> None:
    found = run("skip", 2)
    cases = [case for case in found if case["reduction"] != "timing"]
    assert {case["reduction"] for case in cases} == {"token_mean", "sequence_mean", "sequence_sum"}
    for case in cases:
        assert case["difference"] < 1e-6, case
        assert case["kept"] < 0.6 and case["norm"] > 0, case
    dense, skipped = found[-1]["seconds"]
    print(f"\nforward and backward pass of a mini-batch: {dense:.3f} s, {skipped:.3f} s without rows of advantage 0")
    assert skipped < 0.8 * dense


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["actor_rollout_ref.actor.use_kl_loss=True"], r"use_kl_loss=True acts on rows with advantage 0"),
        (["actor_rollout_ref.actor.entropy_coeff=0.01"], r"entropy_coeff=0\.01 acts on rows"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov"], r"loss_mode=clip_cov chooses among the tokens"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"], r"loss_mode=kl_cov chooses among the tokens"),
        (["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"], r"set loss_scale_factor"),
    ],
)
def test_refused_where_it_is_not_exact(overrides: list[str], reason: str) -> None:
    import re

    from qae.integrations.verl.skip import inexact

    found = inexact(compose(overrides).actor_rollout_ref.actor)
    assert found is not None and re.search(reason, found)


def test_exact_by_default() -> None:
    from qae.integrations.verl.skip import inexact

    assert inexact(compose([]).actor_rollout_ref.actor) is None


def test_the_engine_is_found_by_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine import EngineRegistry

    from qae.integrations.verl import skip

    registry = EngineRegistry._engines["language_model"]
    monkeypatch.setitem(registry, "fsdp2", dict(registry["fsdp2"]))
    monkeypatch.setitem(registry, "fsdp", dict(registry["fsdp"]))
    skip.register()
    skip.register()
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "nvidia")
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is skip.SkippingEngine
