"""The adapters' own arithmetic-free part: groups, rows that nobody trains on, scale, K, refusals; without the hosts.

`tests/integrations/hosts` runs the same adapters in the hosts' code, where that is at hand.
"""

import runpy
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch

from qae import quantile_advantages
from qae.integrations import areal, nemo_rl, openrlhf, roll, rows, skyrl, slime, tunix, unsloth
from qae.integrations.status import ExperimentalHostWarning

HOST = {"divisor": "n-1", "eps": 1e-6}
REWARDS = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
IDS = torch.arange(8) // 4
MIXED = [5, 0, 7, 2, 1, 6, 4, 3]

pytestmark = pytest.mark.filterwarnings("ignore::qae.integrations.status.ExperimentalHostWarning")


@pytest.fixture(autouse=True)
def no_k(monkeypatch):
    monkeypatch.delenv(rows.K_VARIABLE, raising=False)


def close(found, expected):
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float32), expected.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [0.4, 0.9])
@pytest.mark.parametrize("by_std", [True, False])
def test_skyrl_groups_by_uid_and_leaves_out_rows_without_tokens(k, by_std):
    mask = torch.ones(9, 2)
    mask[8] = 0
    tokens = torch.zeros(9, 2)
    tokens[:, 1] = torch.cat([REWARDS[MIXED], torch.tensor([9.0])])
    uids = [f"prompt {IDS[i]}" for i in MIXED] + ["prompt 0"]
    found, returns = skyrl.quantile_estimator(
        token_level_rewards=tokens, response_mask=mask, index=uids, k=k, grpo_norm_by_std=by_std, values=None
    )
    expected = quantile_advantages(REWARDS, IDS, k, scale="std" if by_std else "none", **HOST)[MIXED]
    close(found[:8, 0], expected)
    assert found[8].tolist() == [0, 0]
    assert returns is found


def test_skyrl_registers_over_its_own_older_self(monkeypatch):
    class Registry:
        functions: dict = {"qae": "old"}  # noqa: RUF012

        list_available = classmethod(lambda cls: list(cls.functions))
        unregister = classmethod(lambda cls, name: cls.functions.pop(name))

        @classmethod
        def register(cls, name, function):
            assert name not in cls.functions
            cls.functions[name] = function

    monkeypatch.setattr(skyrl, "registry_module", lambda: SimpleNamespace(AdvantageEstimatorRegistry=Registry))
    assert skyrl.register(0.2) == "qae"
    assert Registry.functions["qae"].keywords == {"k": 0.2}


def test_skyrl_says_what_to_install():
    with pytest.raises(ModuleNotFoundError, match=r"SkyRL is not installed: none of .*; pip install skyrl"):
        skyrl.registry_module()


def sample(group, reward, **options):
    plain = {"group_index": group, "rollout_id": None, "remove_sample": False, "effective_response_length": 3}
    return SimpleNamespace(**{**plain, **options}, get_reward_value=lambda args: reward)


def test_slime_groups_are_ids_of_any_size():
    samples = [sample(int(IDS[i]), float(REWARDS[i])) for i in MIXED if i != 6]
    raw, found = slime.quantile_rewards(SimpleNamespace(grpo_std_normalization=True), samples)
    kept = [i for i in MIXED if i != 6]
    assert raw == REWARDS[kept].tolist()
    close(found, quantile_advantages(REWARDS[kept], IDS[kept], 0.4, **HOST))


def test_slime_counts_a_rollout_once_and_leaves_out_what_is_not_trained():
    samples = [sample(0, 1.0, rollout_id=7), sample(0, 1.0, rollout_id=7), sample(0, 0.0), sample(0, 0.0)]
    samples += [sample(0, 9.0, remove_sample=True), sample(0, 9.0, effective_response_length=0)]
    _, found = slime.quantile_rewards(SimpleNamespace(grpo_std_normalization=False), samples)
    assert found == [1, 1, 0, 0, 0, 0]
    _, found = slime.quantile_rewards(SimpleNamespace(qae_k=0.9, grpo_std_normalization=False), samples)
    assert found == [0, 0, -1, -1, 0, 0]


def test_nemo_rl_groups_are_equal_prompts():
    prompts = torch.stack([torch.tensor([3, int(i)]) for i in IDS[MIXED]])
    mask = torch.ones(8, 3)
    estimator = nemo_rl.QuantileAdvantageEstimator(SimpleNamespace(k=0.4, normalize_rewards=True), None)
    found = estimator.compute_advantage(prompt_ids=prompts, rewards=REWARDS[MIXED], mask=mask, repeated_batch={})
    assert found.shape == mask.shape
    close(found[:, 2], quantile_advantages(REWARDS, IDS, 0.4, **HOST)[MIXED])
    assert estimator.last_metrics == {"k": 0.4, "advantage/zero_frac": 0.75}
    mask[0] = 0
    unscaled = nemo_rl.QuantileAdvantageEstimator(SimpleNamespace(normalize_rewards=False), None)
    assert unscaled.compute_advantage(prompts, REWARDS[MIXED], mask)[0].tolist() == [0, 0, 0]


