"""Tunix itself, on the CPU: our estimator registered, two optimiser steps trained, values equal to the library's."""

import random

import pytest
import torch

from qae import mean_advantages, quantile_advantages
from qae.integrations.status import record
from qae.integrations.tunix import register

pytestmark = [pytest.mark.tunix, pytest.mark.filterwarnings("ignore")]
GROUP = 4
PROMPTS = 2


def reward(prompts, completions, **_):
    return [float(random.Random(completion).random() < 0.4) for completion in completions]


def make_learner(estimator: str, seen: list, *, variant: str = "GRPOConfig"):
    import jax
    import numpy as np
    import optax
    from flax import nnx
    from tunix.rl import rl_cluster
    from tunix.rl.grpo import dapo_learner, grpo_learner
    from tunix.rl.rollout import base_rollout
    from tunix.tests import test_common

    vocab = test_common.MockVocab()
    sizes = test_common.ModelConfig(vocab_size=vocab.GetPieceSize())
    actor = test_common.ToyTransformer(config=sizes, rngs=nnx.Rngs(0))
    reference = test_common.ToyTransformer(config=sizes, rngs=nnx.Rngs(0))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    cluster = rl_cluster.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=vocab,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(
                (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT), mesh
            ),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.sgd(1e-1), eval_every_n_steps=10, max_steps=2, mini_batch_size=PROMPTS
            ),
            rollout_config=base_rollout.RolloutConfig(
                max_tokens_to_generate=8, max_prompt_length=16, kv_cache_size=64, temperature=1.0
            ),
        ),
    )

    def listen(prompts, completions, rewards, advantages, **_):
        seen.append((np.array(rewards, dtype=np.float32), np.array(advantages, dtype=np.float32)))
        return {"advantage/zero_frac": (float((np.array(advantages) == 0).mean()), np.mean)}

    configs = {"GRPOConfig": grpo_learner.GRPOConfig, "DAPOConfig": dapo_learner.DAPOConfig}
    learners = {"GRPOConfig": grpo_learner.GRPOLearner, "DAPOConfig": dapo_learner.DAPOLearner}
    config = configs[variant](advantage_estimator=estimator, num_generations=GROUP, num_iterations=1)
    options = {"rl_cluster": cluster, "algo_config": config, "reward_fns": reward, "metric_fns": [listen]}
    return learners[variant](**options)


def train(estimator: str, *, variant: str = "GRPOConfig"):
    import jax
    import numpy as np
    from flax import nnx

    seen: list = []
    learner = make_learner(estimator, seen, variant=variant)
    trainer = learner.rl_cluster.actor_trainer
    before = jax.tree.map(np.array, nnx.state(trainer.model, nnx.Param))
    prompts = (["input string", "hello world"], ["Hello there", "My name is Morgane"])
    learner.train([{"prompts": np.array(batch)} for batch in prompts])
    after = jax.tree.map(np.array, nnx.state(trainer.model, nnx.Param))
    assert trainer.train_steps == 2
    moved = [float(abs(a - b).max()) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    rewards = torch.cat([torch.from_numpy(r) for r, _ in seen])
    advantages = torch.cat([torch.from_numpy(a) for _, a in seen])
    assert len(rewards) == 2 * PROMPTS * GROUP
    return rewards, advantages, max(moved)


@pytest.mark.parametrize("k", [0.4, 0.9])
def test_two_steps_are_trained_with_the_librarys_values(k):
    from importlib.metadata import version

    name = register(k)
    rewards, advantages, moved = train(name)
    expected = quantile_advantages(rewards, torch.arange(len(rewards)) // GROUP, k, divisor="n-1", eps=1e-6)
    torch.testing.assert_close(advantages, expected, rtol=0, atol=1e-6)
    assert (advantages != 0).any()
    assert moved > 0
    record("tunix", "trained", version("google-tunix"), "tests/integrations/tunix/test_training.py", source="wheel")


def test_its_own_estimator_has_the_mean_baseline_that_we_say_it_has():
    rewards, advantages, _ = train("grpo")
    ids = torch.arange(len(rewards)) // GROUP
    torch.testing.assert_close(advantages, mean_advantages(rewards, ids, divisor="n-1", eps=1e-6), rtol=0, atol=1e-5)


def test_its_dapo_takes_it_too():
    rewards, advantages, moved = train(register(0.4, name="qae_dapo"), variant="DAPOConfig")
    expected = quantile_advantages(rewards, torch.arange(len(rewards)) // GROUP, 0.4, divisor="n-1", eps=1e-6)
    torch.testing.assert_close(advantages, expected, rtol=0, atol=1e-6)
    assert moved > 0


def test_the_doctor_finds_it_well():
    from qae.doctor import check_host

    findings = check_host("tunix", ["advantage_estimator=qae"])
    assert [f for f in findings if f.status == "fault"] == []
    assert {"groups at K=0.4", "groups at K=0.9"} <= {f.what for f in findings}
