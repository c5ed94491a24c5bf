"""Completions that are too long: the soft penalty and the filter of DAPO. Plain numbers."""

from collections.abc import Sequence


def overlong_penalty(lengths: Sequence[int], max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> list[float]:
    """Soft overlong punishment: 0 up to the buffer, then linearly down to -factor at `max_tokens`.

        start = max_tokens - buffer_tokens
        penalty = factor * clip((start - length) / buffer_tokens, -1, 0)

    Added to a completion's reward. `buffer_tokens=0` switches it off. DAPO takes max_tokens 20,480,
    buffer_tokens 4,096, factor 1, on top of rewards of +-1; on rewards of 0/1, 0.5 weighs the same.

    Args:
        lengths: tokens of each completion [n].
        max_tokens: longest completion that sampling allows.
        buffer_tokens: tokens before `max_tokens` over which the penalty grows.
        factor: penalty at `max_tokens`, as a positive number.

    Returns:
        One penalty <= 0 per completion [n].

    Raises:
        ValueError: if `buffer_tokens` is negative or more than `max_tokens`, or `factor` is negative.

    Example:
        >>> overlong_penalty([16384, 18432, 20480], 20480, 4096)
        [0.0, -0.5, -1.0]

    Reference: DAPO, arXiv:2503.14476, eq. 13.
    """
    if not 0 <= buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens={buffer_tokens} must lie between 0 (no penalty) and max_tokens={max_tokens}")
    if factor < 0:
        raise ValueError(f"factor={factor} must not be negative: the penalty is subtracted already")
    if buffer_tokens == 0:
        return [0.0] * len(lengths)
    start = max_tokens - buffer_tokens
    return [factor * max(min((start - length) / buffer_tokens, 0.0), -1.0) for length in lengths]


def filter_truncated(rewards: Sequence[float | None], truncated: Sequence[bool]) -> list[float | None]:
    """Overlong filtering: a completion cut off at the limit has no reward, neither good nor bad.

    None leaves the row out of its group's statistics and gives it advantage 0. Rows are kept in place, so
    group borders do not move. Penalty and filter answer the same question in two ways: use one of them.

    Args:
        rewards: one per completion [n], None where it could not be scored.
        truncated: True where sampling stopped at the token limit [n].

    Returns:
        The rewards with None in place of every truncated completion's [n].

    Raises:
        ValueError: if the two lists differ in length.

    Example:
        >>> filter_truncated([1.0, 0.0, 1.0], [False, True, False])
        [1.0, None, 1.0]

    Reference: DAPO, arXiv:2503.14476, section 3.4.
    """
    if len(rewards) != len(truncated):
        raise ValueError(f"{len(rewards)} rewards but {len(truncated)} truncation flags: give one for each")
    return [None if cut else reward for reward, cut in zip(rewards, truncated, strict=True)]
