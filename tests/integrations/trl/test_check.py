"""`qae doctor trl`: well, and with one fault planted at a time."""

import sys

import pytest
from typer.testing import CliRunner

from qae.cli import app
from qae.doctor import check_host
from trl_cases import MARKS

pytestmark = MARKS


def faults(*arguments):
    return [finding for finding in check_host("trl", arguments) if finding.status == "fault"]


def test_it_is_well(tmp_path):
    (tmp_path / "grpo.yaml").write_text("quantile_k: 0.6\nbeta: 0.04\nscale_rewards: none\n")
    done = CliRunner().invoke(app, ["doctor", "trl", str(tmp_path / "grpo.yaml")])
    assert done.exit_code == 0, done.output
    for line in ("ok     groups at K=0.6", "ok     loss at K=0.6", "ok     groups at K=0.9", "note   beta"):
        assert line in done.output


def test_a_plug_in_that_does_not_import_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "qae.integrations.trl.skip", None)
    monkeypatch.delitem(sys.modules, "qae.integrations.trl.check", raising=False)
    (fault,) = faults()
    assert "does not import: ModuleNotFoundError" in fault.found
    assert "qae.integrations.trl.skip" in fault.found


def test_a_moved_seam_is_named(monkeypatch):
    from trl import GRPOTrainer

    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    (fault,) = faults()
    assert (fault.what, fault.found) == ("seam", "GRPOTrainer has no method _calculate_rewards")
    assert "trl==1.16" in fault.remedy


def test_whitening_on_the_way_to_the_loss_is_named(monkeypatch):
    from trl import GRPOTrainer

    own = GRPOTrainer._prepare_inputs

    def whitened(self, batch):
        inputs = own(self, batch)
        advantages = inputs["advantages"]
        return inputs | {"advantages": (advantages - advantages.mean()) / advantages.std()}

    monkeypatch.setattr(GRPOTrainer, "_prepare_inputs", whitened)
    found = faults()
    assert [fault.what for fault in found] == ["loss at K=0.4", "loss at K=0.9"]
    assert all("they are whitened on the way from scoring to the loss" in fault.found for fault in found)


def test_a_k_that_is_not_passed_is_named(monkeypatch):
    from qae.integrations.trl import settings

    (fault,) = faults("beta=0.0")
    assert (fault.what, fault.found) == ("quantile_k", "K is not passed, so 0.4 is used")

    def forget(cls, keywords):
        keywords.pop("quantile_k")
        return cls()

    monkeypatch.setattr(settings.QuantileSettings, "take", classmethod(forget))
    (fault,) = faults("quantile_k=0.4")
    assert fault.what == "groups at K=0.9"
    assert "K did not reach the function" in fault.found


def test_the_mean_baseline_in_our_place_is_named(monkeypatch):
    from qae.integrations.trl import mixin

    monkeypatch.setattr(mixin, "quantile_estimator", lambda settings: mixin_mean)
    assert all("this is the mean baseline" in fault.found for fault in faults())


def mixin_mean(rewards, group_ids, **options):
    from qae import mean_advantages

    return mean_advantages(rewards, group_ids, **options)


@pytest.mark.parametrize("key", ["beta", "entropy_coef", "top_entropy_quantile"])
def test_settings_that_stop_skipping_are_noted(key):
    from qae.integrations.trl.check import _settings

    notes = [finding for finding in _settings({"quantile_k": 0.4, key: 0.5}) if finding.status == "note"]
    assert [note.what for note in notes] == [key]
