"""A run's configuration in verl's words, without verl: what is carried, refused by name, and said."""

import shlex
import sys
from typing import Any

import pytest

from qae import cli
from qae.engines.verl.overrides import Prompts, command, environment, literal, overrides, shell
from qae.engines.verl.refusals import departures, refuse, refuse_task, skips, warmup_steps
from qae.tasks import make_task
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError
from verl_places import PLACE, PROMPTS

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def given(*words: str, recipe: str = "tiny", prompts: Prompts = PROMPTS) -> dict[str, Any]:
    return overrides(TrainConfig.load(recipe, "engine=verl", *words), PLACE, prompts)


def test_batch_arithmetic() -> None:
    found = given("rollout.prompts=512", "rollout.group_size=16", "update.minibatches=16", "update.epochs=2")
    assert found["data.train_batch_size"] == 512
    assert found[f"{ACTOR}ppo_mini_batch_size"] == 32
    assert found[f"{ROLLOUT}n"] == 16
    assert found[f"{ACTOR}ppo_epochs"] == 2


@pytest.mark.parametrize(
    ("words", "estimator"),
    [
        ([], "qae"),
        (["algorithm.advantage.method=linear"], "qae_linear"),
        (["algorithm.advantage=mean"], "qae_mean"),
        (["algorithm.preset=rloo"], "qae_rloo"),
        (["algorithm.advantage=leave_one_out_quantile"], "qae_loo"),
    ],
)
def test_estimators(words: list[str], estimator: str) -> None:
    assert given(*words)["algorithm.adv_estimator"] == estimator


def test_k_and_scale() -> None:
    found = given("algorithm.advantage.k=0.6", "algorithm.advantage.divisor=n-1", "algorithm.advantage.on=outcome")
    assert (found["+algorithm.qae_k"], found["+algorithm.qae_divisor"], found["+algorithm.qae_on"]) == (
        0.6,
        "n-1",
        "outcome",
    )
    assert found["algorithm.norm_adv_by_std_in_grpo"] is True
    assert given("algorithm.preset=dr_grpo")["algorithm.norm_adv_by_std_in_grpo"] is False
    assert "+algorithm.qae_k" not in given("algorithm.advantage=mean")


@pytest.mark.parametrize(
    ("preset", "mode", "reduction"),
    [
        ("dapo", "vanilla", "token-mean"),
        ("grpo", "vanilla", "seq-mean-token-mean"),
        ("dr_grpo", "vanilla", "seq-mean-token-sum-norm"),
        ("rloo", "vanilla", "seq-mean-token-sum"),
        ("gspo", "gspo", "seq-mean-token-mean"),
        ("clip_cov", "clip_cov", "token-mean"),
        ("kl_cov", "kl_cov", "token-mean"),
    ],
)
def test_presets(preset: str, mode: str, reduction: str) -> None:
    found = given(f"algorithm.preset={preset}")
    assert found[f"{ACTOR}policy_loss.loss_mode"] == mode
    assert found[f"{ACTOR}loss_agg_mode"] == reduction
    if preset == "dr_grpo":
        assert found[f"{ACTOR}loss_scale_factor"] == 72


def test_constants_of_the_losses() -> None:
    dapo = given("algorithm.preset=dapo")
    assert (dapo[f"{ACTOR}clip_ratio_low"], dapo[f"{ACTOR}clip_ratio_high"]) == (0.2, 0.28)
    assert dapo[f"{ACTOR}clip_ratio_c"] == 1e9  # never acts
    assert given("algorithm.loss.dual_clip=10")[f"{ACTOR}clip_ratio_c"] == 10
    cov = given("algorithm.preset=clip_cov")
    assert cov[f"{ACTOR}policy_loss.clip_cov_ratio"] == 2e-4 and cov[f"{ACTOR}policy_loss.clip_cov_ub"] == 5
    kl = given("algorithm.preset=kl_cov")
    assert kl[f"{ACTOR}policy_loss.kl_cov_ratio"] == 2e-3 and kl[f"{ACTOR}policy_loss.ppo_kl_coef"] == 1
    gspo = given("algorithm.preset=gspo")
    assert (gspo[f"{ACTOR}clip_ratio_low"], gspo[f"{ACTOR}clip_ratio_high"]) == (3e-4, 4e-4)


