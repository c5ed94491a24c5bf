import pytest
import torch
from hypothesis import given

from loss_cases import Batch, batches, gradient, law, seeded_batch, slow_clip, slow_sequence
from qae.losses import clip_fractions, clipped_policy_loss

ROW = torch.ones(1, 3, dtype=torch.bool)
RATIOS = torch.tensor([[0.5, 1.0, 1.5]], dtype=torch.float64).log()
ZERO = torch.zeros(1, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantage", "settings", "expected"),
    [
        (2.0, {}, [-1.0, -2.0, -2.4]),
        (2.0, {"clip_high": 0.28}, [-1.0, -2.0, -2.56]),
        (-1.0, {}, [0.8, 1.0, 1.5]),
        (-1.0, {"clip_low": 0.1}, [0.9, 1.0, 1.5]),
        (-1.0, {"dual_clip": 1.25}, [0.8, 1.0, 1.25]),
        (2.0, {"dual_clip": 1.25}, [-1.0, -2.0, -2.4]),
        (0.0, {}, [0.0, 0.0, 0.0]),
    ],
)
def test_values_by_hand(advantage, settings, expected):
    loss = clipped_policy_loss(RATIOS, ZERO, torch.tensor([advantage], dtype=torch.float64), ROW, **settings)
    torch.testing.assert_close(loss, torch.tensor([expected], dtype=torch.float64), rtol=1e-15, atol=1e-15)


@law
@given(batch=batches())
@pytest.mark.parametrize(("low", "high", "dual_clip"), [(0.2, 0.2, None), (0.2, 0.28, 10.0), (0.1, 0.4, 1.5)])
def test_equals_the_definition(batch, low, high, dual_clip):
    loss = clipped_policy_loss(*batch.args, clip_low=low, clip_high=high, dual_clip=dual_clip)
    expected = torch.tensor(slow_clip(batch, low, high, dual_clip), dtype=torch.float64)
    torch.testing.assert_close(loss, expected.view_as(loss), rtol=1e-14, atol=1e-14)


@law
@given(batch=batches())
def test_the_clip_is_pessimistic_and_inactive_inside_its_bounds(batch):
    """PPO's claim: the clipped objective never exceeds the surrogate, and equals it inside the bounds."""
    ratio = (batch.logprobs - batch.behaviour_logprobs).exp()
    surrogate = (-ratio * batch.advantages[:, None]).where(batch.mask, 0.0)
    loss = clipped_policy_loss(*batch.args, clip_low=0.2, clip_high=0.28)
    assert (loss >= surrogate).all()
    inside = (ratio >= 0.8) & (ratio <= 1.28)
    assert torch.equal(loss[inside], surrogate[inside])


@law
@given(batch=batches())
def test_the_gradient_is_the_surrogates_or_nothing(batch):
    _, grad = gradient("clip", batch, clip_low=0.2, clip_high=0.28)
    ratio, advantage = (batch.logprobs - batch.behaviour_logprobs).exp(), batch.advantages[:, None]
    clipped = ((ratio > 1.28) & (advantage > 0)) | ((ratio < 0.8) & (advantage < 0)) | ~batch.mask
    torch.testing.assert_close(grad, (-ratio * advantage).where(~clipped, 0.0), rtol=1e-14, atol=0)


@law
@given(batch=batches())
def test_the_dual_clip_cuts_only_negative_advantages_above_it(batch):
    plain, plain_grad = gradient("clip", batch)
    loss, grad = gradient("clip", batch, dual_clip=1.5)
    ratio = (batch.logprobs - batch.behaviour_logprobs).exp()
    cut = (ratio > 1.5) & (batch.advantages[:, None] < 0) & batch.mask
    assert torch.equal(loss[~cut], plain[~cut])
    assert torch.equal(grad[~cut], plain_grad[~cut])
    assert not grad[cut].any()
    assert torch.equal(loss[cut], (-1.5 * batch.advantages[:, None]).expand_as(loss)[cut])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"clip_low": -0.2},
            "clip_low is -0.2 but a distance from ratio 1 is at least 0; write 0.2 to bound it at 0.8",
        ),
        ({"clip_high": float("nan")}, "clip_high is nan but a distance from ratio 1 is at least 0"),
        ({"dual_clip": 1.0}, "dual_clip is 1.0 but it bounds the ratio .* must exceed 1; verl's default is 3.0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        clipped_policy_loss(RATIOS, ZERO, torch.ones(1, dtype=torch.float64), ROW, **settings)


def test_clip_fractions_by_hand():
    batch = Batch(RATIOS.expand(3, 3), ZERO.expand(3, 3), torch.tensor([1.0, -1.0, 0.0]), ROW.expand(3, 3))
    assert clip_fractions(*batch.args, clip_low=0.2, clip_high=0.28) == (1, 1)
    assert clip_fractions(*batch.args, clip_low=0.5, clip_high=0.5) == (0, 0)
    assert clip_fractions(*batch.rows([0]).args, clip_low=0.2, clip_high=0.28) == (0, 1)
    assert clip_fractions(*batch.rows([1]).args, clip_low=0.2, clip_high=0.28) == (1, 0)


@law
@given(batch=batches())
def test_clip_fractions_count_the_tokens_that_the_loss_silences(batch):
    _, grad = gradient("clip", batch, clip_low=0.2, clip_high=0.28)
    silent = (grad == 0) & batch.mask
    low, high = clip_fractions(*batch.args, clip_low=0.2, clip_high=0.28)
    assert low == (silent & (batch.advantages[:, None] < 0)).sum()
    assert high == (silent & (batch.advantages[:, None] > 0)).sum()


@law
@given(batch=batches())
def test_sequence_clip_fractions_count_whole_completions(batch):
    low, high = clip_fractions(*batch.args, clip_low=0.01, clip_high=0.02, level="sequence")
    ratios = [-row[0] for row in slow_sequence(replace_advantages(batch, 1.0), torch.inf, torch.inf)]
    lengths, advantages = batch.mask.sum(1).tolist(), batch.advantages.tolist()
    rows = list(zip(ratios, lengths, advantages, strict=True))
    assert low == sum(length for ratio, length, a in rows if length and ratio < 0.99 and a < 0)
    assert high == sum(length for ratio, length, a in rows if length and ratio > 1.02 and a > 0)


def test_clip_counts_add_up_over_micro_batches_and_ignore_padding():
    batch = seeded_batch(12)
    dirty = Batch(batch.logprobs.where(batch.mask, torch.nan), *batch.args[1:])
    whole = clip_fractions(*batch.args, clip_low=0.1, clip_high=0.1)
    parts = [clip_fractions(*dirty.rows(rows).args, clip_low=0.1, clip_high=0.1) for rows in (slice(2), slice(2, 6))]
    assert whole == (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    assert whole[0] > 0
    assert whole[1] > 0


def replace_advantages(batch: Batch, value: float) -> Batch:
    return Batch(batch.logprobs, batch.behaviour_logprobs, torch.full_like(batch.advantages, value), batch.mask)
