import math
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loss_cases import law
from qae import logprobs as module
from qae.logprobs import token_entropy, token_logprobs


def case(m: int = 7, v: int = 11, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64):
    rng = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((m, d), (v, d), (v,)))
    return hidden.to(dtype), weight.to(dtype), torch.randint(0, v, (m,), generator=rng), bias.to(dtype)


def plain(hidden, weight, targets, temperature=1.0, bias=None):
    """The same by torch's own autograd, holding [m v]."""
    logits = hidden @ weight.T
    logs = torch.log_softmax((logits if bias is None else logits + bias) / temperature, -1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def grads_of(function, inputs, targets, weights, **settings):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    results = function(leaves[0], leaves[1], targets, bias=leaves[2] if len(leaves) > 2 else None, **settings)
    sum((w * r).sum() for w, r in zip(weights, results, strict=True) if w is not None).backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_values_by_hand(temperature):
    """Logits log 3 / T and 0 give probabilities 3/4 and 1/4 at the temperature that undoes the scale."""
    hidden = torch.tensor([[math.log(3) * temperature], [0.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    logprobs, entropies = token_logprobs(hidden, weight, torch.tensor([1, 0]), temperature=temperature)
    expected = torch.tensor([0.75 * math.log(4 / 3) + 0.25 * math.log(4), math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(
        logprobs, torch.tensor([-math.log(4), -math.log(2)], dtype=torch.float64), rtol=1e-15, atol=0
    )
    torch.testing.assert_close(entropies, expected, rtol=1e-15, atol=0)


@law
@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=2), min_size=2, max_size=6),
    st.lists(st.floats(-3, 3), min_size=2, max_size=2),
    st.floats(0.25, 4.0),
)
def test_equals_the_definition_and_its_bounds(weight, hidden, temperature):
    logits = [sum(w * h for w, h in zip(row, hidden, strict=True)) / temperature for row in weight]
    total = math.fsum(map(math.exp, logits))
    probs = [math.exp(z) / total for z in logits]
    v = len(weight)
    tensors = torch.tensor([hidden] * v, dtype=torch.float64), torch.tensor(weight, dtype=torch.float64)
    logprobs, entropies = token_logprobs(*tensors, torch.arange(v), temperature=temperature)
    for logprob, entropy, p in zip(logprobs.tolist(), entropies.tolist(), probs, strict=True):
        assert logprob == pytest.approx(math.log(p), rel=1e-12, abs=1e-12)
        assert entropy == pytest.approx(-math.fsum(q * math.log(q) for q in probs), rel=1e-12, abs=1e-12)
        assert -1e-15 <= entropy <= math.log(v) + 1e-15
        assert logprob <= 0


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 7, 100, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("ask", ["both", "logprobs", "entropies"])
def test_values_and_gradients_equal_the_plain_computation_for_every_chunk(chunk_tokens, temperature, with_bias, ask):
    hidden, weight, targets, bias = case()
    inputs = [hidden, weight, *([bias] if with_bias else [])]
    ours = token_logprobs(
        hidden, weight, targets, temperature=temperature, bias=bias if with_bias else None, chunk_tokens=chunk_tokens
    )
    theirs = plain(hidden, weight, targets, temperature, bias if with_bias else None)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)
    rng = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(7, generator=rng, dtype=torch.float64) if ask in ("both", x) else None
        for x in ("logprobs", "entropies")
    ]
    got = grads_of(token_logprobs, inputs, targets, weights, temperature=temperature, chunk_tokens=chunk_tokens)
    expected = grads_of(plain, inputs, targets, weights, temperature=temperature)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk_tokens", [2, 100])
def test_gradcheck(chunk_tokens):
    hidden, weight, targets, bias = case(m=5, v=4, d=3)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_logprobs(h, w, targets, temperature=0.8, bias=b, chunk_tokens=chunk_tokens), leaves
    )


