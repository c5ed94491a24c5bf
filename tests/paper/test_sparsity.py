"""How many completions get advantage 0, and what K really moves."""

import pytest
import torch
from hypothesis import given

from qae.advantages import quantile_advantages
from qae.entropy import expected_zero_frac, regime_table
from reward_batches import batches, binary, floats, integers, law, levels

pytestmark = pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")

KS = (0.2, 0.4, 0.5, 0.6, 0.8)
U = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
# Pass rates by the inverse of their distribution function.
PASS_RATES = {
    "uniform": (U, (0.66, 0.74, 0.75, 0.74, 0.66)),
    "Beta(.5, .5)": ((U * torch.pi / 2).sin().square(), (0.75, 0.81, 0.82, 0.81, 0.75)),
    "Beta(1, 3)": (1 - (1 - U) ** (1 / 3), (0.76, 0.78, 0.78, 0.77, 0.65)),
}


@pytest.mark.parametrize("name", PASS_RATES)
def test_zero_share_by_k(name):
    """The paper's 80% is what a U-shaped distribution of pass rates gives."""
    pass_rates, expected = PASS_RATES[name]
    assert tuple(round(expected_zero_frac(pass_rates, k), 2) for k in KS) == expected


@pytest.mark.parametrize("name", ["uniform", "Beta(.5, .5)"])
def test_sparsity_peaks_at_one_half_and_is_symmetric(name):
    """So a larger K does not mean fewer non-zero advantages."""
    pass_rates, _ = PASS_RATES[name]
    zero = {k: expected_zero_frac(pass_rates, k / 100) for k in range(5, 100, 5)}
    assert max(zero, key=lambda k: zero[k]) == 50
    for k in range(5, 50, 5):
        assert zero[k] == pytest.approx(zero[100 - k], abs=1e-4)


def test_k_moves_the_mix_of_signs():
    generator = torch.Generator().manual_seed(0)
    group_ids = torch.arange(4096) // 8
    pass_rate = torch.rand(512, generator=generator)[group_ids]
    outcomes = (torch.rand(4096, generator=generator) < pass_rate).float()
    table = regime_table(outcomes, group_ids, KS)
    easy = [row.easy_frac for row in table]
    negative = [row.negative_frac for row in table]
    positive = [row.positive_frac for row in table]
    assert easy == sorted(easy)
    assert negative == sorted(negative)
    assert positive == sorted(positive, reverse=True)


@law
@given(batches(binary, unscored=False), levels)
def test_no_mixed_group_becomes_all_zero(batch, k):
    """So dynamic sampling, which filters on accuracy, has no more to resample than before."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    advantages = quantile_advantages(rewards, group_ids, float(k))
    for group in group_ids.unique():
        rows = group_ids == group
        mixed = 0 < rewards[rows].mean() < 1
        assert bool((advantages[rows] != 0).any()) == bool(mixed)


@law
@given(batches(binary, unscored=False), levels)
def test_non_zero_share_of_a_group(batch, k):
    """p if p <= 1 - K, else 1 - p."""
    rewards, group_ids = floats(batch[0]), integers(batch[1])
    advantages = quantile_advantages(rewards, group_ids, float(k))
    for group in group_ids.unique():
        rows = group_ids == group
        p = rewards[rows].mean()
        zero = (advantages[rows] == 0).double().mean()
        if rows.sum() > 1:
            assert zero == pytest.approx(expected_zero_frac(p[None], float(k)))