def test_dynamic_sampling_and_overlong() -> None:
    found = given("algorithm.overlong.buffer_tokens=8", "algorithm.overlong.factor=0.5")
    assert found["algorithm.filter_groups.enable"] is True and found["algorithm.filter_groups.metric"] == "acc"
    assert found["reward.reward_manager.name"] == "dapo" and found["+reward.reward_kwargs.max_resp_len"] == 72
    assert found["+reward.reward_kwargs.overlong_buffer_cfg.len"] == 8
    assert found["+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor"] == 0.5
    assert given("algorithm.preset=grpo")["algorithm.filter_groups.enable"] is False


def test_kl_and_entropy() -> None:
    found = given("algorithm.kl=0.01", "algorithm.entropy_bonus=0.002")
    assert found[f"{ACTOR}use_kl_loss"] is True and found[f"{ACTOR}kl_loss_coef"] == 0.01
    assert found[f"{ACTOR}kl_loss_type"] == "low_var_kl" and found[f"{ACTOR}entropy_coeff"] == 0.002


def test_raw_prompts_are_a_template_and_chat_is_the_models_own() -> None:
    key = "actor_rollout_ref.model.custom_chat_template"
    assert given()[key] == "{%- for message in messages %}{{ message['content'] }}{%- endfor %}"
    assert "{{ '<s>' + message" in given(prompts=Prompts(raw=True, tokens=6, prefix="<s>"))[key]
    chat = given(prompts=Prompts(raw=False, tokens=6, template_kwargs={"enable_thinking": False}))
    assert key not in chat and chat["+data.apply_chat_template_kwargs.enable_thinking"] is False


def test_a_micro_batch_holds_the_longest_row() -> None:
    found = given("update.tokens_per_microbatch=10", prompts=Prompts(raw=True, tokens=30))
    assert found[f"{ACTOR}ppo_max_token_len_per_gpu"] == 30 + 72


def test_evaluation_and_checkpoints() -> None:
    found = given("eval.every=0", "steps=7", "checkpoint.every=0", "checkpoint.keep=3")
    assert found["trainer.test_freq"] == 7 and found["trainer.save_freq"] == 7
    assert found["trainer.max_actor_ckpt_to_keep"] == 3
    off = given("eval.problems=0")
    assert off["trainer.test_freq"] == -1 and off["trainer.val_before_train"] is False


def test_cpu() -> None:
    found = given("engine.platform=cpu", "engine.workers=2")
    assert found["trainer.device"] == "cpu" and found[f"{ROLLOUT}name"] == "qae_cpu"
    assert found["+ray_kwargs.ray_init.num_gpus"] == 2
    config = TrainConfig.load("tiny", "engine=verl", "engine.platform=cpu", "engine.workers=2")
    assert environment(config, PLACE)["VERL_PLATFORM"] == "cpu"
    assert "trainer.device" not in given()


def test_what_the_user_adds_comes_last() -> None:
    config = TrainConfig.load("tiny", "engine=verl", "engine.overrides=[trainer.balance_batch=False]")
    assert command(config, PLACE, PROMPTS)[-1] == "trainer.balance_batch=False"


def test_the_command_survives_a_shell() -> None:
    config = TrainConfig.load("tiny", "engine=verl", "engine.platform=cpu", "engine.workers=1")
    words = shlex.split(shell(config, PLACE, PROMPTS).replace("\\\n", " "))
    env = [word for word in words if "=" in word][: len(environment(config, PLACE))]
    assert dict(word.split("=", 1) for word in env) == environment(config, PLACE)
    assert words[len(env) :] == command(config, PLACE, PROMPTS)


