import math
from functools import partial

import pytest
import torch
from hypothesis import given

from loss_cases import batches, gradient, law, seeded_batch, slow_sequence
from qae.losses import LOSSES, objective_warning, sequence_policy_loss
from qae.reduce import REDUCTIONS, sequence_mean, token_mean

ROW = torch.ones(1, 2, dtype=torch.bool)


def test_values_by_hand():
    logprobs = torch.tensor([[0.2, -0.1]], dtype=torch.float64)
    zero, one = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    # The mean log-ratio is .05: far above 1 + 4e-4, so only the positive advantage is clipped.
    assert sequence_policy_loss(logprobs, zero, -one, ROW).tolist() == [[pytest.approx(math.exp(0.05), rel=1e-15)] * 2]
    assert sequence_policy_loss(logprobs, zero, one, ROW).tolist() == [[-1.0004, -1.0004]]
    assert sequence_policy_loss(-logprobs, zero, -one, ROW).tolist() == [[0.9997, 0.9997]]


@law
@given(batch=batches())
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.2, 0.3)])
def test_equals_the_definition(batch, low, high):
    loss = sequence_policy_loss(*batch.args, clip_low=low, clip_high=high)
    expected = torch.tensor(slow_sequence(batch, low, high), dtype=torch.float64)
    torch.testing.assert_close(loss, expected.view_as(loss), rtol=1e-14, atol=1e-14)


@law
@given(batch=batches())
def test_a_completion_has_one_value_and_one_clip_decision(batch):
    loss, grad = gradient("sequence", batch)
    for i, tokens in enumerate(batch.mask):
        assert loss[i][tokens].unique().numel() <= 1
        assert grad[i][tokens].unique().numel() <= 1


@law
@given(batch=batches())
def test_with_sequence_mean_the_gradient_is_that_of_the_papers_objective(batch):
    """The token form reduces to eq. 5: d/dlogprobs of mean_i min(s_i A_i, clip(s_i) A_i), s_i as a whole."""
    logprobs = batch.logprobs.clone().requires_grad_()
    lengths = batch.mask.sum(1)
    log_ratio = (logprobs - batch.behaviour_logprobs).where(batch.mask, 0.0).sum(1) / lengths.clamp(min=1)
    ratio, advantages = log_ratio.exp(), batch.advantages
    objective = torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.2) * advantages)
    (-objective.sum() / 7).backward()
    assert logprobs.grad is not None

    ours = batch.logprobs.clone().requires_grad_()
    loss = sequence_policy_loss(ours, *batch.args[1:], clip_low=0.1, clip_high=0.2)
    sequence_mean(loss, batch.mask, update_completions=7).backward()
    torch.testing.assert_close(ours.grad, logprobs.grad, rtol=1e-12, atol=1e-14)


def test_with_token_mean_it_is_another_objective():
    """Two completions of 1 and 4 tokens and advantage 1: GSPO weighs the completions alike, token_mean 1 to 4."""
    mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
    weight_of_completion = []
    for reduce in (partial(sequence_mean, update_completions=2), partial(token_mean, update_tokens=5)):
        logprobs = torch.zeros(2, 4, requires_grad=True)
        reduce(sequence_policy_loss(logprobs, torch.zeros(2, 4), torch.ones(2), mask), mask).backward()
        assert logprobs.grad is not None
        weight_of_completion.append(logprobs.grad.sum(1))
    torch.testing.assert_close(weight_of_completion[0], torch.tensor([-0.5, -0.5]))
    torch.testing.assert_close(weight_of_completion[1], torch.tensor([-0.2, -0.8]))


def test_that_is_said_for_gspo_and_for_nothing_else():
    said = {(loss, reduction): objective_warning(loss, reduction) for loss in LOSSES for reduction in REDUCTIONS}
    assert {pair for pair, text in said.items() if text} == {
        ("sequence", "token_mean"),
        ("sequence", "sequence_sum"),
        ("sequence", "sequence_sum_norm"),
    }
    assert said["sequence", "token_mean"] == (
        "loss 'sequence' (GSPO) with reduction 'token_mean' is another objective: all tokens of a completion carry the "
        "same sequence ratio, so a completion would weigh in proportion to its length; GSPO's own reduction is "
        "'sequence_mean'"
    )


def test_a_negative_clip_is_refused():
    with pytest.raises(ValueError, match=r"clip_low is -0\.0003 but a distance from ratio 1 is at least 0"):
        sequence_policy_loss(*seeded_batch(1).args, clip_low=-3e-4)
