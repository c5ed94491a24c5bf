"""What `qae doctor` asks of hosts: its judgement of numbers, settings and errors, and the command's exit codes."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from qae.cli import app
from qae.doctor import check_host, findings_text
from qae.doctor.hosts import HOSTS, _verl_notes, list_hosts, read_settings
from qae.integrations import checks
from qae.integrations.checks import PEERS, REWARDS, check_settings, compare_with_hand, hand_values, judge
from qae.integrations.finding import Finding, has_fault


def library(rewards: list[float], k: float, **options) -> list[float]:
    import torch

    from qae import quantile_advantages

    values = torch.tensor(rewards, dtype=torch.float64)
    return quantile_advantages(values, torch.arange(16) // 8, k, divisor="n-1", **options).tolist()


@pytest.mark.parametrize("k", [0.05, 0.4, 0.75, 0.8, 0.875, 0.9])
def test_hand_values_are_the_librarys(k):
    assert library(REWARDS, k) == pytest.approx(hand_values(k), abs=1e-4)


def test_a_right_host_passes_at_two_k():
    findings = compare_with_hand(library, 0.4)
    assert [f.what for f in findings] == ["groups at K=0.4", "groups at K=0.9"]
    assert not has_fault(findings)
    assert findings[0].found == "2.8284 and 0 for one success in eight, as worked by hand"


def test_a_k_that_is_not_passed_is_named():
    (ok, fault) = compare_with_hand(lambda rewards, k: library(rewards, 0.4), 0.4)
    assert ok.status == "ok"
    assert fault.status == "fault"
    assert "K did not reach the function" in fault.found


def test_the_mean_baseline_is_named():
    import torch

    from qae import mean_advantages

    found = mean_advantages(torch.tensor(REWARDS), torch.arange(16) // 8, divisor="n-1").tolist()
    assert "each group sums to 0, so this is the mean baseline" in judge("groups", found, 0.4).found


def test_whitening_is_named():
    import torch

    ours = torch.tensor(library(REWARDS, 0.4))
    finding = judge("groups", ((ours - ours.mean()) / ours.std()).tolist(), 0.4)
    assert (finding.status, finding.remedy) == ("fault", "turn the host's whitening off")
    assert "advantages are whitened after ours" in finding.found


def test_anything_else_is_said_to_be_something_else():
    assert "another baseline, or a later change" in judge("groups", [1.0] * 16, 0.4).found
    assert judge("groups", [1.0], 0.4).status == "fault"


def test_an_error_of_the_host_is_a_finding():
    def broken(rewards, k):
        raise KeyError("registry")

    assert all(f.found == "KeyError: 'registry'" for f in compare_with_hand(broken, 0.4))


@pytest.mark.parametrize(
    ("host", "settings", "key"),
    [
        ("skyrl", {"trainer.algorithm.advantage_estimator": "grpo"}, "trainer.algorithm.advantage_estimator"),
        (
            "skyrl",
            {
                "trainer.algorithm.advantage_estimator": "qae",
                "trainer.algorithm.advantage_batch_normalize": True,
            },
            "trainer.algorithm.advantage_batch_normalize",
        ),
        ("openrlhf", {"algo.advantage.estimator": "reinforce_baseline"}, "algo.advantage.estimator"),
        ("roll", {"whiten_advantages": True}, "whiten_advantages"),
        ("tunix", {"advantage_estimator": "grpo"}, "advantage_estimator"),
    ],
)
def test_settings_that_undo_it_are_named(host, settings, key):
    faults = [f for f in check_settings(PEERS[host], settings) if f.status == "fault"]
    assert [f.what for f in faults] == [key]
    assert faults[0].remedy


def test_no_settings_no_findings():
    assert all(check_settings(peer, {}) == [] for peer in PEERS.values())


def test_verls_settings_that_matter_are_noted():
    words = ["algorithm.adv_estimator=qae", "actor_rollout_ref.actor.use_kl_loss=True", "+algorithm.qae_k=0.4"]
    assert [note.what for note in _verl_notes(words)] == ["actor_rollout_ref.actor.use_kl_loss"]
    assert [note.what for note in _verl_notes(["algorithm.norm_adv_by_std_in_grpo=false"])] == [
        "algorithm.norm_adv_by_std_in_grpo"
    ]


def test_a_host_that_is_not_there_is_a_fault():
    (finding, *_) = check_host("skyrl")
    assert (finding.status, finding.what, finding.found) == ("fault", "skyrl", "not installed")


def test_a_plug_in_that_does_not_import_is_a_fault(monkeypatch):
    monkeypatch.setattr(checks, "version", lambda name: "1.0")
    monkeypatch.setitem(sys.modules, "qae.integrations.roll", None)
    (finding, *_) = check_host("roll")
    assert finding.status == "fault"
    assert "does not import: ModuleNotFoundError" in finding.found


def test_a_peer_is_asked_through_its_own_call(monkeypatch):
    """A stand-in with ROLL's function and signature; then the same with a seam that moved."""
    functions = ModuleType("roll.utils.functionals")

    def reward_norm(
        response_level_rewards, n_sample=-1, running_ctrl=None, norm_mean_type=None, norm_std_type=None
    ): ...

    functions.reward_norm = reward_norm
    for name, module in {"roll": ModuleType("roll"), "roll.utils": ModuleType("roll.utils")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "roll.utils.functionals", functions)
    monkeypatch.setattr(checks, "version", lambda name: "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "statuses", lambda: {"roll": SimpleNamespace(level="own code", sentence=lambda: "ran")})
        patch.setattr("qae.integrations.roll.warn_if_experimental", lambda host: None)
        found = check_host("roll", ["whiten_advantages=true"])
        assert [f.status for f in found[:5]] == ["ok"] * 5
        assert [f.what for f in found if f.status == "fault"] == ["whiten_advantages"]
        del functions.reward_norm
        (fault,) = [f for f in check_host("roll") if f.status == "fault"]
        assert fault.what == "seam"
        assert "quantile advantages would not reach the trainer" in fault.found


def test_hosts_are_listed_with_what_was_seen():
    found = {f.what: f for f in list_hosts()}
    assert tuple(found) == HOSTS
    assert "adapter" in found["trl"].found


def test_settings_come_from_words_and_files(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("algorithm:\n  k: 0.4\nbeta: 0.0\n")
    found = read_settings([str(file), "++algorithm.k=0.2", "--name=qae"])
    assert found == {"algorithm.k": 0.2, "beta": 0.0, "name": "qae"}
    with pytest.raises(ValueError, match="'nothing' is neither KEY=VALUE nor a YAML file"):
        read_settings(["nothing"])
    with pytest.raises(FileNotFoundError, match=r"b\.yaml does not exist"):
        read_settings(["b.yaml"])


def test_an_unknown_host_is_met_with_the_nearest():
    with pytest.raises(ValueError, match=r"no host 'tlr'; did you mean trl\? \(hosts: trl, verl, "):
        check_host("tlr")


def test_text_has_a_line_for_each_finding_and_one_for_a_remedy():
    text = findings_text([Finding("ok", "trl", "1.16.0"), Finding("fault", "K", "is 0.4", "pass it")])
    assert text == "ok     trl  1.16.0\nFAULT  K    is 0.4\n            -> pass it"


@pytest.mark.parametrize(
    ("advantages", "code", "said"),
    [
        ([2.0, 0.0, 0.0, 0.0], 0, "QAE is active"),
        ([1.5, -0.5, -0.5, -0.5], 1, "QAE is NOT active"),
        ([0.0, 0.0, 0.0, 0.0], 1, "not QAE"),
        (None, 3, "cannot tell"),
    ],
)
def test_exit_codes_of_a_run(tmp_path, advantages, code, said):
    rewards = [1.0, 0.0, 0.0, 0.0]
    rows = [{"prompt_id": 1, "reward": r, "advantage": a} for r, a in zip(rewards, advantages or rewards, strict=True)]
    if advantages is None:
        rows = [{**row, "reward": 1.0, "advantage": 0.0} for row in rows]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "run.jsonl")])
    assert done.exit_code == code
    assert done.output.startswith(said)


def test_exit_code_of_a_fault():
    done = CliRunner().invoke(app, ["doctor", "skyrl"])
    assert done.exit_code == 1
    assert "FAULT" in done.output
