"""Statistics of each row's group: ids in any order, groups of any sizes, unscored rows left out.

A row is one completion, a group is all completions of one prompt, and `group_ids` says which is which. NaN
marks a row that was never scored: it is outside its group's statistics, though it still reads them.
"""

import math
import warnings
from fractions import Fraction
from functools import cached_property, lru_cache
from numbers import Real
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qae.checks import check_at_least, check_choice, check_rows

Method = Literal["exact", "linear"]
Divisor = Literal["n", "n-1"]


class Groups:
    """One sorted view of values and ids, from which every statistic of a group is read.

    Rows are ordered by group, then by value, so that the members of a group are neighbours, its order
    statistics are plain positions, and its sums always run in the same order: permuting the rows changes no
    bit of a result. Arithmetic is float64. Each method returns [n], the statistic of each row's group in the
    order of the input; a group without a scored row has size 0 and NaN for everything else.

    Attributes:
        values: [n] the values as float64, detached.
        scored: [n] False where the value is NaN; None if every row is scored.
    """

    def __init__(self, values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"], *, argument: str = "values"):
        check_rows(argument, values, group_ids)
        self.values = values.detach().double()
        self.scored = None if math.isfinite(self.values.sum()) else self._find_scored(argument)
        by_value = self.values.argsort()  # NaN comes last
        sorted_ids, by_group = group_ids.index_select(0, by_value).sort(stable=True)
        order = by_value.index_select(0, by_group)
        _, self._group, self._rows = sorted_ids.unique_consecutive(return_inverse=True, return_counts=True)
        self._group_of_row = torch.empty_like(order).scatter_(0, order, self._group)
        self._order = order
        self._sorted = self.values.index_select(0, order)
        self._start = self._rows.cumsum(0) - self._rows
        self._size = self._rows
        if self.scored is not None:
            self._unscored = self._sorted.isnan()
            self._size = torch.zeros_like(self._rows).index_add_(0, self._group, (~self._unscored).long())
        self._smallest = self._sorted.index_select(0, self._start)
        self._largest = self._order_statistic(self._size - 1)
        self._spread = self._largest - self._smallest

    def size(self) -> Int[Tensor, " n"]:
        """Scored members."""
        return self._to_rows(self._size)

    def smallest(self) -> Float[Tensor, " n"]:
        """The lowest scored value."""
        return self._to_rows(self._smallest)

    def largest(self) -> Float[Tensor, " n"]:
        """The highest scored value."""
        return self._to_rows(self._largest)

    def mean(self) -> Float[Tensor, " n"]:
        """Sum / size."""
        return self._to_rows(self._mean)

    def std(self, divisor: Divisor = "n") -> Float[Tensor, " n"]:
        """Root of the mean squared deviation; exactly 0 where all members are equal."""
        check_choice("divisor", divisor, ("n", "n-1"))
        deviation = self._sorted - self._mean.index_select(0, self._group)
        degrees = self._size if divisor == "n" else self._size - (self._size > 1).long()
        return self._to_rows((self._sum(deviation * deviation) / degrees).sqrt())

    def quantile(self, k: float, method: Method = "exact") -> Float[Tensor, " n"]:
        """The k-quantile; see `group_quantile`."""
        check_choice("method", method, ("exact", "linear"))
        below, above, weight = _positions(k, method, self._size)
        lower = self._order_statistic(below)
        if method == "exact":
            return self._to_rows(lower)
        return self._to_rows(lower + (self._order_statistic(above) - lower) * weight)

    def quantile_of_others(self, k: float, method: Method = "exact") -> Float[Tensor, " n"]:
        """The k-quantile of the other scored rows of each scored row's group; NaN where there is no other."""
        check_choice("method", method, ("exact", "linear"))
        below, above, weight = _positions(k, method, self._size - 1)
        own = torch.arange(len(self._sorted), device=self._sorted.device) - self._start.index_select(0, self._group)

        def of_others(position: Int[Tensor, " q"]) -> Float[Tensor, " n"]:
            wanted = position.clamp(min=0).index_select(0, self._group)
            wanted = wanted + (wanted >= own).long()  # the row itself is skipped
            first, last = (x.index_select(0, self._group) for x in (self._start, self._start + self._rows - 1))
            return self._sorted.index_select(0, torch.minimum(first + wanted, last))

        lower = of_others(below)
        if method == "linear":
            lower = lower + (of_others(above) - lower) * weight.index_select(0, self._group)
        alone = (self._size < 2).index_select(0, self._group)
        return torch.empty_like(lower).scatter_(0, self._order, lower.masked_fill(alone, torch.nan))

    def flat(self, tolerance: float = 0.0) -> Bool[Tensor, " n"]:
        """True where the group has no two scored rows further apart than `tolerance`."""
        return self._to_rows(~(self._spread > tolerance))  # NaN, of no scored row, is not above it

    def compared(self, flat_tolerance: float = 0.0, min_size: int = 2) -> Bool[Tensor, " n"]:
        """True for the rows that have something to be compared with; the others' advantage is 0.

        Such a row is scored, and its group holds at least `min_size` scored rows that are not all equal. Warns
        when most groups hold a single row, which is what ids made per completion look like.
        """
        check_at_least("flat_tolerance", flat_tolerance, 0)
        check_at_least("min_size", min_size, 2)
        alone = int((self._rows == 1).sum())
        if len(self.values) > 1 and 2 * alone > len(self._rows):
            warnings.warn(
                f"{alone} of {len(self._rows)} groups have a single row, so nothing to compare it with and "
                "advantage 0; group_ids must be equal for all completions of one prompt",
                stacklevel=3,
            )
        compared = self._to_rows((self._size >= min_size) & (self._spread > flat_tolerance))
        return compared if self.scored is None else compared & self.scored

    @cached_property
    def _mean(self) -> Float[Tensor, " q"]:
        # Rounding must not move the mean past its members: a flat group's mean is its value to the last bit.
        return (self._sum(self._sorted) / self._size).clamp(self._smallest, self._largest)

    def _find_scored(self, argument: str) -> Bool[Tensor, " n"]:
        infinite = self.values.isinf().nonzero()
        if len(infinite) > 0:
            row = int(infinite[0])
            raise ValueError(
                f"{argument}[{row}]={float(self.values[row])} is not finite; pass NaN for a row that was not scored"
            )
        return ~self.values.isnan()

    def _sum(self, sorted_values: Float[Tensor, " n"]) -> Float[Tensor, " q"]:
        if self.scored is not None:
            sorted_values = sorted_values.masked_fill(self._unscored, 0.0)
        # Unlike index_add_ this has a fixed order of summation on CUDA too.
        return torch.segment_reduce(sorted_values, "sum", lengths=self._rows, unsafe=True)

    def _order_statistic(self, position: Int[Tensor, " q"]) -> Float[Tensor, " q"]:
        # Position -1 of a group without a scored row reads its first row: NaN, as it should.
        return self._sorted.index_select(0, self._start + position.clamp(min=0))

    def _to_rows(self, of_group: Tensor) -> Tensor:
        return of_group.index_select(0, self._group_of_row)


def _positions(
    k: float, method: Method, size: Int[Tensor, " q"]
) -> tuple[Int[Tensor, " q"], Int[Tensor, " q"], Float[Tensor, " q"]]:
    """Positions of the k-quantile among `size` sorted values: below, above, and the weight of the one above."""
    numerator, denominator = fraction_meant(k).as_integer_ratio()
    if method == "exact":
        position = (numerator * size - 1) // denominator  # ceil(k * size) - 1, in integers
        return position, position, torch.zeros_like(size, dtype=torch.float64)
    position = numerator * (size - 1)
    weight = (position % denominator).double() / denominator
    return position // denominator, (position + denominator - 1) // denominator, weight


def group_index(group_ids: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Each row's group as a dense number 0..q-1, in the order of the ids.

    Args:
        group_ids: [n] any integers.

    Returns:
        [n] int64.

    Example:
        >>> group_index(torch.tensor([7, -1, 7])).tolist()
        [1, 0, 1]
    """
    return torch.unique(group_ids, return_inverse=True)[1]


def group_quantile(
    values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"], k: float, *, method: Method = "exact"
) -> Float[Tensor, " n"]:
    """The k-quantile of each row's group: the smallest value whose empirical CDF reaches `k`.

        b_g = inf { x : F_g(x) >= k },    the ceil(k n)-th smallest of the group's n values

    "exact" does not interpolate, so the baseline is always a reward that some row really got; on 0/1 rewards a
    pass rate of exactly 1 - k still gives 0. The rank is computed in integers, with `k` read as the fraction it
    was meant to be (see `fraction_meant`). "linear" interpolates between neighbours like `torch.quantile`,
    without the rounding residue that torch leaves where k (n - 1) is an integer.

    Args:
        values: [n] rewards; NaN for a row that was not scored.
        group_ids: [n] any integers, equal within a group.
        k: level of the quantile, strictly between 0 and 1.
        method: "exact" is the paper's definition, "linear" the authors' code.

    Returns:
        [n] the quantile of each row's group; NaN where no row of the group is scored.

    Raises:
        ValueError: `k` is not strictly between 0 and 1, `method` is unknown, or a value is infinite.

    Example:
        >>> values, group_ids = torch.tensor([1.0, 0, 0, 1, 1]), torch.tensor([7, 7, 7, 3, 3])
        >>> group_quantile(values, group_ids, 0.4).tolist()
        [0.0, 0.0, 0.0, 1.0, 1.0]
        >>> group_quantile(values, group_ids, 0.75, method="linear").tolist()
        [0.5, 0.5, 0.5, 1.0, 1.0]

    Reference:
        Quantile Advantage Estimation, arXiv:2509.22611, section 4.1.
    """
    return Groups(values, group_ids).quantile(k, method).to(values.dtype)


def group_mean(values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The mean of each row's group.

        m_g = 1/n sum_i x_i

    Args:
        values: [n] rewards; NaN for a row that was not scored.
        group_ids: [n] any integers, equal within a group.

    Returns:
        [n] the mean of each row's group; NaN where no row of the group is scored.

    Raises:
        ValueError: a value is infinite.

    Example:
        >>> group_mean(torch.tensor([1.0, torch.nan, 0, 0.5]), torch.tensor([0, 0, 0, 1])).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    return Groups(values, group_ids).mean().to(values.dtype)


def group_std(
    values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"], *, divisor: Divisor = "n"
) -> Float[Tensor, " n"]:
    """The standard deviation of each row's group; exactly 0 where its members are equal, or where it has one.

        s_g = sqrt( 1/d sum_i (x_i - m_g)^2 ),    d = n or n - 1

    Args:
        values: [n] rewards; NaN for a row that was not scored.
        group_ids: [n] any integers, equal within a group.
        divisor: "n" is the paper's proof, "n-1" is `torch.std`, which verl and TRL use.

    Returns:
        [n] the standard deviation of each row's group; NaN where no row of the group is scored.

    Raises:
        ValueError: `divisor` is unknown, or a value is infinite.

    Example:
        >>> values, group_ids = torch.tensor([1.0, 0, 0, 1]), torch.tensor([0, 0, 0, 0])
        >>> group_std(values, group_ids).tolist()
        [0.5, 0.5, 0.5, 0.5]
        >>> group_std(values, group_ids, divisor="n-1")
        tensor([0.5774, 0.5774, 0.5774, 0.5774])
    """
    return Groups(values, group_ids).std(divisor).to(values.dtype)


def group_size(values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The number of scored rows in each row's group.

    Args:
        values: [n] rewards; NaN for a row that was not scored.
        group_ids: [n] any integers, equal within a group.

    Returns:
        [n] int64.

    Raises:
        ValueError: a value is infinite.

    Example:
        >>> group_size(torch.tensor([1.0, torch.nan, 0, 0]), torch.tensor([4, 4, 4, 4])).tolist()
        [3, 3, 3, 3]
    """
    return Groups(values, group_ids).size()


def group_flat(
    values: Float[Tensor, " n"], group_ids: Int[Tensor, " n"], *, tolerance: float = 0.0
) -> Bool[Tensor, " n"]:
    """Whether each row's group has nothing to compare: its scored rows are all equal, or fewer than two.

        max_i x_i - min_i x_i <= tolerance

    With tolerance 0 this is equality of the rewards themselves, not a standard deviation that rounds to 0.

    Args:
        values: [n] rewards; NaN for a row that was not scored.
        group_ids: [n] any integers, equal within a group.
        tolerance: largest spread, in the unit of `values`, that still counts as equal.

    Returns:
        [n] bool.

    Raises:
        ValueError: `tolerance` is negative, or a value is infinite.

    Example:
        >>> values, group_ids = torch.tensor([0.6667, 0.6668, 1, 1]), torch.tensor([0, 0, 1, 1])
        >>> group_flat(values, group_ids).tolist()
        [False, False, True, True]
        >>> group_flat(values, group_ids, tolerance=1e-3).tolist()
        [True, True, True, True]
    """
    check_at_least("tolerance", tolerance, 0)
    return Groups(values, group_ids).flat(tolerance)


def fraction_meant(k: float) -> Fraction:
    """The fraction that whoever typed `k` meant: the nearest one with a denominator of at most a million.

    0.28 is stored as a number slightly above 7/25, so that `ceil(0.28 * 25)` is 8 where rank 7 is meant. Read
    this way every decimal of up to six places is exact, 1/3 is a third and 0.1 + 0.2 is 0.3. The result never
    crosses a threshold r/n of a group of at most a million rows, because r/n is a candidate itself; it lands on
    one only if `k` is within 5e-7 of it.

    Args:
        k: a number strictly between 0 and 1.

    Returns:
        The fraction.

    Raises:
        TypeError: `k` is not a number.
        ValueError: `k` is not strictly between 0 and 1.

    Example:
        >>> fraction_meant(0.28), fraction_meant(1 - 1 / 3)
        (Fraction(7, 25), Fraction(2, 3))
    """
    if not isinstance(k, Real):
        raise TypeError(f"k={k!r} is a {type(k).__name__}; pass a number strictly between 0 and 1, such as 0.4")
    if not 0 < k < 1:
        meant = f"k is a fraction: {k / 100:g}?" if 2 <= k < 100 else "0.4 is usual; for the mean use mean_advantages"
        raise ValueError(f"k={k} must lie strictly between 0 and 1 ({meant})")
    return _simplest(float(k))


@lru_cache
def _simplest(k: float) -> Fraction:
    return Fraction(k).limit_denominator(1_000_000)
