"""The update phase on a fixed batch: what may be left out or cut without changing the gradient, and what may not."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, OPTConfig
from transformers.modeling_layers import GradientCheckpointingLayer

import qae.trainer.step as step_module
from qae.sampling import SamplingParams
from qae.sampling.fallback import ForwardEngine
from qae.trainer.config import TrainConfig
from qae.trainer.packing import pack_padded, packed_logprobs
from qae.trainer.step import Learner, Rows, microbatches, minibatches
from tiny_models import random_policy

PROMPTS = [[5, 6, 7, 8], [5, 6, 9], [5, 6, 10, 11, 12], [5, 6, 13]]
GROUP = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
# Two groups in which one row acts, one in which three do, and one that is flat.
ADVANTAGES = [2.0, 0, 0, 0, 0, 0, -1.5, 0, -0.7, -0.7, 0, -0.7, 0, 0, 0, 0]
LOSSES = {
    "clip": ["algorithm.preset=dapo"],
    "dual_clip": ["algorithm.preset=dapo", "algorithm.loss.dual_clip=3.0"],
    "sequence_sum": ["algorithm.preset=rloo"],
    "dr_grpo": ["algorithm.preset=dr_grpo"],
    "gspo": ["algorithm.preset=gspo"],
    "cispo": ["algorithm.loss=cispo"],
    "sapo": ["algorithm.loss=sapo", "algorithm.reduction=sequence_mean"],
    "clip_cov": ["algorithm.preset=clip_cov", "algorithm.loss.select_frac=0.2", "algorithm.loss.cov_low=0.01"],
    "kl_cov": ["algorithm.preset=kl_cov", "algorithm.loss.select_frac=0.2"],
}


def config(*overrides: str) -> TrainConfig:
    base = ("update.minibatches=1", "update.warmup=0", "update.lr=1e-3", "rollout.temperature=0.9")
    return TrainConfig.load({}, *base, *overrides)


def fixed_rows(policy, *, off_policy: float = 0.3, advantages=ADVANTAGES) -> Rows:
    """Sixteen completions of 1 to 9 tokens whose behaviour log-probs are the policy's plus noise."""
    generator = torch.Generator().manual_seed(1)
    completions = [torch.randint(2, 41, (1 + i * 5 % 9,), generator=generator).tolist() for i in range(16)]
    with torch.no_grad():
        flat = packed_logprobs(policy, pack_padded(PROMPTS, GROUP, completions, policy.device), 0.9)[0]
    t = max(map(len, completions))
    mask = torch.arange(t) < torch.tensor([len(c) for c in completions])[:, None]
    behaviour = torch.zeros(16, t).masked_scatter(mask, flat + off_policy * torch.randn(len(flat), generator=generator))
    return Rows(PROMPTS, GROUP, completions, behaviour, torch.tensor(advantages), mask)


def gradient_and_weights(overrides, *, shared=True, **rows_kwargs):
    policy = random_policy()
    learner = Learner(config(*overrides), policy, share_prompts=shared)
    rows = fixed_rows(policy, **rows_kwargs)
    gradients = []
    step = learner.optimizer.step
    learner.optimizer.step = lambda: (
        gradients.append(torch.cat([p.grad.flatten().clone() for p in learner.parameters])),
        step(),
    )
    before = torch.cat([p.detach().flatten().clone() for p in learner.parameters])
    stats = learner.learn(rows, step=1)
    after = torch.cat([p.detach().flatten() for p in learner.parameters])
    return gradients[0], after - before, stats


BEHAVIOUR = "update.behaviour_logprobs=sampler"


@pytest.mark.parametrize("name", LOSSES)
def test_skipping_rows_changes_nothing(name):
    dense, moved_dense, stats_dense = gradient_and_weights(
        [*LOSSES[name], BEHAVIOUR, "algorithm.skip_zero_advantage=off", "update.max_grad_norm=1e9"]
    )
    kept, moved_kept, stats_kept = gradient_and_weights([*LOSSES[name], BEHAVIOUR, "update.max_grad_norm=1e9"])
    assert dense.norm() > 0
    assert (dense - kept).norm() <= 1e-6 * dense.norm()
    assert (moved_dense - moved_kept).norm() <= 1e-4 * moved_dense.norm()
    assert stats_dense.rows_kept == 16
    assert stats_kept.rows_kept == 5 if name != "kl_cov" else 5 <= stats_kept.rows_kept < 16
    assert (stats_dense.clipped_low, stats_dense.clipped_high) == (stats_kept.clipped_low, stats_kept.clipped_high)
    assert stats_dense.tokens == stats_kept.tokens


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_and_shared_prompts_change_nothing(name):
    whole = gradient_and_weights([*LOSSES[name], BEHAVIOUR, "update.tokens_per_microbatch=100000"], shared=False)[0]
    cut = gradient_and_weights([*LOSSES[name], BEHAVIOUR, "update.tokens_per_microbatch=20"])[0]
    assert (whole - cut).norm() <= 1e-5 * whole.norm()


