"""Layers that add their gradients straight to `.grad` give autograd's numbers."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qae.policies import Policy, load_policy
from qae.trainer.packing import hidden_states, pack_padded, packed_logprobs
from qae.trainer.products import direct_gradients


@pytest.fixture
def policy() -> Policy:
    found = load_policy("tiny", dtype="float32", device="cpu")
    for parameter in found.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return found


PACKED = pack_padded([[3, 4, 5], [6, 7]], [0, 0, 1], [[8, 9], [10, 3, 3], [5]], torch.device("cpu"))


def flat_gradients(policy: Policy) -> Tensor:
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def gradients(policy: Policy, *, direct: bool, passes: int = 1) -> Tensor:
    """The flat gradient of a sum of log-probs and entropies, from zero, over some backward passes."""
    for parameter in policy.model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    weight_grad = policy.model.get_output_embeddings().weight.grad if direct else None

    def once() -> None:
        logprobs, entropies = packed_logprobs(policy, PACKED, 0.7, weight_grad=weight_grad)
        (logprobs.sum() + 0.3 * entropies.sum()).backward()

    for _ in range(passes):
        if direct:
            with direct_gradients(policy):
                once()
        else:
            once()
    return flat_gradients(policy)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("passes", [1, 3])
def test_fp32_gradients_are_autograds(policy: Policy, passes: int):
    assert (
        relative(gradients(policy, direct=True, passes=passes), gradients(policy, direct=False, passes=passes)) < 1e-6
    )


def test_bf16_gradients_are_autocasts(policy: Policy):
    half = replace(policy, compute_dtype=torch.bfloat16)
    ours, autocasts = gradients(half, direct=True), gradients(half, direct=False)
    exact = gradients(policy, direct=False)
    # As near to autocast's as a different order of the same roundings, and no further from the exact ones.
    assert relative(ours, autocasts) < 0.01
    assert relative(ours, exact) < 1.2 * relative(autocasts, exact)


def test_a_changed_weight_is_copied_again(policy: Policy):
    half = replace(policy, compute_dtype=torch.bfloat16)
    with direct_gradients(half), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = hidden_states(half.model, PACKED)
        for parameter in half.model.parameters():
            parameter.mul_(1.5)
        after = hidden_states(half.model, PACKED)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = hidden_states(half.model, PACKED)
    assert not torch.equal(before, after)
    assert torch.equal(after, expected)


def test_a_layer_without_a_gradient_buffer_is_left_to_autograd(policy: Policy):
    frozen = policy.model.get_decoder().layers[0].self_attn.q_proj
    frozen.weight.requires_grad_(requires_grad=False)
    frozen.weight.grad = None
    with direct_gradients(policy):
        assert "forward" not in vars(frozen)
        assert "forward" in vars(policy.model.get_decoder().layers[1].self_attn.q_proj)
    assert relative(gradients(policy, direct=True), gradients(policy, direct=False)) < 1e-6


def test_layers_are_restored_after_an_error(policy: Policy):
    with pytest.raises(RuntimeError, match="stop"), direct_gradients(policy):
        raise RuntimeError("stop")
    assert not any("forward" in vars(module) for module in policy.model.modules())


def test_lora_gradients_are_autograds():
    adapted = load_policy("tiny", dtype="float32", device="cpu", lora={"r": 4})
    for name, parameter in adapted.model.named_parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    assert relative(gradients(adapted, direct=True), gradients(adapted, direct=False)) < 1e-6
