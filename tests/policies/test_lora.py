import builtins

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from qae.policies import PolicyError, has_lora, load_adapter, load_policy, merged_state_dict, save_policy
from qae.policies.quiet import no_progress_bars

IDS = torch.tensor([[5, 9, 14, 33, 60]])


@pytest.fixture
def policy(qwen3_directory):
    """A policy whose adapters have learned something."""
    policy = load_policy(str(qwen3_directory), device="cpu", lora={"r": 4, "alpha": 8})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return policy


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def load(directory):
    with no_progress_bars():
        return AutoModelForCausalLM.from_pretrained(directory)


def test_only_adapters_train_and_they_change_nothing_at_first(qwen3_directory):
    plain = load_policy(str(qwen3_directory), device="cpu")
    adapted = load_policy(str(qwen3_directory), device="cpu", lora={})
    trainable = [name for name, p in adapted.model.named_parameters() if p.requires_grad]
    assert trainable
    assert all(".lora_A." in name or ".lora_B." in name for name in trainable)
    assert not any("lm_head" in name or "embed" in name for name in trainable)
    assert type(adapted.model) is type(plain.model)
    assert torch.equal(logits(adapted.model), logits(plain.model))


def test_adapters_start_the_same_whatever_the_global_random_state(qwen3_directory):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(load_policy(str(qwen3_directory), device="cpu", lora={"r": 2}).model.state_dict())
        assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_merged_weights_compute_what_the_adapted_model_computes(policy, qwen3_directory):
    plain = load(qwen3_directory)
    assert not torch.allclose(logits(plain), logits(policy.model), atol=1e-2)
    merged = merged_state_dict(policy.model)
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    torch.testing.assert_close(logits(plain), logits(policy.model), atol=1e-5, rtol=1e-5)


def test_without_adapters_the_merged_weights_are_the_weights(qwen3_directory):
    model = load_policy(str(qwen3_directory), device="cpu").model
    assert not has_lora(model)
    merged = merged_state_dict(model)
    assert all(torch.equal(tensor, merged[name]) for name, tensor in model.state_dict().items())


# peft asks transformers for a deprecated alias
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_save_holds_the_merged_model_and_the_adapter_and_changes_nothing(policy, qwen3_directory, tmp_path):
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    expected = logits(policy.model)
    save_policy(policy, tmp_path)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())
    torch.testing.assert_close(logits(load(tmp_path)), expected, atol=1e-5, rtol=1e-5)
    by_peft = PeftModel.from_pretrained(load(qwen3_directory), tmp_path / "adapter")
    torch.testing.assert_close(logits(by_peft), expected, atol=1e-6, rtol=1e-6)


def test_a_saved_adapter_goes_on_bit_for_bit(policy, qwen3_directory, tmp_path):
    save_policy(policy, tmp_path)
    again = load_policy(str(qwen3_directory), device="cpu", lora={"r": 4, "alpha": 8})
    load_adapter(again.model, tmp_path / "adapter")
    assert torch.equal(logits(again.model), logits(policy.model))


def test_an_adapter_of_another_rank_is_refused(policy, qwen3_directory, tmp_path):
    save_policy(policy, tmp_path)
    other = load_policy(str(qwen3_directory), device="cpu", lora={"r": 2})
    with pytest.raises(PolicyError, match=r"other layers or another rank than policy\.lora"):
        load_adapter(other.model, tmp_path / "adapter")
    with pytest.raises(PolicyError, match=r"no LoRA adapter in .* \(looked for adapter_model.safetensors\)"):
        load_adapter(other.model, tmp_path)


def test_an_unknown_option_is_refused(qwen3_directory):
    with pytest.raises(PolicyError, match=r"policy.lora.rank: unknown option; options are r, alpha, dropout"):
        load_policy(str(qwen3_directory), device="cpu", lora={"rank": 4})


def test_without_peft_the_extra_is_named(qwen3_directory, monkeypatch):
    real = builtins.__import__

    def no_peft(name, *args, **kwargs):
        if name.partition(".")[0] == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_peft)
    with pytest.raises(PolicyError, match=r"policy.lora needs peft: pip install 'qae\[lora\]'"):
        load_policy(str(qwen3_directory), device="cpu", lora={"r": 4})