def test_kl_and_entropy_run_dense():
    for term in ("algorithm.kl=0.1", "algorithm.entropy_bonus=0.01"):
        policy = random_policy()
        reference = random_policy(seed=1) if "kl" in term else None
        learner = Learner(config(term), policy, reference=reference)
        assert learner.learn(fixed_rows(policy), step=1).rows_kept == 16


def test_kl_gradient_reaches_flat_groups():
    policy = random_policy()
    learner = Learner(config("algorithm.kl=0.1", BEHAVIOUR), policy, reference=random_policy(seed=1))
    assert learner.learn(fixed_rows(policy, advantages=[0.0] * 16), step=1).grad_norms[0] > 1e-3


def test_an_update_without_advantages_still_decays_weights_and_moments():
    policy = random_policy()
    learner = Learner(config(BEHAVIOUR), policy)
    learner.learn(fixed_rows(policy), step=1)
    moments = [learner.optimizer.state[p]["exp_avg"].clone() for p in learner.parameters]
    weights = [p.detach().clone() for p in learner.parameters]
    stats = learner.learn(fixed_rows(policy, advantages=[0.0] * 16), step=2)
    assert (stats.updates, stats.grad_norms, stats.rows_kept) == (1, [0.0], 0)
    for before, parameter in zip(moments, learner.parameters, strict=True):
        torch.testing.assert_close(learner.optimizer.state[parameter]["exp_avg"], 0.9 * before)
    assert all(not torch.equal(w, p) for w, p in zip(weights, learner.parameters, strict=True))


def test_dense_rows_with_an_overflowing_ratio_stay_finite():
    policy = random_policy()
    learner = Learner(config(BEHAVIOUR, "algorithm.skip_zero_advantage=off"), policy)
    rows = fixed_rows(policy)
    behaviour = rows.behaviour_logprobs.clone()
    behaviour[1] = -1e4
    stats = learner.learn(replace(rows, behaviour_logprobs=behaviour), step=1)
    assert (stats.updates, stats.skipped_nonfinite) == (1, 0)


def test_a_non_finite_gradient_is_left_out_and_counted():
    policy = random_policy()
    learner = Learner(config(BEHAVIOUR), policy)
    before = [p.detach().clone() for p in learner.parameters]
    stats = learner.learn(fixed_rows(policy, advantages=[float("inf"), *ADVANTAGES[1:]]), step=1)
    assert (stats.updates, stats.skipped_nonfinite) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))
    assert learner.updates_done == 1


def test_behaviour_is_recomputed_above_the_bound_and_always_for_gspo():
    for overrides, off_policy, expected in [
        ([], 0.0, False),
        ([], 0.3, True),
        ([BEHAVIOUR], 0.3, False),
        (["update.behaviour_logprobs=recompute"], 0.0, True),
        (["algorithm.preset=gspo"], 0.0, True),
    ]:
        policy = random_policy()
        stats = Learner(config(*overrides), policy).learn(fixed_rows(policy, off_policy=off_policy), step=1)
        assert stats.recomputed is expected
        assert (stats.logprob_gap_max > 0.01) is (off_policy > 0)


def test_recomputed_behaviour_is_on_policy_and_importance_weights_undo_it():
    """With ratio 1 after recomputation, weighting by exp(recomputed - sampler) restores the sampler's ratio."""
    no_clip = ["algorithm.loss.clip_low=1e6", "algorithm.loss.clip_high=1e6", "update.max_grad_norm=1e9"]
    sampler = gradient_and_weights([*no_clip, BEHAVIOUR])[0]
    weighted = gradient_and_weights([*no_clip, "update.importance_cap=1e6"])[0]
    plain = gradient_and_weights(no_clip)[0]
    assert (weighted - sampler).norm() <= 1e-5 * sampler.norm()
    assert (plain - sampler).norm() > 1e-2 * sampler.norm()


def test_masked_rows_leave_the_denominator():
    policy = random_policy()
    rows = fixed_rows(policy)
    mask = rows.mask.clone()
    mask[1] = False
    stats = Learner(config(BEHAVIOUR), policy).learn(replace(rows, mask=mask), step=1)
    assert stats.tokens == sum(map(len, rows.completions)) - len(rows.completions[1])


def test_an_update_whose_tokens_are_all_masked_is_no_update():
    policy = random_policy()
    rows = fixed_rows(policy)
    learner = Learner(config(BEHAVIOUR), policy)
    stats = learner.learn(replace(rows, mask=torch.zeros_like(rows.mask)), step=1)
    assert (stats.updates, stats.tokens, learner.updates_done) == (0, 0, 0)