def nemo_module(monkeypatch, factory):
    for name in ("nemo_rl", "nemo_rl.algorithms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    grpo, late = ModuleType("nemo_rl.algorithms.grpo"), ModuleType("nemo_rl.algorithms.grpo_sync")
    grpo._create_advantage_estimator = late._create_advantage_estimator = factory
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms.grpo", grpo)
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms.grpo_sync", late)
    return grpo, late


def test_nemo_rl_is_asked_first_in_every_module_that_holds_the_factory(monkeypatch, capsys):
    def factory(master_config):
        return "theirs"

    modules = nemo_module(monkeypatch, factory)
    nemo_rl.install(0.3)
    for module in modules:
        config = SimpleNamespace(grpo=SimpleNamespace(adv_estimator=SimpleNamespace(name="qae")), loss_fn=None)
        assert module._create_advantage_estimator(config).k == 0.3
        config.grpo.adv_estimator.name = "grpo"
        assert module._create_advantage_estimator(config) == "theirs"
    assert "K=0.3" in capsys.readouterr().out


def test_nemo_rl_with_a_moved_factory_is_refused(monkeypatch):
    nemo_module(monkeypatch, lambda config, tokenizer: None)
    with pytest.raises(RuntimeError, match=r"_create_advantage_estimator\(master_config\) is not there"):
        nemo_rl.install()


@pytest.mark.parametrize("level", ["group", "batch", None])
def test_areal_takes_its_own_divisor_and_eps(level):
    config = SimpleNamespace(mean_level="group", std_level=level, std_unbiased=False, eps=1e-3, group_size=4)
    found = areal.QuantileNormalization(config, 0.4)(REWARDS)
    scale = {"group": "std", "batch": "batch", None: "none"}[level]
    close(found, quantile_advantages(REWARDS, IDS, 0.4, scale=scale, divisor="n", eps=1e-3))


def test_areal_needs_groups():
    config = SimpleNamespace(mean_level="batch", std_level="batch", std_unbiased=True, eps=1e-5, group_size=1)
    with pytest.raises(
        ValueError, match="mean_level='batch' and group_size=1: a quantile needs groups; set mean_level"
    ):
        areal.QuantileNormalization(config, 0.4)


def roll_module(monkeypatch, function):
    for name in ("roll", "roll.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("roll.utils.functionals")
    module.reward_norm = function
    monkeypatch.setitem(sys.modules, "roll.utils.functionals", module)
    return module


def own_reward_norm(response_level_rewards, n_sample=-1, running_ctrl=None, norm_mean_type=None, norm_std_type=None):
    return response_level_rewards + 5


def test_roll_changes_group_means_only(monkeypatch):
    module = roll_module(monkeypatch, own_reward_norm)
    roll.install(0.4)
    for std, scale in (("group", "std"), ("batch", "batch"), (None, "none")):
        found = module.reward_norm(REWARDS, n_sample=4, norm_mean_type="group", norm_std_type=std)
        close(found, quantile_advantages(REWARDS, IDS, 0.4, scale=scale, **HOST))
    assert module.reward_norm(REWARDS, norm_mean_type="batch").equal(REWARDS + 5)
    with pytest.raises(ValueError, match="norm_std_type='running' with quantile advantages; use group, batch or null"):
        module.reward_norm(REWARDS, n_sample=4, norm_mean_type="group", norm_std_type="running")


def test_roll_with_another_signature_is_refused(monkeypatch):
    roll_module(monkeypatch, lambda rewards: rewards)
    with pytest.raises(RuntimeError, match=r"roll\.utils\.functionals\.reward_norm\(.*\) is not there"):
        roll.install()


def test_openrlhf_groups_follow_the_index(monkeypatch):
    maker, trainer = ModuleType(openrlhf.MAKER), ModuleType(openrlhf.TRAINER)
    seen = []

    def compute_reward(reward, kl_coef):
        seen.append(reward)
        return reward

    class RemoteExperienceMaker:
        def compute_advantages_and_returns(self, experiences):
            for experience in experiences:
                experience.rewards = experience.rewards - experience.penalty
            for experience in experiences:
                experience.advantages = maker.compute_reward(experience.rewards - 0.5, 0.0)
            return experiences

    maker.compute_reward, trainer.RemoteExperienceMaker = compute_reward, RemoteExperienceMaker
    for name in ("openrlhf", "openrlhf.trainer", "openrlhf.trainer.ppo_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, openrlhf.MAKER, maker)
    monkeypatch.setitem(sys.modules, openrlhf.TRAINER, trainer)
    openrlhf.install(0.4)
    penalty = torch.tensor([0.0, 0, 0.3, 0, 0, 0, 0, 0])

    def experiences():
        return [
            SimpleNamespace(
                index=index, rewards=REWARDS[index], penalty=penalty[index], action_mask=torch.ones(len(index), 2)
            )
            for index in (MIXED[:3], MIXED[3:])
        ]

    made = trainer.RemoteExperienceMaker()
    advantage = SimpleNamespace(estimator="group_norm")
    arguments = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage), rollout=SimpleNamespace(n_samples_per_prompt=4)
    )
    made.strategy = SimpleNamespace(args=arguments)
    for estimator, scale in (("group_norm", "std"), ("dr_grpo", "none")):
        advantage.estimator = estimator
        done = made.compute_advantages_and_returns(experiences())
        expected = quantile_advantages(REWARDS - penalty, IDS, 0.4, scale=scale, divisor="n-1", eps=1e-9)[MIXED]
        close(torch.cat([e.advantages for e in done]), expected)
        assert maker.compute_reward is compute_reward
    advantage.estimator = "reinforce_baseline"
    with pytest.raises(ValueError, match="whiten them again; use group_norm"):
        made.compute_advantages_and_returns(experiences())


def test_openrlhf_a_sibling_without_tokens_does_not_move_the_baseline():
    """OpenRLHF #1239: rewards 100 and 1, of which the first has no token; the second must not become -49.5."""
    experience = SimpleNamespace(
        index=[0, 1], rewards=torch.tensor([100.0, 1.0]), action_mask=torch.tensor([[0, 0], [1, 1]])
    )
    assert openrlhf._advantages([experience], 2, 0.4, "none")[0].tolist() == [0, 0]


def test_tunix_groups_are_runs():
    close(tunix.quantile_rows(REWARDS, 4, 0.4), quantile_advantages(REWARDS, IDS, 0.4, **HOST))


def test_unsloth_must_come_first(monkeypatch):
    trl = ModuleType("trl")
    trl.GRPOTrainer = type("GRPOTrainer", (), {})
    monkeypatch.setitem(sys.modules, "trl", trl)
    with pytest.raises(RuntimeError, match=r"trl\.GRPOTrainer is GRPOTrainer, not Unsloth's; write `import unsloth`"):
        unsloth.quantile_trainer()


def test_an_adapter_that_was_never_run_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ExperimentalHostWarning, match="unsloth is experimental"):
            unsloth.quantile_trainer()


