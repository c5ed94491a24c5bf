"""The shared packing against the plain one, and against the model's own forward pass."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig

from qae.trainer.keys import ConfigError
from qae.trainer.packing import pack_padded, pack_shared, packed_logprobs, packing_fault, shared_attention
from tiny_models import CONFIGS, random_policy

CPU = torch.device("cpu")
token_lists = st.lists(st.integers(2, 40), min_size=1, max_size=6)


def logprobs_and_gradient(policy, pack, prompts, parents, completions):
    policy.model.zero_grad()
    packed = pack(prompts, parents, completions, CPU)
    with shared_attention(policy.model) if packed.segments else _nothing():
        logprobs, entropies = packed_logprobs(policy, packed, 0.9)
        weights = torch.linspace(-1, 1, len(logprobs))
        (logprobs * weights + entropies * weights.flip(0)).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    return logprobs.detach(), entropies.detach(), gradient


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("kind", CONFIGS)
def test_shared_packing_equals_plain_computation(kind):
    policy = random_policy(kind)
    common = [5, 6, 7]
    prompts = [[*common, 8, 9], [*common, 10], [*common, 8, 11, 12, 13]]
    parents = [0, 0, 1, 2, 2, 2, 0]
    completions = [[4, 3], [9], [17, 20, 21, 22, 1], [30], [31, 32, 1], [31, 33], [4, 3, 2, 5, 6, 7, 8, 9, 1]]
    plain = logprobs_and_gradient(policy, pack_padded, prompts, parents, completions)
    shared = logprobs_and_gradient(policy, pack_shared, prompts, parents, completions)
    for a, b in zip(plain[:2], shared[:2], strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)
    assert (plain[2] - shared[2]).norm() <= 1e-5 * plain[2].norm()


@given(
    prefix=st.lists(st.integers(2, 40), max_size=4),
    tree=st.lists(st.tuples(token_lists, st.lists(token_lists, min_size=1, max_size=3)), min_size=1, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_any_tree_of_prompts_and_completions(prefix, tree):
    policy = random_policy()
    prompts = [prefix + rest for rest, _ in tree]
    parents = [i for i, (_, rows) in enumerate(tree) for _ in rows]
    completions = [row for _, rows in tree for row in rows]
    with torch.no_grad(), shared_attention(policy.model):
        shared = packed_logprobs(policy, pack_shared(prompts, parents, completions, CPU), 1.0)[0]
    with torch.no_grad():
        plain = packed_logprobs(policy, pack_padded(prompts, parents, completions, CPU), 1.0)[0]
    torch.testing.assert_close(shared, plain, atol=5e-5, rtol=0)


def test_every_distinct_token_stands_in_the_sequence_once():
    packed = pack_shared([[5, 6, 7], [5, 6, 8]], [0, 0, 1], [[9, 1], [10, 11, 1], [1]], CPU)
    assert packed.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 2, 3, 3, 4]]
    assert packed.source.tolist() == [2, 4, 2, 5, 6, 3]
    assert packed.targets.tolist() == [9, 1, 10, 11, 1, 1]


def test_identical_prompts_keep_one_token_of_their_own():
    packed = pack_shared([[5, 6], [5, 6]], [0, 1], [[9], [10]], CPU)
    assert packed.input_ids.tolist() == [[5, 6, 6]]


def test_probe_accepts_rotary_models_and_names_what_it_does_not():
    assert packing_fault(random_policy("qwen3")) is None
    windowed = random_policy()
    windowed.model.config.sliding_window = 16
    assert packing_fault(windowed) == "the model's attention sees a window of 16 tokens"


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=41, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(
            vocab_size=41, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=False
        ),
    ],
    ids=["bloom", "falcon"],
)
def test_biased_attention_is_refused_by_name(config):
    """ALiBi adds to the scores by position in the sequence: the model keeps its own attention."""
    policy = random_policy()
    policy = replace(policy, model=AutoModelForCausalLM.from_config(config).float().eval())
    assert packing_fault(policy) == f"the attention of {type(policy.model).__name__} cannot be replaced"


def test_rotary_positions_that_depend_on_the_length_are_refused():
    policy = random_policy()
    policy.model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert packing_fault(policy) == "dynamic rotary positions depend on the length of the sequence"


def test_a_head_that_is_not_one_linear_map_is_refused():
    policy = random_policy()
    forward = policy.model.forward

    def scaled(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out

    policy.model.forward = scaled
    with pytest.raises(ConfigError, match="computes logits in a way that the trainer does not know"):
        packing_fault(policy)