@law
@given(seed=st.integers(0, 1000), shift=st.floats(-50, 50))
def test_a_constant_added_to_all_logits_changes_nothing(seed, shift):
    hidden, weight, targets, bias = case(seed=seed)
    once = token_logprobs(hidden, weight, targets, bias=bias)
    moved = token_logprobs(hidden, weight, targets, bias=bias + shift)
    for a, b in zip(once, moved, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    grad = grads_of(token_logprobs, (hidden, weight, bias), targets, [torch.ones(7), torch.ones(7)])[2]
    assert abs(float(grad.sum())) < 1e-13


@law
@given(seed=st.integers(0, 1000))
def test_the_score_has_mean_zero_and_the_entropy_falls_along_its_own_score(seed):
    """E[grad log p] = 0, and grad H = -E[log p grad log p]: both summed over the whole vocabulary."""
    hidden, weight, _, _ = case(m=1, seed=seed)
    everyone = hidden.expand(11, 5).clone(), torch.arange(11)
    logs = token_logprobs(everyone[0], weight, everyone[1])[0]
    for coefficient, expected in (
        (logs.exp(), torch.zeros(1, 5, dtype=torch.float64)),
        (-logs.exp() * logs, grads_of(token_logprobs, (hidden, weight), everyone[1][:1], [None, torch.ones(1)])[0]),
    ):
        grad = grads_of(token_logprobs, (everyone[0], weight), everyone[1], [coefficient, None])[0]
        torch.testing.assert_close(grad.sum(0, keepdim=True), expected, rtol=1e-11, atol=1e-13)


DTYPES = [(torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("hidden_dtype", "weight_dtype"), DTYPES)
def test_arithmetic_is_fp32_whatever_comes_in(hidden_dtype, weight_dtype, autocast):
    hidden, weight, targets, bias = case(m=40, v=50, d=32)
    inputs = hidden.to(hidden_dtype), weight.to(weight_dtype), bias.to(weight_dtype)
    rng = torch.Generator().manual_seed(2)
    weights = [torch.randn(40, generator=rng) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        results = token_logprobs(*inputs[:2], targets, temperature=0.9, bias=inputs[2], chunk_tokens=7)
        grads = grads_of(token_logprobs, inputs, targets, weights, temperature=0.9, chunk_tokens=7)
    exact = [x.double() for x in inputs]
    for result, expected in zip(results, plain(*exact[:2], targets, 0.9, exact[2]), strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, expected.float(), rtol=2e-6, atol=5e-6)
    expected_grads = grads_of(plain, exact, targets, [w.double() for w in weights], temperature=0.9)
    for grad, expected, given_input in zip(grads, expected_grads, inputs, strict=True):
        assert grad.dtype == given_input.dtype
        # One rounding to the input's dtype, and none on the way.
        ulp = torch.finfo(grad.dtype).eps
        torch.testing.assert_close(grad.double(), expected, rtol=max(0.51 * ulp, 5e-6), atol=5e-5)


def test_the_weights_gradient_is_summed_in_fp32_over_chunks():
    """In bf16, 256 + 1 is 256: a sum over single tokens would stop growing."""
    m = 600
    hidden = torch.ones(m, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(m, dtype=torch.int64), chunk_tokens=1)
    (2 * logprobs).sum().backward()
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [600.0, -600.0]


class Sizes(TorchDispatchMode):
    """Every tensor that any operation makes: its size, and the operation's name."""

    def __init__(self):
        super().__init__()
        self.numels: list[int] = []
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func.__name__)
        self.numels += [
            x.untyped_storage().nbytes() // x.itemsize for x in tree_leaves(out) if isinstance(x, torch.Tensor)
        ]
        return out


@pytest.mark.parametrize("ask", [(1, 1), (1, 0)])
def test_no_tensor_ever_holds_all_logits(ask):
    m, v, d, chunk = 60, 101, 4, 5
    hidden, weight, targets, _ = case(m, v, d)
    hidden.requires_grad_(), weight.requires_grad_()
    with Sizes() as seen:
        logprobs, entropies = token_logprobs(hidden, weight, targets, chunk_tokens=chunk)
        (ask[0] * logprobs.sum() + ask[1] * entropies.sum()).backward()
    assert max(seen.numels) <= max(chunk * v, v * d, m * d)
    # The plain computation is what this would catch.
    with Sizes() as seen:
        plain(hidden, weight, targets)[0].sum().backward()
    assert max(seen.numels) == m * v


def test_the_chunk_follows_the_memory_budget():
    hidden, weight, targets, _ = case(m=60, v=101, d=4, dtype=torch.float32)
    with mock.patch.object(module, "CHUNK_BYTES", 4 * 101 * 9), Sizes() as seen:
        token_logprobs(hidden, weight, targets)
    assert max(seen.numels) == 9 * 101
    with mock.patch.object(module, "CHUNK_BYTES", 1), Sizes() as seen:
        token_logprobs(hidden, weight, targets)
    assert max(seen.numels) == 4 * 101


def test_a_frozen_weight_costs_no_gradient():
    hidden, weight, targets, _ = case()
    hidden.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, targets, chunk_tokens=3)
    with Sizes() as seen:
        logprobs.sum().backward()
    assert weight.grad is None
    assert not any("addmm" in name for name in seen.names)
    torch.testing.assert_close(hidden.grad, grads_of(plain, (hidden, weight), targets, [torch.ones(7), None])[0])


def test_frozen_hidden_states_cost_no_gradient():
    hidden, weight, targets, _ = case()
    weight.requires_grad_()
    token_logprobs(hidden, weight, targets)[0].sum().backward()
    torch.testing.assert_close(weight.grad, grads_of(plain, (hidden, weight), targets, [torch.ones(7), None])[1])


def test_tokens_without_a_gradient_are_not_recomputed():
    """Masked, clipped and zero-advantage tokens: their hidden states may even be NaN."""
    hidden, weight, targets, _ = case(m=8)
    hidden[3] = torch.nan
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, targets, chunk_tokens=2)
    with Sizes() as seen:
        logprobs[torch.tensor([0, 5])].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert seen.names.count("mm.out") == 1
    assert not hidden.grad[torch.tensor([1, 2, 3, 4, 6, 7])].any()
    assert hidden.grad[torch.tensor([0, 5])].all()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_a_gradient_of_zeros_is_no_gradient(weights):
    hidden, weight, targets, _ = case()
    factors = [torch.full((7,), w, dtype=torch.float64) for w in weights]
    got = grads_of(token_logprobs, (hidden, weight), targets, factors)
    for a, b in zip(got, grads_of(plain, (hidden, weight), targets, factors), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_no_tokens_give_empty_results_and_zero_gradients():
    hidden, weight, targets, _ = case(m=0)
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, entropies = token_logprobs(hidden, weight, targets)
    assert logprobs.shape == entropies.shape == (0,)
    (logprobs.sum() + entropies.sum()).backward()
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_logit_of_minus_infinity_has_probability_zero(dtype):
    hidden, weight, _, bias = case(dtype=dtype)
    closed = bias.clone()
    closed[2:4] = -torch.inf
    targets = torch.tensor([0, 1, 4, 5, 6, 7, 8])
    open_columns = torch.tensor([i for i in range(11) if i not in (2, 3)])
    renumbered = targets - 2 * (targets > 3).long()
    got = token_logprobs(hidden, weight, targets, bias=closed)
    expected = token_logprobs(hidden, weight[open_columns], renumbered, bias=bias[open_columns])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    ones = torch.ones(7, dtype=dtype)
    grads = grads_of(token_logprobs, (hidden, weight, closed), targets, [ones, ones])
    fewer = grads_of(token_logprobs, (hidden, weight[open_columns], bias[open_columns]), renumbered, [ones, ones])
    torch.testing.assert_close(grads[0], fewer[0])
    torch.testing.assert_close(grads[1][open_columns], fewer[1])
    assert not grads[1][2:4].any()
    impossible, _ = token_logprobs(hidden[:1], weight, torch.tensor([2]), bias=closed)
    assert impossible.tolist() == [-torch.inf]


def test_large_logits_stay_finite():
    hidden = torch.tensor([[1e4], [-1e4]])
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, weight, torch.tensor([0, 1]))
    assert logprobs.tolist() == [0.0, -1e4]
    assert entropies.tolist() == [0.0, 0.0]
    (logprobs.sum() + entropies.sum()).backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_a_second_derivative_is_refused_rather_than_wrong():
    hidden, weight, targets, _ = case()
    hidden.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, targets)
    (grad,) = torch.autograd.grad((logprobs**2).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0.0 but must be above 0; greedy decoding \(0\)"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0 but must be at least 1; None chooses by memory"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    hidden, weight, targets, _ = case()
    with pytest.raises(ValueError, match=message):
        token_logprobs(hidden, weight, targets, **settings)


@pytest.mark.parametrize("target", [-100, 11])
def test_a_target_outside_the_vocabulary_is_refused(target):
    hidden, weight, targets, _ = case()
    targets[3] = target
    with pytest.raises(
        ValueError, match=f"targets run from .*{target}.* but the vocabulary has 11 tokens; leave padding"
    ):
        token_logprobs(hidden, weight, targets)


@law
@given(
    st.lists(st.one_of(st.floats(-20, 20), st.just(-math.inf)), min_size=1, max_size=8).filter(
        lambda z: any(map(math.isfinite, z))
    ),
    st.floats(0.25, 4.0),
)
def test_token_entropy_equals_the_definition(logits, temperature):
    scaled = [z / temperature for z in logits]
    total = math.fsum(math.exp(z) for z in scaled)
    probs = [math.exp(z) / total for z in scaled]
    expected = -math.fsum(p * math.log(p) for p in probs if p > 0)
    leaf = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    entropy = token_entropy(leaf, temperature)
    assert entropy.item() == pytest.approx(expected, rel=1e-11, abs=1e-12)
    assert -1e-15 <= entropy.item() <= math.log(len(logits)) + 1e-14
    entropy.backward()
    # dH/dz_j = -p_j (log p_j + H) / T
    grads = [-p * (math.log(p) + expected) / temperature if p > 0 else 0.0 for p in probs]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx(grads, rel=1e-9, abs=1e-12)


def test_token_entropy_takes_any_shape_and_computes_in_fp32():
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    entropy = token_entropy(logits.bfloat16())
    assert entropy.shape == (2, 3)
    assert entropy.dtype == torch.float32
    torch.testing.assert_close(entropy.double(), token_entropy(logits.bfloat16().double()), rtol=1e-6, atol=1e-6)
    assert token_entropy(torch.zeros(4)).shape == ()
    assert str(float(token_entropy(torch.tensor([0.0])))) == "0.0"
    with pytest.raises(ValueError, match=r"temperature is -1\.0 but must be above 0; a greedy policy has entropy 0"):
        token_entropy(logits, -1.0)


def test_both_functions_agree_on_the_entropy():
    hidden, weight, targets, _ = case()
    _, entropies = token_logprobs(hidden, weight, targets, temperature=0.6)
    torch.testing.assert_close(entropies, token_entropy(hidden @ weight.T, 0.6), rtol=1e-13, atol=1e-14)
