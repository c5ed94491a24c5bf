"""Numbers, durations and small bars as text."""

from collections.abc import Sequence
from itertools import pairwise

SPARKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """Minutes and seconds, or hours and minutes from an hour on.

    Example:
        >>> duration(63.4), duration(4000), duration(None)
        ('1:03', '1h06', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}"


def number(value: float | None, digits: int = 3) -> str:
    """A fixed number of decimals; scientific where they would all be 0; `-` for nothing.

    Example:
        >>> number(0.41234), number(2e-5), number(None)
        ('0.412', '2.0e-05', '-')
    """
    if value is None:
        return "-"
    return f"{value:.1e}" if value != 0 and abs(value) < 10**-digits else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    """A change, with its sign.

    Example:
        >>> signed(0.1234), signed(-0.5), signed(None)
        ('+0.123', '-0.500', '')
    """
    return "" if value is None else f"{value:+.{digits}f}"


def percent(fraction: float | None) -> str:
    """A share in per cent: whole from 10 on, one decimal below; only nothing is 0%.

    Example:
        >>> percent(0.742), percent(0.0042), percent(0.00001), percent(0.0), percent(None)
        ('74%', '0.4%', '<0.1%', '0%', '-')
    """
    if fraction is None:
        return "-"
    value = 100 * fraction
    if 0 < value < 0.05:
        return "<0.1%"
    return f"{value:.0f}%" if value >= 9.95 or value == 0 else f"{value:.1f}%"


def sparkline(values: Sequence[float], width: int) -> str:
    """A line of blocks, lowest to highest value; neighbours are averaged where there are more than `width`.

    Example:
        >>> sparkline([0, 1, 2, 3], 8), sparkline([1, 1, 5, 5], 2), sparkline([2, 2], 4)
        ('▁▃▆█', '▁█', '▄▄')
    """
    count = min(width, len(values))
    if count < 1:
        return ""
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high <= low:
        return SPARKS[3] * count
    return "".join(SPARKS[round((mean - low) / (high - low) * (len(SPARKS) - 1))] for mean in means)


def shares(fractions: Sequence[float], width: int) -> list[int]:
    """Cells of a bar of `width` for each fraction, by largest remainder, so that no cell is lost to rounding.

    Example:
        >>> shares([0.5, 0.25, 0.25], 10), shares([1.0, 0.0, 0.0], 5)
        ([5, 3, 2], [5, 0, 0])
    """
    exact = [fraction * width for fraction in fractions]
    cells = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(cells)
    by_remainder = sorted(range(len(exact)), key=lambda i: (cells[i] - exact[i], i))
    for i in by_remainder[:missing]:
        cells[i] += 1
    return cells
