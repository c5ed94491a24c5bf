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


def differences(size: int, percent: int) -> list[tuple[int, float, float]]:
    failures = torch.arange(size + 1)
    rewards = (torch.arange(size) >= failures[:, None]).float().flatten()
    group_ids = failures.repeat_interleave(size)
    exact = group_quantile(rewards, group_ids, percent / 100)[::size].tolist()
    linear = group_quantile(rewards, group_ids, percent / 100, method="linear")[::size].tolist()
    return [(n, e, round(x, 6)) for n, e, x in zip(failures.tolist(), exact, linear, strict=True) if e != x]


@pytest.mark.parametrize(("size", "percent"), DIFFERENCES)
def test_where_they_differ(size, percent):
    expected = DIFFERENCES[size, percent]
    assert differences(size, percent) == ([] if expected is None else [expected])


def test_at_most_one_composition_differs_for_any_size_and_level():
    for size in range(2, 33):
        for percent in range(1, 100):
            assert len(differences(size, percent)) <= 1
