import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loss_cases import batches, law
from qae.losses import kl_penalty_k3


def test_values_by_hand():
    mask = torch.tensor([[True, True, True, False]])
    logprobs = torch.tensor([[-1.0, -2.0, -1.0, -1.0]], dtype=torch.float64)
    reference = torch.tensor([[-1.0, -1.0, -2.0, -9.0]], dtype=torch.float64)
    penalty = kl_penalty_k3(logprobs, reference, mask).tolist()
    assert penalty == [[0.0, pytest.approx(math.e - 2, rel=1e-15), pytest.approx(1 / math.e, rel=1e-15), 0.0]]


@law
@given(batch=batches())
def test_equals_the_definition_and_is_never_negative(batch):
    penalty = kl_penalty_k3(batch.logprobs, batch.behaviour_logprobs, batch.mask)
    for p, r, k, m in zip(*(x.flatten().tolist() for x in (*batch.args[:2], penalty, batch.mask)), strict=True):
        assert k >= 0
        assert k == pytest.approx(math.exp(r - p) - (r - p) - 1 if m else 0.0, rel=1e-9, abs=1e-15)


@law
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_its_expectation_under_the_policy_is_the_kl(logits, random):
    policy = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)[None]
    other = torch.log_softmax(torch.tensor([random.uniform(-3, 3) for _ in logits], dtype=torch.float64), 0)[None]
    mean = (policy.exp() * kl_penalty_k3(policy, other, torch.ones_like(policy, dtype=torch.bool))).sum()
    torch.testing.assert_close(mean, (policy.exp() * (policy - other)).sum(), rtol=1e-9, atol=1e-12)


@law
@given(batch=batches())
def test_the_gradient_vanishes_where_the_two_agree_and_reaches_the_policy_only(batch):
    logprobs, reference = batch.logprobs.clone().requires_grad_(), batch.behaviour_logprobs.clone().requires_grad_()
    kl_penalty_k3(logprobs, reference, batch.mask).sum().backward()
    expected = (1 - (reference - logprobs).detach().exp()).where(batch.mask, 0.0)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-12, atol=1e-14)
    assert reference.grad is None


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
def test_padding_reaches_neither_value_nor_gradient(garbage):
    mask = torch.tensor([[True, False]])
    logprobs = torch.tensor([[-1.0, garbage]], requires_grad=True)
    penalty = kl_penalty_k3(logprobs, torch.tensor([[-2.0, garbage]]), mask)
    penalty.sum().backward()
    assert penalty[0, 1] == 0
    assert logprobs.grad is not None
    assert logprobs.grad[0, 1] == 0
    assert logprobs.grad.isfinite().all()


def test_a_far_reference_stays_finite():
    logprobs = torch.tensor([[-300.0, -1.0]], requires_grad=True)
    penalty = kl_penalty_k3(logprobs, torch.tensor([[-1.0, -300.0]]), torch.ones(1, 2, dtype=torch.bool))
    penalty.sum().backward()
    assert logprobs.grad is not None
    assert penalty.isfinite().all()
    assert logprobs.grad.isfinite().all()