def test_skipping_is_on_where_it_is_exact() -> None:
    assert skips(TrainConfig.load("tiny", "engine=verl"))
    for words in (["algorithm.preset=kl_cov"], ["algorithm.kl=0.1"], ["algorithm.skip_zero_advantage=off"]):
        config = TrainConfig.load("tiny", "engine=verl", *words)
        assert not skips(config) and "QAE_SKIP_ZERO_ADVANTAGE" not in environment(config, PLACE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["update.minibatches=7"], r"update\.minibatches=7 does not divide rollout\.prompts=32"),
        (["engine.workers=24"], r"mini-batch of 4 prompts x 8 completions cannot be shared by 24 workers"),
        (["algorithm.overlong.filter=true"], r"algorithm\.overlong\.filter=true: verl has no masking"),
        (
            ["algorithm.overlong.buffer_tokens=8", "algorithm.overlong.max_tokens=40"],
            r"overlong\.max_tokens=40 is not rollout\.max_tokens=72",
        ),
        (["algorithm.dynamic_sampling.max_refills=0"], r"max_refills=0: verl always refills"),
        (["update.schedule=linear"], r"update\.schedule=linear: verl has constant and cosine"),
        (["rollout.stop=[x]"], r"rollout\.stop=\['x'\]: verl's agent loop passes no stop strings"),
        (["rollout.engine=vllm"], r"rollout\.engine=vllm is the local engine's"),
        (["policy.lora.r=4", "policy.lora.lora_dropout=0.1"], r"policy\.lora\.lora_dropout: verl takes r, lora_alpha"),
        (["policy.device=mps"], r"policy\.device=mps contradicts engine\.platform=cuda"),
        (["engine.platform=cpu", "policy.dtype=bfloat16"], r"policy\.dtype=bfloat16 on engine\.platform=cpu"),
        (["engine.platform=cpu", "policy.lora.r=4"], r"policy\.lora on engine\.platform=cpu: verl asks vLLM"),
        (["engine.platform=cpu", "engine.nodes=2"], r"engine\.nodes=2: engine\.platform=cpu is for one machine"),
        (
            ["algorithm.preset=clip_cov", "algorithm.skip_zero_advantage=on"],
            r"skip_zero_advantage=on: verl's clip_cov chooses",
        ),
        (
            ["update.behaviour_logprobs=sampler", "update.importance_cap=2"],
            r"update\.importance_cap needs recomputed log-probs",
        ),
    ],
)
def test_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse(TrainConfig.load("tiny", "engine=verl", *words))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    config = TrainConfig.load("tiny", "engine=verl", "update.schedule=linear", "rollout.stop=[x]")
    with pytest.raises(ConfigError, match=r"update\.schedule=linear.*; rollout\.stop"):
        refuse(config)


def test_a_task_that_ends_at_a_string_is_refused() -> None:
    config = TrainConfig.load("tiny", "engine=verl")
    with pytest.raises(ConfigError, match=r"the task few_shot_arithmetic ends completions at \['\\n'\]"):
        refuse_task(make_task({"name": "few_shot_arithmetic"}, 0), config)


def test_what_it_does_in_its_own_way_is_said() -> None:
    said = " ".join(departures(TrainConfig.load("tiny", "engine=verl")))
    assert "10 updates become 1 of its steps" in said and "without the bound of 10 refills" in said
    assert warmup_steps(TrainConfig.load("tiny", "engine=verl", "update.warmup=20")) == 2  # 2.5, to even
    kl = " ".join(departures(TrainConfig.load("tiny", "engine=verl", "algorithm.preset=kl_cov")))
    assert "chooses tokens in each micro-batch" in kl and "not skipped: verl's kl_cov chooses" in kl


def test_keys_of_verl_need_verl() -> None:
    with pytest.raises(ConfigError, match=r"engine: platform=cpu belongs to engine=verl; add engine=verl"):
        TrainConfig.load("tiny", "engine.platform=cpu")


def test_literals() -> None:
    assert literal('say "a\\b"') == '"say \\"a\\\\b\\""'
    assert literal("true") == '"true"' and literal(None) == "null"


def test_the_dry_run_of_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, shown in ((["engine=verl", "engine.workers=4"], True), ([], False)):
        monkeypatch.setattr(sys, "argv", ["qae", "train", *words, "--dry-run"])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as left:
            cli.main()
        out = capsys.readouterr().out
        assert not left.value.code
        assert ("engine.workers" in out) is shown
        assert ("python -m verl.trainer.main_ppo" in out) is shown
        assert ("what verl does in its own way" in out) is shown
