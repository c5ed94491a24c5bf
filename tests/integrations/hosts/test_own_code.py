"""Adapters in the hosts' own code: QAE_HOST_<NAME>=DIRECTORY of a checkout or unpacked wheel; skipped without.

What a host needs and is not installed is stubbed, and the list of stubs is printed and recorded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qae import mean_advantages, quantile_advantages
from qae.integrations.status import record

HERE = Path(__file__).parent / "own_code"
TESTS = Path(__file__).parents[2]


def run(host: str, cwd: Path, *arguments: str, script: str | None = None) -> dict:
    directory = os.environ.get(f"QAE_HOST_{host.upper()}")
    if not directory:
        pytest.skip(f"set QAE_HOST_{host.upper()} to a checkout or an unpacked wheel of {host}")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / f"run_{script or host}.py"), directory, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(TESTS), "QAE_K": "0.4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


def keep(host: str, seen: dict) -> None:
    record(
        host, "own code", seen["version"], "tests/integrations/hosts/test_own_code.py",
        stubs=seen["stubs"], source=seen["source"],
    )  # fmt: skip


def close(found, expected, atol=1e-5) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.as_tensor(expected), rtol=0, atol=atol)


TWO_OF_FOUR = (torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
VERL_LIKE = {"divisor": "n-1", "eps": 1e-6}


def test_skyrl(tmp_path):
    seen = run("skyrl", tmp_path)
    rewards = torch.tensor([1.0, 0, 1, 0, 0, 1, 1, torch.nan])
    ids = torch.tensor([0, 0, 1, 0, 0, 1, 1, 0])
    assert seen["listed"]
    close(seen["quantile"], quantile_advantages(rewards, ids, 0.4, **VERL_LIKE))
    close(seen["high"], quantile_advantages(rewards, ids, 0.9, **VERL_LIKE))
    close(seen["unscaled"], quantile_advantages(rewards, ids, 0.4, scale="none"))
    # SkyRL's own estimator lets the row without tokens into its group
    polluted = mean_advantages(rewards.nan_to_num(5.0), ids, **VERL_LIKE)
    close(seen["own_mean"][:7], polluted[:7])
    keep("skyrl", seen)


def test_nemo_rl(tmp_path):
    seen = run("nemo_rl", tmp_path)
    rewards, ids = torch.tensor([1.0, 1, 0, 0, 0, 1, 0]), torch.tensor([0, 1, 0, 0, 0, 1, 1])
    for name, k in (("quantile", 0.4), ("high", 0.9), ("fallback", 0.4)):
        assert seen[name][0] == "QuantileAdvantageEstimator"
        close(seen[name][1], quantile_advantages(rewards, ids, k, **VERL_LIKE))
    assert seen["own_mean"][0] == "GRPOAdvantageEstimator"
    close(seen["own_mean"][1], mean_advantages(rewards, ids, **VERL_LIKE))
    keep("nemo_rl", seen)


@pytest.mark.parametrize("package", ["slime", "miles"])
def test_slime_and_miles(package, tmp_path):
    seen = run(package, tmp_path, package, script="slime")
    rewards = torch.tensor([1.0, 1, 0, 1, 0, 0, 0, torch.nan])
    ids = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0])
    assert seen["raw"] == [1, 1, 0, 1, 0, 0, 0, 5]
    close(seen["quantile"], quantile_advantages(rewards, ids, 0.4, **VERL_LIKE))
    close(seen["own_mean"], mean_advantages(*TWO_OF_FOUR, **VERL_LIKE))
    keep(package, seen)


def test_openrlhf(tmp_path):
    seen = run("openrlhf", tmp_path)
    close(seen["quantile"], quantile_advantages(*TWO_OF_FOUR, 0.4, divisor="n-1", eps=1e-9))
    close(seen["unscaled"], quantile_advantages(*TWO_OF_FOUR, 0.4, scale="none"))
    close(seen["own_mean"], mean_advantages(*TWO_OF_FOUR, divisor="n-1", eps=1e-9))
    assert "use group_norm (divided by the group's deviation) or dr_grpo" in seen["refusal"]
    keep("openrlhf", seen)


def test_areal(tmp_path):
    seen = run("areal", tmp_path)
    close(seen["quantile"], quantile_advantages(*TWO_OF_FOUR, 0.4, divisor="n-1", eps=1e-5))
    close(seen["own_mean"], mean_advantages(*TWO_OF_FOUR, divisor="n-1", eps=1e-5))
    whitened, missing = seen["refusals"]
    assert "set actor.adv_norm=null" in whitened
    assert "actor.reward_norm is null" in missing
    keep("areal", seen)


def test_roll(tmp_path):
    seen = run("roll", tmp_path)
    close(seen["quantile"], quantile_advantages(*TWO_OF_FOUR, 0.4, **VERL_LIKE))
    close(seen["unscaled"], quantile_advantages(*TWO_OF_FOUR, 0.4, scale="none"))
    close(seen["batch"], quantile_advantages(*TWO_OF_FOUR, 0.4, scale="batch", **VERL_LIKE))
    close(seen["untouched"], TWO_OF_FOUR[0] - 0.5)
    keep("roll", seen)


def test_prime_rl(tmp_path):
    seen = run("prime_rl", tmp_path)
    close(seen["quantile"], [1.0, 0, 0, 0, 0])
    close(seen["easy"], [0.0, 0, 0, -1])
    assert seen["flat"] == [0.0] * 7
    close(seen["with_error"][:3], [1.0, 0, 0])
    assert seen["with_error"][3] is None
    close(seen["own_mean"], [0.8, -0.2, -0.2, -0.2, -0.2])
    rewards, lengths = torch.tensor([1.0, 1, 1, 0]), torch.tensor([2.0, 4, 8, 8])
    shaped = rewards - rewards.mean() * 0.1 * lengths / 8
    close(seen["penalised"], quantile_advantages(shaped, torch.zeros(4, dtype=torch.int64), 0.4, scale="none"))
    keep("prime_rl", seen)
