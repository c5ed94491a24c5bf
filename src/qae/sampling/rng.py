"""Random numbers as a pure function of (row, position): batching order changes none of them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_BITS = 24  # of a float32's mantissa: every multiple of 2^-24 in [0, 1) is exact


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _splitmix(state: int) -> int:
    z = (state + _GOLDEN) & _MASK
    for shift, factor in _MIX:
        z = ((z ^ (z >> shift)) * factor) & _MASK
    return z ^ (z >> 31)


def row_key(seed: int, *stream: int) -> int:
    """The 64-bit key of one row's random stream.

    Distinct (seed, stream) give unrelated keys; the order of the stream's numbers matters.

    Args:
        seed: of the run.
        *stream: what tells this row from all others, such as step, problem and sample number.

    Returns:
        A signed 64-bit integer.

    Example:
        >>> row_key(0, 1, 2) == row_key(0, 1, 2), row_key(0, 1, 2) == row_key(0, 2, 1)
        (True, False)
    """
    key = _splitmix(seed & _MASK)
    for number in stream:
        # Multiplied first: with key and number on an equal footing, (seed 0, 1) and (seed 1, 0) would be one stream.
        key = _splitmix((key * _GOLDEN + number) & _MASK)
    return _signed(key)


def uniform_pairs(row_keys: Int64[Tensor, " n"], position: int | Int64[Tensor, " n"]) -> Float[Tensor, "n 2"]:
    """Two independent uniforms in [0, 1) for each row at a position: splitmix64(key + position * golden).

    The high and the low 24 bits of the hash, so each is an exact multiple of 2^-24.

    Args:
        row_keys: [n] keys from `row_key`.
        position: index of the token within its completion; one for all rows or one each.

    Returns:
        [n 2] float32.

    Example:
        >>> keys = torch.tensor([row_key(0, 0), row_key(0, 1)])
        >>> bool((uniform_pairs(keys, 5) == uniform_pairs(keys.flip(0), 5).flip(0)).all())
        True
    """
    z = (
        row_keys + (position + 1) * _signed(_GOLDEN)
        if isinstance(position, Tensor)
        else (row_keys + _signed(((position + 1) * _GOLDEN) & _MASK))
    )
    # `>>` on int64 drags the sign bit along: mask it off to get splitmix's logical shift.
    for shift, factor in _MIX:
        z = (z ^ ((z >> shift) & (_MASK >> shift))) * _signed(factor)
    z = z ^ ((z >> 31) & (_MASK >> 31))
    low = (1 << _BITS) - 1
    bits = torch.stack(((z >> (64 - _BITS)) & low, z & low), dim=-1)
    return bits.to(torch.float32) * 2.0**-_BITS
