"""Where the paper's quantile and the authors' `torch.quantile` part ways, over all compositions of a group."""

import pytest
import torch

from qae.groups import group_quantile

# (group size, K in per cent): (failures, the paper's baseline, the code's baseline)
DIFFERENCES = {
    (4, 40): (2, 0.0, 0.2),
    (4, 60): (2, 1.0, 0.8),
    (8, 40): (3, 1.0, 0.8),
    (8, 60): (5, 0.0, 0.2),
    (10, 40): (4, 0.0, 0.6),
    (16, 50): (8, 0.0, 0.5),
    (32, 40): (13, 0.0, 0.4),
    (32, 60): (19, 1.0, 0.6),
    **{(16, k): None for k in (20, 40, 60, 80)},
}


def differences(sizes: list[int], percent: int) -> dict[int, list[tuple[int, float, float]]]:
    """By size: (failures, exact baseline, linear baseline) of each composition where the two differ."""
    compositions = [(size, failures) for size in sizes for failures in range(size + 1)]
    rewards = torch.cat([(torch.arange(size) >= failures).float() for size, failures in compositions])
    lengths = torch.tensor([size for size, _ in compositions])
    group_ids = torch.arange(len(lengths)).repeat_interleave(lengths)
    first_row = lengths.cumsum(0) - lengths
    exact = group_quantile(rewards, group_ids, percent / 100)[first_row].tolist()
    linear = group_quantile(rewards, group_ids, percent / 100, method="linear")[first_row].tolist()
    found: dict[int, list[tuple[int, float, float]]] = {size: [] for size in sizes}
    for (size, failures), e, x in zip(compositions, exact, linear, strict=True):
        if e != x:
            found[size].append((failures, e, round(x, 6)))
    return found


@pytest.mark.parametrize(("size", "percent"), DIFFERENCES)
def test_where_they_differ(size, percent):
    expected = DIFFERENCES[size, percent]
    assert differences([size], percent)[size] == ([] if expected is None else [expected])


def test_at_most_one_composition_differs_for_any_size_and_level():
    for percent in range(1, 100):
        assert all(len(found) <= 1 for found in differences(list(range(2, 33)), percent).values())
