import math

import pytest
import torch
from hypothesis import given

from loss_cases import batches, gradient, law, seeded_batch, slow_sapo
from qae.losses import sapo_policy_loss

ROW = torch.ones(1, 2, dtype=torch.bool)


def test_values_by_hand():
    logprobs, zero = torch.tensor([[1.0, 2.0]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    sigmoid = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-1.05))
    assert sapo_policy_loss(logprobs, zero, one, ROW).tolist() == [[-2.0, pytest.approx(-4 * sigmoid[0], rel=1e-15)]]
    assert sapo_policy_loss(logprobs, zero, -one, ROW).tolist() == [
        [pytest.approx(2 / 1.05, rel=1e-15), pytest.approx(4 / 1.05 * sigmoid[1], rel=1e-15)]
    ]


@law
@given(batch=batches())
def test_equals_the_definition(batch):
    loss = sapo_policy_loss(*batch.args, tau_positive=0.9, tau_negative=2.0)
    expected = torch.tensor(slow_sapo(batch, 0.9, 2.0), dtype=torch.float64)
    torch.testing.assert_close(loss, expected.view_as(loss), rtol=1e-13, atol=1e-14)


@law
@given(batch=batches())
def test_the_gate_is_1_on_policy_and_falls_on_both_sides(batch):
    """The paper's claim: the gradient's weight is r times sech^2(tau (r - 1) / 2)."""
    _, grad = gradient("sapo", batch)
    ratio, advantage = (batch.logprobs - batch.behaviour_logprobs).exp(), batch.advantages[:, None]
    tau = 1.05 - 0.05 * (advantage > 0).double()
    gate = 1 / torch.cosh(tau * (ratio - 1) / 2) ** 2
    torch.testing.assert_close(grad, (-advantage * ratio * gate).where(batch.mask, 0.0), rtol=1e-12, atol=1e-14)


def test_a_larger_tau_forgets_a_stale_failure_sooner():
    batch = seeded_batch(1)
    soft = gradient("sapo", batch, tau_negative=1.0)[1]
    hard = gradient("sapo", batch, tau_negative=4.0)[1]
    negative, positive = batch.advantages < 0, batch.advantages > 0
    assert torch.equal(soft[positive], hard[positive])
    assert (hard[negative].abs() <= soft[negative].abs()).all()
    assert hard[negative].abs().sum() < soft[negative].abs().sum()


@pytest.mark.parametrize("name", ["tau_positive", "tau_negative"])
@pytest.mark.parametrize("tau", [0.0, -1.0])
def test_a_gate_without_steepness_is_refused(name, tau):
    with pytest.raises(
        ValueError, match=f"{name} is {tau} but a gate's steepness is above 0; the paper uses 1.0 and 1.05"
    ):
        sapo_policy_loss(*seeded_batch(1).args, **{name: tau})
