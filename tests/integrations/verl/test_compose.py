"""The recipes, and what a configuration can ask for, against verl's real configuration and its own validation."""

from typing import Any

import pytest

from qae.engines.verl.data import assumed_prompts
from qae.engines.verl.overrides import command
from qae.engines.verl.refusals import refuse
from qae.integrations.verl.checks import compose
from qae.trainer.config import TrainConfig
from verl_places import PLACE, PROMPTS

pytestmark = pytest.mark.verl
PAPER = ["qwen3-8b-dapo", "qwen3-8b-clip-cov", "qwen3-8b-kl-cov", "qwen3-14b-dapo", "qwen3-30b-a3b-gspo"]


def composed(config: TrainConfig, prompts: Any) -> Any:
    """verl's configuration, made into its own dataclasses and validated as its program does."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    refuse(config)
    found = compose(command(config, PLACE, prompts)[3:])
    validate_config(config=found, use_reference_policy=need_reference_policy(found), use_critic=need_critic(found))
    for section in ("actor", "rollout"):
        omega_conf_to_dataclass(found.actor_rollout_ref[section])
    assert not need_critic(found)
    return found


@pytest.mark.parametrize("advantage", ["quantile", "mean"])
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_compose(name: str, advantage: str) -> None:
    config = TrainConfig.load(f"paper/{name}", f"algorithm.advantage={advantage}")
    found = composed(config, assumed_prompts(config))
    actor, algorithm = found.actor_rollout_ref.actor, found.algorithm
    assert algorithm.adv_estimator == ("qae" if advantage == "quantile" else "qae_mean")
    assert algorithm.get("qae_k") == (0.4 if advantage == "quantile" else None)
    assert found.data.train_batch_size == 512 and found.actor_rollout_ref.rollout.n == 16
    assert actor.ppo_mini_batch_size == (128 if "gspo" in name else 32)
    assert found.data.max_response_length == 20480 and actor.optim.lr == 1e-6 and actor.optim.lr_warmup_steps == 0
    assert found.reward.reward_kwargs.overlong_buffer_cfg.len == 4096
    assert found.algorithm.filter_groups.enable == ("dapo" in name)
    assert not actor.use_kl_loss and actor.entropy_coeff == 0


@pytest.mark.parametrize(
    "words",
    [
        ["engine.platform=cpu", "engine.workers=2"],
        ["algorithm.kl=0.01", "algorithm.entropy_bonus=0.001"],
        ["algorithm.preset=dr_grpo"],
        ["algorithm.preset=rloo"],
        ["algorithm.loss=sapo"],
        ["algorithm.loss=cispo"],
        ["update.behaviour_logprobs=sampler"],
        ["update.behaviour_logprobs=recompute", "update.importance_cap=2", "update.schedule=cosine"],
        ["algorithm.overlong.buffer_tokens=8", "policy.dtype=float32", "update.checkpoint_activations=true"],
    ],
)
def test_what_can_be_asked_for_composes(words: list[str]) -> None:
    composed(TrainConfig.load("tiny", "engine=verl", "engine.workers=4", *words), PROMPTS)


def test_lora_composes() -> None:
    """Without verl's own validation, which imports vLLM as soon as there is LoRA."""
    config = TrainConfig.load("tiny", "engine=verl", "engine.workers=4", "policy.lora.r=8", "policy.lora.lora_alpha=16")
    model = compose(command(config, PLACE, PROMPTS)[3:]).actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha) == (8, 16)
