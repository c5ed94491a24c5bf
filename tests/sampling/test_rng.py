"""The counter-based uniforms against splitmix64 in plain integers, and their distribution."""

import pytest
import torch

from qae.sampling.rng import row_key, uniform_pairs

MASK = (1 << 64) - 1


def splitmix64(key: int, position: int) -> int:
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("position", [0, 1, 71, 40_000])
def test_equals_splitmix64(position):
    keys = [0, 1, -1, 2**63 - 1, -(2**63), row_key(0, 1)]
    pairs = uniform_pairs(torch.tensor(keys), position)
    for key, (high, low) in zip(keys, pairs.tolist(), strict=True):
        bits = splitmix64(key, position)
        assert high == (bits >> 40) / 2**24
        assert low == (bits & (2**24 - 1)) / 2**24


def test_first_output_of_seed_zero_is_the_published_one():
    assert splitmix64(0, 0) == 0xE220A8397B1DCDAF
    assert uniform_pairs(torch.tensor([0]), 0)[0, 0].item() == (0xE220A8397B1DCDAF >> 40) / 2**24


def test_a_position_for_each_row_equals_one_for_all():
    keys = torch.tensor([row_key(5, i) for i in range(6)])
    positions = torch.tensor([0, 3, 1, 900, 3, 2])
    each = uniform_pairs(keys, positions)
    for i, position in enumerate(positions.tolist()):
        assert torch.equal(each[i], uniform_pairs(keys, position)[i])


def test_uniforms_are_uniform_over_rows_and_over_positions():
    keys = torch.tensor([row_key(0, step, row) for step in range(20) for row in range(100)])
    over_rows = torch.cat([uniform_pairs(keys, p) for p in range(10)])
    one_row = uniform_pairs(keys[:1].repeat(20_000), torch.arange(20_000))
    for sample in (over_rows, one_row):
        counts = (sample * 32).long().flatten().bincount(minlength=32).double()
        expected = counts.sum() / 32
        # 99.99% point of chi-square with 31 degrees of freedom
        assert ((counts - expected) ** 2 / expected).sum() < 69.1
        assert sample.min() >= 0 and sample.max() < 1
        assert abs(torch.corrcoef(sample.T)[0, 1]) < 0.03


def test_keys_differ_by_seed_number_and_order():
    keys = {row_key(seed, a, b) for seed in range(3) for a in range(20) for b in range(20)}
    assert len(keys) == 1200
    assert len({row_key(0), row_key(0, 0), row_key(0, 0, 0), row_key(-1), row_key(2**63)}) == 5
    assert all(-(2**63) <= key < 2**63 for key in keys)
