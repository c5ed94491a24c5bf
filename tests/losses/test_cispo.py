import pytest
import torch
from hypothesis import given

from loss_cases import batches, gradient, law, seeded_batch, slow_cispo
from qae.losses import cispo_policy_loss

LOGPROBS = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64)
BEHAVIOUR = LOGPROBS - torch.tensor([[0.5, 1.0, 8.0]], dtype=torch.float64).log()
ROW, ONE = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, [0.5, 1.0, 1.2]),
        ({"clip_low": 10.0}, [0.5, 1.0, 1.2]),
        ({"clip_low": 0.2, "clip_high": 0.28}, [0.8, 1.0, 1.28]),
        ({"clip_high": 5.0}, [0.5, 1.0, 6.0]),
        ({"clip_high": 5.0, "bounds": "ratio"}, [0.5, 1.0, 5.0]),
        ({"clip_low": 0.75, "clip_high": 5.0, "bounds": "ratio"}, [0.75, 1.0, 5.0]),
    ],
)
def test_values_by_hand(settings, weights):
    """Log-probs are -1 and the advantage 1, so the loss is the weight. verl's 0.2 and TRL's 5.0 are two conventions."""
    loss = cispo_policy_loss(LOGPROBS, BEHAVIOUR, ONE, ROW, **settings)
    torch.testing.assert_close(loss, torch.tensor([weights], dtype=torch.float64), rtol=1e-14, atol=0)


@law
@given(batch=batches())
def test_equals_the_definition(batch):
    loss = cispo_policy_loss(*batch.args, clip_low=0.3, clip_high=0.28)
    expected = torch.tensor(slow_cispo(batch, 0.7, 1.28), dtype=torch.float64)
    torch.testing.assert_close(loss, expected.view_as(loss), rtol=1e-13, atol=1e-14)


@law
@given(batch=batches())
def test_no_token_is_silenced(batch):
    """The paper's claim: every token with an advantage keeps a gradient, of the clipped weight."""
    _, grad = gradient("cispo", batch)
    weight = (batch.logprobs - batch.behaviour_logprobs).exp().clamp(max=1.2)
    torch.testing.assert_close(grad, (-weight * batch.advantages[:, None]).where(batch.mask, 0.0), rtol=1e-14, atol=0)
    assert (grad != 0)[batch.mask & (batch.advantages[:, None] != 0)].all()


@law
@given(batch=batches())
def test_the_two_conventions_name_the_same_bounds(batch):
    offset = gradient("cispo", batch, clip_low=0.25, clip_high=0.5)
    ratio = gradient("cispo", batch, clip_low=0.75, clip_high=1.5, bounds="ratio")
    assert torch.equal(offset[0], ratio[0])
    assert torch.equal(offset[1], ratio[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"clip_high": 0.2, "bounds": "ratio"},
            'clip_high is 0.2 with bounds="ratio", which would shrink .* write 5.0',
        ),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"clip_low": -0.1}, "clip_low is -0.1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        cispo_policy_loss(*seeded_batch(1).args, **settings)
