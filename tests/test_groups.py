"""Group statistics: hand values, the definition in exact arithmetic, laws, and the cases people reported."""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from qae.groups import (
    Groups,
    fraction_meant,
    group_flat,
    group_index,
    group_mean,
    group_quantile,
    group_size,
    group_std,
)
from reward_batches import batches, floats, ids, integers, law, levels, one_group

NAN = torch.nan


def of_each_row(rewards, group_ids, of_group: Callable[[list[Fraction]], float]) -> list[float]:
    """The slow way: collect each row's scored siblings and apply the definition."""
    members = {g: [r for r, h in zip(rewards, group_ids, strict=True) if h == g and r is not None] for g in group_ids}
    return [of_group(members[g]) if members[g] else NAN for g in group_ids]


def close(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=actual.dtype), rtol=1e-15, atol=1e-15, equal_nan=True
    )


def test_hand_values():
    values = torch.tensor([3.0, 0.0, 1.0, NAN, 5.0, 0.0])
    group_ids = torch.tensor([9, -2, -2, -2, 9, -2])
    assert group_index(group_ids).tolist() == [1, 0, 0, 0, 1, 0]
    assert group_size(values, group_ids).tolist() == [2, 3, 3, 3, 2, 3]
    assert group_mean(values, group_ids).tolist() == [4.0, *[pytest.approx(1 / 3)] * 3, 4.0, pytest.approx(1 / 3)]
    assert group_quantile(values, group_ids, 0.5).tolist() == [3.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    assert group_quantile(values, group_ids, 0.75, method="linear").tolist() == [4.5, 0.5, 0.5, 0.5, 4.5, 0.5]
    assert group_std(values, group_ids)[0] == 1.0
    assert group_std(values, group_ids, divisor="n-1").square()[0] == pytest.approx(2.0)


@pytest.mark.parametrize("k", [Fraction(i, 100) for i in range(1, 100)], ids=lambda k: f"{float(k):g}")
def test_exact_quantile_is_the_definition_for_every_group_up_to_64(k):
    """Each size, each count of successes, in one call: 2,144 groups at once."""
    compositions = [(size, wins) for size in range(1, 65) for wins in range(size + 1)]
    values = torch.cat([torch.arange(size) < wins for size, wins in compositions]).float()
    sizes = torch.tensor([size for size, _ in compositions])
    group_ids = torch.arange(len(sizes)).repeat_interleave(sizes)
    first_row = sizes.cumsum(0) - sizes
    found = group_quantile(values, group_ids, float(k))[first_row]
    # inf { x : F(x) >= k } on 0/1 values: F(0) is the share of failures.
    expected = [0.0 if Fraction(size - wins, size) >= k else 1.0 for size, wins in compositions]
    assert found.tolist() == expected


@law
@given(batches(), levels)
def test_quantiles_equal_their_definitions(batch, k):
    values, group_ids = floats(batch[0]), integers(batch[1])
    exact = of_each_row(*batch, lambda members: float(reference.quantile_from_definition(members, k)))
    close(group_quantile(values, group_ids, float(k)), exact)
    linear = of_each_row(*batch, lambda members: float(reference.linear_quantile(members, k)))
    close(group_quantile(values, group_ids, float(k), method="linear"), linear)


@law
@given(batches())
def test_moments_equal_their_definitions(batch):
    values, group_ids = floats(batch[0]), integers(batch[1])
    close(group_mean(values, group_ids), of_each_row(*batch, lambda members: float(reference.mean(members))))
    for divisor in ("n", "n-1"):
        variance = of_each_row(*batch, lambda members, d=divisor: float(reference.variance(members, d)))
        close(group_std(values, group_ids, divisor=divisor), [v**0.5 for v in variance])


@law
@given(batches())
def test_size_and_flatness_equal_their_definitions(batch):
    values, group_ids = floats(batch[0]), integers(batch[1])
    siblings = [[r for r, h in zip(*batch, strict=True) if h == g and r is not None] for g in batch[1]]
    assert group_size(values, group_ids).tolist() == [len(members) for members in siblings]
    assert group_flat(values, group_ids).tolist() == [len(set(members)) < 2 for members in siblings]
    wide = [len(members) < 2 or max(members) - min(members) <= Fraction(1, 4) for members in siblings]
    assert group_flat(values, group_ids, tolerance=0.25).tolist() == wide


@law
@given(st.lists(ids, max_size=20))
def test_index_is_dense_and_ordered(group_ids):
    order = {g: i for i, g in enumerate(sorted(set(group_ids)))}
    assert group_index(integers(group_ids)).tolist() == [order[g] for g in group_ids]


@law
@given(batches(st.floats(-1e6, 1e6)), levels, st.randoms(use_true_random=False))
def test_permuting_rows_changes_no_bit(batch, k, rng: random.Random):
    values, group_ids = floats(batch[0]), integers(batch[1])
    order = list(range(len(values)))
    rng.shuffle(order)
    moved = Groups(values[order], group_ids[order])
    still = Groups(values, group_ids)
    for name, arguments in (
        ("mean", ()),
        ("std", ("n-1",)),
        ("quantile", (float(k),)),
        ("quantile", (float(k), "linear")),
    ):
        expected = getattr(still, name)(*arguments)[order]
        assert torch.equal(getattr(moved, name)(*arguments).nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("k", [0.05, 0.2, 0.28, 0.4, 0.5, 0.6, 0.8, 0.95])
def test_linear_is_torch_quantile(k):
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 40):
        values = torch.rand(size, dtype=torch.float64, generator=generator)
        expected = torch.quantile(values, k).expand(size)
        found = group_quantile(values, torch.zeros(size, dtype=torch.int64), k, method="linear")
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_linear_leaves_no_residue_where_torch_does():
    values, group_ids = one_group([0.0] * 16 + [1.0] * 10)
    assert torch.quantile(values, 0.6) > 0  # 0.6 * 25 is above 15 in float32
    assert (group_quantile(values, group_ids, 0.6, method="linear") == 0).all()


@pytest.mark.parametrize(
    ("k", "meant"),
    [
        (0.28, Fraction(7, 25)),
        (0.29, Fraction(29, 100)),
        (0.1 + 0.2, Fraction(3, 10)),
        (1 / 3, Fraction(1, 3)),
        (1 - 1 / 3, Fraction(2, 3)),
        (1 - 0.72, Fraction(7, 25)),
        (0.123456, Fraction(123456, 10**6)),
    ],
)
def test_k_is_read_as_it_was_meant(k, meant):
    assert fraction_meant(k) == meant


def test_the_rank_of_0_28_in_25_is_7():
    assert 0.28 * 25 > 7
    values, group_ids = one_group([0.0] * 7 + [1.0] * 18)
    assert (group_quantile(values, group_ids, 0.28) == 0).all()


@law
@given(st.floats(1e-5, 1 - 1e-5), st.integers(1, 1_000_000), st.data())
def test_reading_k_crosses_no_threshold(k, n, data):
    threshold = Fraction(data.draw(st.integers(0, n)), n)
    meant = fraction_meant(k)
    if Fraction(k) >= threshold:
        assert meant >= threshold
    else:
        assert meant <= threshold
    assert abs(meant - Fraction(k)) <= Fraction(1, 2_000_000)


def test_unscored_rows_are_outside_their_group():
    values, group_ids = one_group([1.0, NAN, 0.0, 0.0])
    assert group_size(values, group_ids).tolist() == [3] * 4
    assert torch.equal(group_mean(values, group_ids), torch.full((4,), 1 / 3))
    assert group_quantile(values, group_ids, 0.4).tolist() == [0.0] * 4


def test_a_group_without_a_scored_row_has_no_statistic_and_disturbs_no_other():
    values, group_ids = torch.tensor([NAN, 1.0, NAN, 0.0]), torch.tensor([5, 6, 5, 6])
    assert group_size(values, group_ids).tolist() == [0, 2, 0, 2]
    for statistic in (
        group_mean(values, group_ids),
        group_std(values, group_ids),
        group_std(values, group_ids, divisor="n-1"),
        group_quantile(values, group_ids, 0.4),
        group_quantile(values, group_ids, 0.4, method="linear"),
    ):
        assert statistic.isnan().tolist() == [True, False, True, False]
    assert group_flat(values, group_ids).tolist() == [True, False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.95, 0.1, 1 / 3, -0.7])
