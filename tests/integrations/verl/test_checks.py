"""What `qae doctor verl` asks: everything in order, and one planted fault at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qae.integrations.verl import Finding, check, checks

pytestmark = [pytest.mark.verl, pytest.mark.timeout(300)]
BROKEN = """
import sys
class Breaker:
    def find_spec(self, name, path=None, target=None):
        if name == "qae.integrations.verl.estimators":
            raise ImportError("no module named nothing")
sys.meta_path.insert(0, Breaker())
"""


def failed(found: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.detail for finding in found if not finding.ok}


def test_all_in_order() -> None:
    found = check(["algorithm.adv_estimator=qae", "+algorithm.qae_k=0.3"])
    assert failed(found) == {}
    assert {"the plug-in loads", "your overrides use it", "the trainer qae_sync loads"} <= {f.name for f in found}
    assert "K=0.4 reaches it and gives the value worked by hand" in {f.name for f in found}


@pytest.mark.parametrize(
    ("overrides", "detail"),
    [
        (["algorithm.adv_estimator=grpo"], "set it to qae"),
        (["algorithm.adv_estimator=qae"], "K is not given, so 0.4 is used: add +algorithm.qae_k=0.4"),
        (["algorithm.adv_estimator=qae", "algorithm.qae_k=0.4"], "ConfigCompositionException"),
        (["algorithm.adv_estimator=qae", "+algorithm.qae_k=40"], "must be a fraction"),
    ],
)
def test_a_fault_in_the_users_settings(overrides: list[str], detail: str) -> None:
    found = failed([checks._own_settings(overrides)])
    assert list(found) == ["your overrides use it"] and detail in found["your overrides use it"]


def test_a_broken_plugin_is_loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = failed(check())
    assert "ImportError: no module named nothing" in found["the plug-in loads"]
    said = subprocess.run([sys.executable, "-c", "import verl"], capture_output=True, text=True, check=True).stderr
    assert "qae: its verl plug-in could not be loaded (ImportError: no module named nothing)" in said


def test_plugins_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert "switches it off" in failed([checks._switched_off()])["verl may load it"]
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "qae.integrations.verl.plugin")
    assert not failed([checks._switched_off()])


def test_whitening_after_our_estimator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    own = checks.advantages_of

    def whitened(config) -> list[float]:
        advantages = torch.tensor(own(config))
        return ((advantages - advantages.mean()) / advantages.std()).tolist()

    monkeypatch.setattr(checks, "advantages_of", whitened)
    finding = checks._by_hand(0.4)
    assert not finding.ok
    assert "advantages are whitened after ours; turn the host's whitening off" in finding.detail