@pytest.mark.parametrize(("given", "variable", "expected"), [(None, None, 0.4), (None, "0.2", 0.2), (0.6, "0.2", 0.6)])
def test_k_comes_from_the_caller_then_the_variable(monkeypatch, given, variable, expected):
    if variable:
        monkeypatch.setenv(rows.K_VARIABLE, variable)
    assert rows.level(given) == expected


@pytest.mark.parametrize(
    ("variable", "words"), [("high", "QAE_K='high' is not a number"), ("40", "must lie strictly between 0 and 1")]
)
def test_a_wrong_k_is_refused(monkeypatch, variable, words):
    monkeypatch.setenv(rows.K_VARIABLE, variable)
    with pytest.raises(ValueError, match=words):
        rows.level()


def test_a_hosts_script_runs_as_itself_with_the_adapter_in_place(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("HERE = 'beside'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, beside\nfrom pathlib import Path\n"
        "Path('out').write_text(repr((sys.argv[1:], beside.HERE, __name__)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["old"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(rows.K_VARIABLE, "0.4")
    installed = []
    rows.run_script("python -m x", installed.append, ["--k", "0.2", str(script), "--config", "a.yaml"])
    assert installed == [0.2]
    assert (tmp_path / "out").read_text() == "(['--config', 'a.yaml'], 'beside', '__main__')"
    with pytest.raises(ValueError, match=r"nothing to run; usage: python -m x \[--k 0\.4\] SCRIPT\.py \[ARGUMENTS\]"):
        rows.run_script("python -m x", installed.append, [])


def test_a_hosts_module_runs_with_the_arguments_that_are_left(monkeypatch):
    called = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **options: called.append((name, list(sys.argv))))
    monkeypatch.setattr(sys, "argv", ["old"])
    monkeypatch.setenv(rows.K_VARIABLE, "0.4")
    rows.run_script("python -m x", lambda k: None, ["@", "a.toml"], module="prime_rl.entrypoints.orchestrator")
    name = "prime_rl.entrypoints.orchestrator"
    assert called == [(name, [name, "@", "a.toml"])]
