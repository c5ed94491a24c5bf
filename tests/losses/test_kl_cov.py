from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loss_cases import Batch, batches, exact_covariances, gradient, law, seeded_batch, slow_kl_cov
from qae.losses import kl_cov_policy_loss, kl_cov_selection
from qae.losses.covariance import chosen_tokens, token_covariances

BATCH = Batch(
    torch.tensor([[-0.5, -4.0], [-3.0, -1.0]], dtype=torch.float64),
    torch.tensor([[-1.0, -4.0], [-2.0, -1.0]], dtype=torch.float64),
    torch.tensor([1.0, -1.0], dtype=torch.float64),
    torch.ones(2, 2, dtype=torch.bool),
)


def choose(batch: Batch, **settings) -> torch.Tensor:
    return kl_cov_selection(batch.logprobs, batch.advantages, batch.mask, **settings)


def test_values_by_hand():
    # Deviations of the log-probs from -2.125 are 1.625, -1.875, -.875, 1.125; times the advantage 1, 1, -1, -1.
    covariances = token_covariances(BATCH.logprobs, BATCH.advantages, BATCH.mask)
    assert covariances.tolist() == [[1.625, -1.875], [0.875, -1.125]]
    assert choose(BATCH).tolist() == [[True, False], [False, False]]
    assert choose(BATCH, select_frac=0.5).tolist() == [[True, False], [True, False]]
    loss = kl_cov_policy_loss(*BATCH.args, select_frac=0.5, kl_coef=2.0)
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    expected = torch.stack([-(e**0.5) + 2 * 0.5, -(e**0), 1 / e + 2 * 1.0, e**0]).view(2, 2)
    torch.testing.assert_close(loss, expected, rtol=1e-15, atol=0)


def test_the_ratio_is_not_clipped():
    far = replace(BATCH, behaviour_logprobs=BATCH.logprobs - 3.0)
    _, grad = gradient("kl_cov", far, selected=torch.zeros_like(BATCH.mask))
    expected = -BATCH.advantages[:, None] * torch.tensor(3.0, dtype=torch.float64).exp()
    torch.testing.assert_close(grad, expected.expand(2, 2), rtol=1e-14, atol=0)


@law
@given(batch=batches(), frac=st.floats(0.01, 1.0))
def test_equals_the_definition(batch, frac):
    selected = choose(batch, select_frac=frac)
    loss = kl_cov_policy_loss(*batch.args, select_frac=frac, kl_coef=0.7)
    expected = torch.tensor(slow_kl_cov(batch, selected, 0.7), dtype=torch.float64)
    torch.testing.assert_close(loss, expected.view_as(loss), rtol=1e-14, atol=1e-14)


@law
@given(batch=batches(), frac=st.floats(0.01, 1.0))
def test_the_choice_is_the_top_by_exact_covariance(batch, frac):
    covariances, chosen = exact_covariances(batch), choose(batch, select_frac=frac)
    inside = {place for place in covariances if chosen[place]}
    assert len(inside) == int(chosen.sum())
    assert len(inside) == (max(1, int(frac * len(covariances))) if covariances else 0)
    outside = set(covariances) - inside
    if inside and outside:
        # A rounding error of the means is all that may separate the two sides.
        assert min(covariances[p] for p in inside) >= max(covariances[p] for p in outside) - 1e-12


def test_ties_go_to_the_earlier_token():
    flat = replace(BATCH, advantages=torch.zeros(2, dtype=torch.float64))
    assert choose(flat, select_frac=0.75).tolist() == [[True, True], [True, False]]
    first_masked = replace(flat, mask=torch.tensor([[False, True], [True, True]]))
    assert choose(first_masked).tolist() == [[False, True], [False, False]]


def test_a_selected_token_of_advantage_zero_still_pays():
    """Why rows with advantage 0 cannot simply be skipped here."""
    flat = replace(BATCH, advantages=torch.zeros(2, dtype=torch.float64))
    loss, grad = gradient("kl_cov", flat, selected=torch.tensor([[True, False], [True, False]]))
    assert loss.tolist() == [[0.5, 0.0], [1.0, 0.0]]
    assert grad.tolist() == [[1.0, 0.0], [-1.0, 0.0]]


@law
@given(batch=batches())
def test_on_policy_the_penalty_is_nothing(batch):
    loss, grad = gradient("kl_cov", batch.on_policy(), select_frac=1.0)
    plain, plain_grad = gradient("kl_cov", batch.on_policy(), selected=torch.zeros_like(batch.mask))
    assert torch.equal(loss, plain)
    assert torch.equal(grad, plain_grad)


@law
@given(batch=batches(min_rows=2))
def test_covariances_sum_to_the_sample_covariance_and_ignore_shifts(batch):
    covariances = token_covariances(batch.logprobs, batch.advantages, batch.mask)
    shifted = token_covariances(batch.logprobs - 2.0, batch.advantages + 1.0, batch.mask)
    torch.testing.assert_close(shifted, covariances, rtol=1e-10, atol=1e-12)
    exact = float(sum(exact_covariances(batch).values()))
    torch.testing.assert_close(float(covariances.sum()), exact, rtol=1e-10, atol=1e-12)


def test_a_choice_of_the_update_serves_its_micro_batches():
    batch = seeded_batch(3)
    update = choose(batch, select_frac=0.2)
    whole = kl_cov_policy_loss(*batch.args, select_frac=0.2)
    parts = [kl_cov_policy_loss(*batch.rows(r).args, selected=update[r]) for r in (slice(2), slice(2, 6))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-14, atol=0)
    # verl's statistic: each micro-batch for itself.
    alone = [kl_cov_policy_loss(*batch.rows(r).args, select_frac=0.2) for r in (slice(2), slice(2, 6))]
    assert not torch.equal(torch.cat(alone), whole)


def test_the_floor_of_one_token_decides_in_small_runs():
    assert [chosen_tokens(2e-3, n) for n in (1, 499, 500, 999, 1000, 20_000)] == [1, 1, 1, 1, 2, 40]
    assert chosen_tokens(1.0, 7) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"select_frac": 2.0}, "select_frac is 2.0 but it is a share of the tokens .* 0.002"),
        ({"select_frac": -0.1}, "select_frac is -0.1"),
        ({"kl_coef": -1.0}, "kl_coef is -1.0 but a penalty's weight is at least 0; the paper uses 1.0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        kl_cov_policy_loss(*BATCH.args, **settings)
