"""What every loss of the table promises."""

from dataclasses import replace
from inspect import signature

import pytest
import torch
from hypothesis import given

from loss_cases import Batch, batches, gradient, law, loss_of, seeded_batch
from qae.losses import LOSSES

every_loss = pytest.mark.parametrize("name", LOSSES)
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
# Where a number stands in a tensor decides how exp and sum are vectorised: a few roundings, no more.
MOVED = {"rtol": 1e-14, "atol": 0}


def test_the_table_holds_the_agreed_names():
    assert list(LOSSES) == ["clip", "sequence", "clip_cov", "kl_cov", "cispo", "sapo"]


@pytest.mark.parametrize(
    ("name", "defaults"),
    {
        "clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None},
        "sequence": {"clip_low": 3e-4, "clip_high": 4e-4},
        "clip_cov": {"clip_low": 1.0, "clip_high": 1.0, "select_frac": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
        "kl_cov": {"select_frac": 2e-3, "kl_coef": 1.0},
        "cispo": {"clip_low": None, "clip_high": 0.2, "bounds": "offset"},
        "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    }.items(),
)
def test_the_defaults_are_the_papers(name, defaults):
    parameters = signature(LOSSES[name]).parameters
    assert {key: p.default for key, p in parameters.items() if p.default is not p.empty} == defaults | (
        {"selected": None} if "cov" in name else {}
    ) | ({"generator": None} if name == "clip_cov" else {})
    assert all(p.kind is p.KEYWORD_ONLY for key, p in parameters.items() if key in defaults)


@every_loss
def test_gradients_reach_the_logprobs_only(name):
    batch = seeded_batch(1)
    leaves = [
        batch.logprobs.requires_grad_(),
        batch.behaviour_logprobs.requires_grad_(),
        batch.advantages.requires_grad_(),
    ]
    loss_of(name, batch).sum().backward()
    assert leaves[0].grad is not None
    assert leaves[0].grad.abs().sum() > 0
    assert leaves[1].grad is None
    assert leaves[2].grad is None


@every_loss
@law
@given(batch=batches())
def test_on_policy_the_gradient_is_minus_the_advantage(name, batch):
    batch = batch.on_policy()
    nothing = {"selected": torch.zeros_like(batch.mask)} if name == "clip_cov" else {}
    _, grad = gradient(name, batch, **nothing)
    expected = (-batch.advantages[:, None] * torch.ones_like(grad)).where(batch.mask, 0.0)
    torch.testing.assert_close(grad, expected, **TIGHT)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_of_the_logprobs_is_kept(name, dtype):
    batch = seeded_batch(2, dtype=dtype)
    loss, grad = gradient(name, replace(batch, advantages=batch.advantages.double()))
    assert loss.dtype == dtype
    assert grad.dtype == dtype
    assert loss.shape == batch.mask.shape


@every_loss
@pytest.mark.parametrize(("n", "t"), [(0, 4), (3, 0), (0, 0)])
def test_an_empty_batch_gives_an_empty_loss(name, n, t):
    empty = Batch(torch.zeros(n, t), torch.zeros(n, t), torch.ones(n), torch.ones(n, t, dtype=torch.bool))
    loss, grad = gradient(name, empty)
    assert loss.shape == grad.shape == (n, t)


@every_loss
def test_a_batch_that_is_masked_as_a_whole_gives_zeros(name):
    batch = replace(seeded_batch(3), mask=torch.zeros(6, 9, dtype=torch.bool))
    loss, grad = gradient(name, batch)
    assert not loss.any()
    assert not grad.any()


@every_loss
def test_rows_in_another_order_give_the_same_losses_in_that_order(name):
    batch, order = seeded_batch(4), torch.tensor([3, 0, 5, 1, 4, 2])
    # Which token Clip-Cov draws depends on the order of the candidates, so the draw is fixed and travels along.
    chosen = torch.rand(6, 9, generator=torch.Generator().manual_seed(5)) < 0.3
    here, there = ({"selected": chosen}, {"selected": chosen[order]}) if "cov" in name else ({}, {})
    loss, grad = gradient(name, batch, **here)
    moved_loss, moved_grad = gradient(name, batch.rows(order), **there)
    torch.testing.assert_close(moved_loss, loss[order], **MOVED)
    torch.testing.assert_close(moved_grad, grad[order], **MOVED)


@every_loss
def test_micro_batches_give_the_rows_of_the_whole(name):
    batch = seeded_batch(6)
    chosen = torch.rand(6, 9, generator=torch.Generator().manual_seed(7)) < 0.3
    settings = [{"selected": chosen[rows]} if "cov" in name else {} for rows in (slice(6), slice(2), slice(2, 6))]
    whole, first, rest = (
        gradient(name, batch.rows(rows), **more)
        for rows, more in zip((slice(6), slice(2), slice(2, 6)), settings, strict=True)
    )
    for i in range(2):
        torch.testing.assert_close(torch.cat([first[i], rest[i]]), whole[i], **MOVED)


@every_loss
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("place", ["logprobs", "behaviour_logprobs", "both"])
def test_padding_reaches_neither_value_nor_gradient(name, garbage, place):
    batch = seeded_batch(8)
    fields = ["logprobs", "behaviour_logprobs"] if place == "both" else [place]
    dirty = replace(batch, **{f: getattr(batch, f).where(batch.mask, garbage) for f in fields})
    (loss, grad), (dirty_loss, dirty_grad) = gradient(name, batch), gradient(name, dirty)
    assert not batch.mask.all()
    torch.testing.assert_close(dirty_loss, loss, rtol=0, atol=0)
    torch.testing.assert_close(dirty_grad, grad, rtol=0, atol=0)
    assert not dirty_loss[~batch.mask].any()
    assert not dirty_grad[~batch.mask].any()


@every_loss
def test_a_fully_masked_row_may_have_any_advantage(name):
    batch = seeded_batch(9)
    mask = batch.mask.clone()
    mask[2] = False
    advantages = batch.advantages.clone()
    clean = gradient(name, replace(batch, mask=mask))
    advantages[2] = torch.nan
    dirty = gradient(name, replace(batch, mask=mask, advantages=advantages))
    for a, b in zip(dirty, clean, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@every_loss
def test_more_padding_columns_change_nothing(name):
    batch = seeded_batch(10)
    wide = Batch(
        torch.nn.functional.pad(batch.logprobs, (0, 3), value=torch.nan),
        torch.nn.functional.pad(batch.behaviour_logprobs, (0, 3), value=1.0),
        batch.advantages,
        torch.nn.functional.pad(batch.mask, (0, 3)),
    )
    for narrow, padded in zip(gradient(name, batch), gradient(name, wide), strict=True):
        torch.testing.assert_close(padded[:, :9], narrow, **MOVED)
        assert not padded[:, 9:].any()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("log_ratio", [25.0, 200.0, -200.0, 1e4])
def test_an_overflowing_ratio_stays_finite(name, dtype, advantage, log_ratio):
    logprobs, behaviour = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0 - log_ratio, -1.0]])
    batch = Batch(
        logprobs.to(dtype),
        behaviour.to(dtype),
        torch.tensor([advantage], dtype=dtype),
        torch.ones(1, 2, dtype=torch.bool),
    )
    loss, grad = gradient(name, batch)
    assert loss.isfinite().all()
    assert grad.isfinite().all()


