from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loss_cases import Batch, batches, exact_covariances, gradient, law, seeded_batch, slow_clip
from qae.losses import clip_cov_policy_loss, clip_cov_selection

DYADIC = st.integers(-40, 0).map(lambda x: x / 8)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def dyadic_batches(draw) -> Batch:
    """Up to 16 tokens in eighths, their count a power of two: covariances and both bounds are exact in binary."""
    n, t = draw(st.sampled_from([(1, 4), (2, 2), (2, 4), (4, 4), (4, 2)]))
    values = draw(st.lists(DYADIC, min_size=n * t, max_size=n * t))
    logprobs = torch.tensor(values, dtype=torch.float64).view(n, t)
    advantages = torch.tensor(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), dtype=torch.float64)
    moved = torch.tensor(draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=n * t, max_size=n * t)))
    return Batch(logprobs, logprobs - moved.view(n, t).double(), advantages, torch.ones(n, t, dtype=torch.bool))


# Advantages of mean 0 and log-probs of mean -3: cov is the product as it stands.
BOUNDS = Batch(
    torch.tensor([[-2.5, -0.5, -1.0, -1.0], [-5.0, -5.0, -4.0, -5.0]], dtype=torch.float64),
    torch.tensor([[-2.5, -0.5, -1.0, -1.0], [-5.0, -5.0, -4.0, -5.0]], dtype=torch.float64),
    torch.tensor([2.0, -2.0], dtype=torch.float64),
    torch.ones(2, 4, dtype=torch.bool),
)


def test_candidates_by_hand():
    # cov = 1, 5, 4, 4 in the first row and 4, 4, 2, 4 in the second: both bounds are excluded.
    chosen = clip_cov_selection(*BOUNDS.args, generator=rng(), select_frac=1.0)
    assert chosen.tolist() == [[False, False, True, True], [True, True, True, True]]
    narrow = clip_cov_selection(*BOUNDS.args, generator=rng(), select_frac=1.0, cov_low=1.5, cov_high=4.0)
    assert narrow.tolist() == [[False] * 4, [False, False, True, False]]


def test_a_token_that_the_ratio_clip_has_cut_is_no_candidate():
    behaviour = BOUNDS.behaviour_logprobs.clone()
    behaviour[0, 2] -= 1.0  # ratio e, advantage positive: above
    behaviour[1, 0] += 1.0  # ratio 1/e, advantage negative: below
    behaviour[0, 3] += 1.0  # ratio 1/e, advantage positive: not clipped
    batch = replace(BOUNDS, behaviour_logprobs=behaviour)
    chosen = clip_cov_selection(*batch.args, generator=rng(), select_frac=1.0, clip_low=0.2, clip_high=0.28)
    assert chosen.tolist() == [[False, False, False, True], [False, True, True, True]]
    # The recipe's bounds of 1 let a ratio of 1/e pass, and cut a ratio of e.
    wide = clip_cov_selection(*batch.args, generator=rng(), select_frac=1.0)
    assert wide.tolist() == [[False, False, False, True], [True, True, True, True]]


def test_masked_tokens_are_no_candidates_and_count_in_no_mean():
    mask = BOUNDS.mask.clone()
    mask[0, 2] = False
    batch = replace(BOUNDS, mask=mask, logprobs=BOUNDS.logprobs.where(mask, torch.nan))
    covariances = exact_covariances(batch)
    expected = [[1 < covariances.get((i, j), 0) < 5 for j in range(4)] for i in range(2)]
    assert clip_cov_selection(*batch.args, generator=rng(), select_frac=1.0).tolist() == expected


@law
@given(batch=dyadic_batches())
def test_all_candidates_equal_the_definition_in_exact_arithmetic(batch):
    covariances = exact_covariances(batch)
    ratio, advantage = (batch.logprobs - batch.behaviour_logprobs).exp(), batch.advantages[:, None]
    cut = ((ratio > 2) & (advantage > 0)).tolist()
    n, t = batch.mask.shape
    expected = [[1 < covariances[i, j] < 5 and not cut[i][j] for j in range(t)] for i in range(n)]
    assert clip_cov_selection(*batch.args, generator=rng(), select_frac=1.0).tolist() == expected


