"""Batches of rewards and ids for the tests of groups, advantages and regimes."""

import inspect
from collections.abc import Sequence
from fractions import Fraction

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from qae.advantages import ADVANTAGES

law = settings(deadline=None, max_examples=60)

ids = st.integers(-(2**40), 2**40)
levels = st.integers(1, 99).map(lambda hundredths: Fraction(hundredths, 100))
binary = st.sampled_from([Fraction(0), Fraction(1)])
# Eighths are exact in float32, so that equality of rewards means the same here and in the reference.
graded = st.integers(-16, 16).map(lambda eighths: Fraction(eighths, 8))


@st.composite
def batches(
    draw: st.DrawFn, rewards: st.SearchStrategy[Fraction] = graded, *, unscored: bool = True
) -> tuple[list[Fraction | None], list[int]]:
    """Rewards and ids of ragged groups, interleaved, with unscored rows (None)."""
    group_ids = draw(st.lists(ids, min_size=1, max_size=4, unique=True))
    member = st.tuples(st.none() | rewards if unscored else rewards, st.sampled_from(group_ids))
    rows = draw(st.lists(member, max_size=24))
    return [reward for reward, _ in rows], [group for _, group in rows]


def floats(values: Sequence[Fraction | None], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([torch.nan if v is None else float(v) for v in values], dtype=dtype)


def integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def one_group(values: Sequence[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(values), torch.zeros(len(values), dtype=torch.int64)


KEYS = torch.randint(2**62, (64,), generator=torch.Generator().manual_seed(0))


def keyed(estimator):
    """The estimator as a function of rewards, ids and which rows they are, for those that choose rows by a key."""

    def estimate(rewards, group_ids, rows=None, **options):
        if "row_keys" in inspect.signature(estimator).parameters:
            keys = torch.cat([KEYS] * (1 + len(rewards) // 64)).to(rewards.device)
            options["row_keys"] = keys[: len(rewards)] if rows is None else keys[rows]
        return estimator(rewards, group_ids, **options)

    return estimate


ESTIMATORS = {name: keyed(function) for name, function in ADVANTAGES.items()}
