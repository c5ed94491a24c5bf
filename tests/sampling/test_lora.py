"""Adapters are in the sampled distribution, and the training model is not disturbed."""

import dataclasses

import pytest
import torch

from qae.sampling import SamplingParams, make_engine
from qae.sampling.builtin import BuiltinEngine
from qae.sampling.fallback import ForwardEngine
from qae.sampling.rng import row_key
from random_policies import make_policy

peft = pytest.importorskip("peft")
# peft still asks transformers by names that transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
PROMPT = [5, 9, 200, 31]


def with_adapter(name, *, wrap, **options):
    policy = make_policy(name)
    config = peft.LoraConfig(r=4, lora_alpha=16, **({"target_modules": "all-linear"} | options))
    if wrap:
        model = peft.get_peft_model(policy.model, config)
    else:
        model = peft.inject_adapter_in_model(config, policy.model, "default")
    generator = torch.Generator().manual_seed(3)
    for key, parameter in model.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return dataclasses.replace(policy, model=(model.get_base_model() if wrap else model).eval())


@torch.no_grad()
def check(policy, engine):
    completions = engine.generate([PROMPT], [0] * 4, [row_key(0, i) for i in range(4)], SamplingParams(max_tokens=8))
    for c in completions:
        logits = policy.model(input_ids=torch.tensor([PROMPT + c.token_ids])).logits[0, len(PROMPT) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(c.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(c.logprobs, expected, atol=1e-4, rtol=0)
    return [c.token_ids for c in completions]


@pytest.mark.parametrize(
    ("name", "wrap", "options"),
    [
        ("llama", False, {}),
        ("llama-biases", True, {}),
        ("qwen2", True, {"bias": "lora_only"}),
        ("qwen3", False, {"target_modules": ["q_proj", "down_proj"]}),
        ("llama", True, {"target_modules": ["v_proj", "embed_tokens"], "use_rslora": True}),
        ("llama", True, {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
        ("gpt2", True, {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
)
def test_sampled_logprobs_are_those_of_the_adapted_model(name, wrap, options):
    policy = with_adapter(name, wrap=wrap, **options)
    before = {key: p.clone() for key, p in policy.model.named_parameters()}
    trainable = {key for key, p in policy.model.named_parameters() if p.requires_grad}
    engine = make_engine("builtin", policy)
    assert type(engine) is (ForwardEngine if name == "gpt2" else BuiltinEngine)
    adapted = check(policy, engine)
    assert adapted != check(make_policy(name), make_engine("builtin", make_policy(name)))
    for key, p in policy.model.named_parameters():
        assert torch.equal(p, before[key])
        assert p.requires_grad == (key in trainable)


def test_an_adapter_that_is_switched_off_is_not_merged():
    policy = with_adapter("llama", wrap=False)
    for module in policy.model.modules():
        if hasattr(module, "base_layer"):
            module.enable_adapters(False)
    check(policy, make_engine("builtin", policy))


def test_a_merged_adapter_is_not_added_twice():
    policy = with_adapter("llama", wrap=False)
    for module in policy.model.modules():
        if hasattr(module, "base_layer"):
            module.merge()
    check(policy, make_engine("builtin", policy))


@pytest.mark.parametrize(("name", "options"), [("llama", {"use_dora": True}), ("llama-biases", {"lora_bias": True})])
def test_an_adapter_that_is_no_additive_delta_takes_the_forward_pass(name, options):
    policy = with_adapter(name, wrap=True, **options)
    engine = make_engine("builtin", policy)
    assert type(engine) is ForwardEngine
    check(policy, engine)