def test_equal_rewards_have_no_spread_dyadic_or_not(dtype, reward):
    for size in range(1, 40):
        values, group_ids = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64)
        assert group_flat(values, group_ids).all()
        assert torch.equal(group_mean(values, group_ids), values)
        for divisor in ("n", "n-1"):
            assert torch.equal(group_std(values, group_ids, divisor=divisor), torch.zeros(size, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_dtypes_are_kept(dtype, id_dtype):
    values, group_ids = torch.tensor([1.0, 0.0, 0.5], dtype=dtype), torch.tensor([1, 1, 1], dtype=id_dtype)
    for statistic in (
        group_quantile(values, group_ids, 0.4),
        group_mean(values, group_ids),
        group_std(values, group_ids),
    ):
        assert statistic.dtype == dtype
    assert group_size(values, group_ids).dtype == group_index(group_ids).dtype == torch.int64


def test_large_offset_costs_no_precision():
    """In float32, E[x^2] - E[x]^2 of these is noise; two passes in float64 are not."""
    values, group_ids = one_group([4096.0, 4096.0, 4096.0, 4096.25])
    assert group_std(values, group_ids)[0] == pytest.approx(0.25 * 3**0.5 / 4, rel=1e-6)


def test_an_empty_batch_stays_empty():
    values, group_ids = one_group([])
    for statistic in (
        group_quantile(values, group_ids, 0.4),
        group_mean(values, group_ids),
        group_std(values, group_ids),
        group_size(values, group_ids),
        group_flat(values, group_ids),
    ):
        assert statistic.shape == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_agrees_with_cpu(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 5, (5000,), generator=generator).to(dtype) / 4
    values[::17] = NAN
    group_ids = torch.randint(0, 700, (5000,), generator=generator)
    here, there = Groups(values, group_ids), Groups(values.cuda(), group_ids.cuda())
    for name, arguments in (("mean", ()), ("std", ("n-1",)), ("quantile", (0.4,)), ("quantile", (0.4, "linear"))):
        torch.testing.assert_close(
            getattr(there, name)(*arguments).cpu(),
            getattr(here, name)(*arguments),
            rtol=1e-14,
            atol=1e-14,
            equal_nan=True,
        )
    assert torch.equal(there.compared().cpu(), here.compared())