def test_minibatches_keep_groups_whole_and_differ_by_one_group():
    plan = config("update.minibatches=3")
    group = [i // 4 for i in range(40)]
    cut = minibatches(plan, group, step=1, epoch=0)
    assert sorted(row for rows in cut for row in rows) == list(range(40))
    assert sorted(len(rows) for rows in cut) == [12, 12, 16]
    assert all(len({r for r in rows if group[r] == g}) in (0, 4) for rows in cut for g in range(10))
    assert cut == minibatches(plan, group, step=1, epoch=0)
    assert cut != minibatches(plan, group, step=1, epoch=1)


def test_minibatches_by_rows_and_with_fewer_groups_than_asked():
    by_rows = minibatches(config("update.minibatches=16", "update.cut=rows"), [0] * 32 + [1] * 32, step=1, epoch=0)
    assert [len(rows) for rows in by_rows] == [4] * 16
    few = minibatches(config("update.minibatches=8"), [0, 0, 1, 1], step=1, epoch=0)
    assert sorted(map(sorted, few)) == [[0, 1], [2, 3]]


def test_micro_batches_stay_within_budget_and_keep_siblings_together():
    rows = fixed_rows(random_policy())
    cut = microbatches(rows, range(16), 40, shared=True)
    assert sorted(i for micro in cut for i in micro) == list(range(16))
    assert all(rows.tokens(micro) <= 40 for micro in cut)
    assert len(cut) < len(microbatches(rows, range(16), 40, shared=False))
    assert [len(m) for m in microbatches(rows, range(16), 1, shared=True)] == [1] * 16


def test_padded_micro_batches_count_their_padding():
    """One long row beside many short ones: together they would be padded to its length."""
    short = replace(fixed_rows(random_policy()), completions=[[5] * (60 if i == 3 else 1 + i % 4) for i in range(16)])
    cut = microbatches(short, range(16), 40, shared=False)
    assert sorted(i for micro in cut for i in micro) == list(range(16))
    longest = [max(len(PROMPTS[GROUP[i]]) + len(short.completions[i]) for i in micro) for micro in cut]
    padded = [len(m) * n for m, n in zip(cut, longest, strict=True)][:-1]
    assert all(30 <= tokens <= 40 for tokens in padded)
    assert cut[-1] == [3]


def test_learning_rate_warms_up_then_follows_the_schedule():
    plan = ["update.warmup=4", "update.minibatches=2", "steps=6", "update.lr=1.0"]
    constant = Learner(config(*plan), random_policy())
    assert [constant.lr(i) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = Learner(config(*plan, "update.schedule=linear"), random_policy())
    assert [linear.lr(i) for i in (4, 8, 12)] == [1.0, 0.5, 0.0]
    cosine = Learner(config(*plan, "update.schedule=cosine"), random_policy())
    assert cosine.lr(8) == pytest.approx(0.5)


def test_bf16_copies_of_weights_are_renewed_after_every_update(monkeypatch):
    """The fused optimiser writes without raising the weights' version: a stale copy would show in the next loss."""

    def losses() -> list[float]:
        policy = replace(random_policy(), compute_dtype=torch.bfloat16)
        learner = Learner(config("update.minibatches=4", "update.lr=0.03"), policy)
        return learner.learn(fixed_rows(policy), step=1).losses

    renewed = losses()
    monkeypatch.setattr(step_module, "direct_gradients", lambda policy: nullcontext())
    assert renewed == pytest.approx(losses(), abs=0.02)
    assert max(renewed) - min(renewed) > 0.2


def test_recomputing_activations_changes_nothing():
    plain = gradient_and_weights([BEHAVIOUR])[0]
    less_memory = gradient_and_weights([BEHAVIOUR, "update.checkpoint_activations=true"])[0]
    torch.testing.assert_close(plain, less_memory, atol=1e-6, rtol=1e-5)


GPT2 = GPT2Config(vocab_size=41, n_embd=32, n_layer=2, n_head=4, n_positions=128)
OPT = OPTConfig(
    vocab_size=41, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
    word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


@pytest.mark.parametrize("shape", [GPT2, OPT], ids=["in its modules", "in the layer itself"])
def test_recomputing_activations_brings_no_dropout(shape):
    """These drop a tenth of their activations in training mode: two passes of one policy would differ."""
    policy = replace(random_policy(), model=AutoModelForCausalLM.from_config(shape).float())
    learner = Learner(config(BEHAVIOUR, "update.checkpoint_activations=true"), policy, share_prompts=False)
    layers = [m for m in policy.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert layers
    passes = []
    next(layers[0].children()).register_forward_hook(lambda *_: passes.append(1))
    one, two = (policy.model(torch.tensor([[5, 6, 7, 8]]), use_cache=False).logits for _ in range(2))
    assert torch.equal(one, two)
    one.sum().backward()
    assert len(passes) == 3, "the layer is computed again for its gradient"
    rows = fixed_rows(policy)
    one, two = (learner._logprobs(policy, rows, range(16)) for _ in range(2))
    assert torch.equal(one, two)
    ForwardEngine(policy).generate([[5, 6]], [0], [1], SamplingParams(max_tokens=2))
    assert [module for module in policy.model.modules() if module.training] == layers, "the sampler leaves them"


def test_a_model_without_layers_to_recompute_is_refused():
    model = random_policy().model
    del model.model.layers
    with pytest.raises(ValueError, match=r"^update.checkpoint_activations: \w+ has no layers that transformers can"):
        step_module._checkpoint_activations(model)