@pytest.mark.parametrize(("frac", "tokens", "count"), [(2e-4, 8, 1), (0.25, 8, 2), (0.49, 8, 3), (0.9, 8, 6)])
def test_the_number_chosen_is_rounded_down_but_at_least_one_and_at_most_all(frac, tokens, count):
    assert BOUNDS.mask.sum() == tokens
    assert clip_cov_selection(*BOUNDS.args, generator=rng(), select_frac=frac).sum() == count


def test_no_candidate_means_no_choice():
    flat = replace(BOUNDS, advantages=torch.zeros(2, dtype=torch.float64))
    assert not clip_cov_selection(*flat.args, generator=rng()).any()
    loss = clip_cov_policy_loss(*flat.args, generator=rng())
    assert not loss.any()


def test_each_candidate_is_drawn_equally_often():
    draws = Counter()
    generator = rng(3)
    for _ in range(1200):
        chosen = clip_cov_selection(*BOUNDS.args, generator=generator, select_frac=0.25)
        draws.update(map(tuple, chosen.nonzero().tolist()))
    assert set(draws) == {(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)}
    # 2 of 6 in 1200 draws: mean 400, standard deviation 16.
    assert all(abs(count - 400) < 5 * 16 for count in draws.values())


def test_the_draw_is_the_generators_and_padding_does_not_move_it():
    pad = torch.nn.functional.pad
    wide = Batch(*(pad(x, (0, 2)) for x in BOUNDS.args[:2]), BOUNDS.advantages, pad(BOUNDS.mask, (0, 2)))
    seen = set()
    for seed in range(20):
        one, again = (clip_cov_selection(*BOUNDS.args, generator=rng(seed)) for _ in range(2))
        assert torch.equal(one, again)
        assert torch.equal(clip_cov_selection(*wide.args, generator=rng(seed))[:, :4], one)
        seen.add(tuple(one.flatten().tolist()))
    assert len(seen) > 1


@law
@given(batch=batches(), seed=st.integers(0, 10))
def test_the_loss_is_the_clipped_loss_without_the_chosen_tokens(batch, seed):
    chosen = clip_cov_selection(*batch.args, generator=rng(seed), select_frac=0.5, cov_low=0.1)
    loss, grad = gradient("clip_cov", batch, generator=rng(seed), select_frac=0.5, cov_low=0.1)
    expected = torch.tensor(slow_clip(batch, 1.0, 1.0), dtype=torch.float64).view_as(loss).where(~chosen, 0.0)
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=1e-14)
    assert not grad[chosen].any()
    _, plain = gradient("clip", batch, clip_low=1.0, clip_high=1.0)
    assert torch.equal(grad[~chosen], plain[~chosen])


def test_a_choice_made_before_replaces_the_draw():
    first = torch.zeros_like(BOUNDS.mask)
    first[0, 0] = True
    loss = clip_cov_policy_loss(*BOUNDS.args, selected=first)
    assert loss.tolist() == [[0.0, -2.0, -2.0, -2.0], [2.0, 2.0, 2.0, 2.0]]


def test_statistics_of_the_update_and_of_its_micro_batches_differ():
    """The paper's statistic is over the update; calling the loss per micro-batch without `selected` is verl's."""
    update = clip_cov_selection(*BOUNDS.args, generator=rng(), select_frac=1.0)
    per_micro = [clip_cov_selection(*BOUNDS.rows([i]).args, generator=rng(), select_frac=1.0) for i in range(2)]
    # Within one row the advantage does not vary, so a micro-batch of one completion has covariance 0 throughout.
    assert update.any()
    assert not torch.cat(per_micro).any()
    whole = gradient("clip_cov", BOUNDS, selected=update)
    parts = [gradient("clip_cov", BOUNDS.rows([i]), selected=update[[i]]) for i in range(2)]
    for i in range(2):
        assert torch.equal(torch.cat([part[i] for part in parts]), whole[i])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "given neither `selected` nor `generator`; pass selected=clip_cov_selection"),
        ({"generator": rng(), "select_frac": 20.0}, r"select_frac is 20.0 but it is a share of the tokens in \(0, 1\]"),
        ({"generator": rng(), "select_frac": 0.0}, "select_frac is 0.0"),
        ({"generator": rng(), "cov_low": 5.0}, "cov_low is 5.0 and cov_high is 5.0, so no covariance lies between"),
        ({"generator": rng(), "clip_high": -1.0}, "clip_high is -1.0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        clip_cov_policy_loss(*seeded_batch(1).args, **settings)