@every_loss
@pytest.mark.parametrize("logprob", [-1.0, -torch.inf, torch.inf, torch.nan])
@pytest.mark.parametrize("behaviour", [-1.0, -400.0, -torch.inf])
def test_advantage_zero_means_loss_and_gradient_zero(name, logprob, behaviour):
    # KL-Cov's penalty outlives a zero advantage, so its claim holds for rows without a selected token.
    rows = Batch(
        torch.tensor([[logprob, -1.0], [-1.0, -2.0]]),
        torch.tensor([[behaviour, -1.0], [-1.5, -2.0]]),
        torch.tensor([0.0, -1.0]),
        torch.ones(2, 2, dtype=torch.bool),
    )
    settings = {"selected": torch.tensor([[False, False], [True, False]])} if "cov" in name else {}
    loss, grad = gradient(name, rows, **settings)
    assert not loss[0].any()
    assert not grad[0].any()
    assert loss[1].isfinite().all()
    assert grad[1].abs().sum() > 0


@every_loss
@law
@given(batch=batches())
def test_dropping_rows_of_advantage_zero_changes_no_other_row(name, batch):
    kept = batch.advantages != 0
    nothing = torch.zeros_like(batch.mask)
    whole = gradient(name, batch, **({"selected": nothing} if "cov" in name else {}))
    part = gradient(name, batch.rows(kept), **({"selected": nothing[kept]} if "cov" in name else {}))
    for a, b in zip(part, whole, strict=True):
        torch.testing.assert_close(a, b[kept], **MOVED)
        assert not b[~kept].any()


@every_loss
@law
@given(batch=batches())
def test_the_loss_scales_with_the_advantage(name, batch):
    selected = {"selected": torch.zeros_like(batch.mask)} if "cov" in name else {}
    once = gradient(name, batch, **selected)
    thrice = gradient(name, replace(batch, advantages=batch.advantages * 3), **selected)
    for a, b in zip(thrice, once, strict=True):
        torch.testing.assert_close(a, 3 * b, **TIGHT)


@every_loss
def test_a_loss_leaves_the_global_random_state_alone(name):
    before = torch.get_rng_state()
    loss_of(name, seeded_batch(11))
    assert torch.equal(torch.get_rng_state(), before)
