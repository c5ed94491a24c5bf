"""What generated tasks share: the held-out split, the difficulty mix, draws that depend on (seed, i) only."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from random import Random

from qae.tasks.task import Item

Draw = Callable[[Random, str], Item]
Levels = Mapping[str, float] | Sequence[str]

_TRIES_BEFORE_EXHAUSTED = 5_000


def is_heldout(item_id: str, frac: float) -> bool:
    """Whether the problem with this canonical id is held out: a hash of the id alone, so no seed can move it.

    Args:
        item_id: canonical id; equal problems must have equal ids.
        frac: share of all problems that is held out.

    Returns:
        True for about `frac` of all ids.

    Example:
        >>> sum(is_heldout(f"problem {i}", 0.1) for i in range(1000))
        105
    """
    digest = hashlib.sha256(item_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < frac * 2**64


def level_weights(task: str, levels: Levels, known: Sequence[str]) -> dict[str, float]:
    """The difficulty mix as shares that sum to one; a plain list of levels means equal shares.

    Args:
        task: the task's name, for the error.
        levels: level -> weight, or the levels alone.
        known: every level that the task has.

    Returns:
        level -> share, without the levels whose weight is 0.

    Raises:
        ValueError: an unknown level, a negative weight, or no weight above 0.

    Example:
        >>> level_weights("arithmetic", {"2x1": 3, "2x2": 1}, ["1x1", "2x1", "2x2"])
        {'2x1': 0.75, '2x2': 0.25}
    """
    weights = dict(levels) if isinstance(levels, Mapping) else dict.fromkeys(levels, 1.0)
    for level, weight in weights.items():
        if level not in known:
            raise ValueError(f"task {task}: unknown level {level!r}; levels are {', '.join(known)}")
        if not weight >= 0:
            raise ValueError(f"task {task}: the weight of level {level!r} is {weight}, must be at least 0")
    total = sum(weights.values())
    if not total > 0:
        raise ValueError(f"task {task}: no level has a weight above 0; levels are {', '.join(known)}")
    return {level: weight / total for level, weight in weights.items() if weight > 0}


def draw_train_item(task: str, draw: Draw, shares: Mapping[str, float], frac: float, seed: int, i: int) -> Item:
    """Training item i: level and problem from a stream of (task, seed, i), drawn again while it is held out.

    Args:
        task: the task's name, part of the stream's key.
        draw: makes an item of a level.
        shares: level -> share.
        frac: share of all problems that is held out.
        seed: of the run.
        i: index of the item, from 0.

    Returns:
        An item that `is_heldout` does not hold out.
    """
    if i < 0:
        raise ValueError(f"train_item: i is {i}, must be at least 0")
    rng = Random(f"{task}/train/{seed}/{i}")
    (level,) = rng.choices(list(shares), list(shares.values()))
    while is_heldout((item := draw(rng, level)).id, frac):
        pass
    return item


def draw_heldout_items(task: str, draw: Draw, shares: Mapping[str, float], frac: float, count: int) -> list[Item]:
    """The first `count` held-out items: distinct problems, levels interleaved by share, no seed involved.

    A level that runs out of held-out problems leaves its places to the others; when all have, that is all there is.

    Args:
        task: the task's name, part of the stream's key.
        draw: makes an item of a level.
        shares: level -> share.
        frac: share of all problems that is held out.
        count: number of items wanted.

    Returns:
        At most `count` items; a shorter call returns a prefix of a longer one.
    """
    streams = {level: Random(f"{task}/heldout/{level}") for level in shares}
    drawn = dict.fromkeys(shares, 0)
    items: dict[str, Item] = {}
    while streams and len(items) < count:
        # the level furthest behind its share
        level = min(streams, key=lambda name: (drawn[name] + 1) / shares[name])
        for _ in range(_TRIES_BEFORE_EXHAUSTED):
            item = draw(streams[level], level)
            if is_heldout(item.id, frac) and item.id not in items:
                items[item.id] = item
                drawn[level] += 1
                break
        else:
            del streams[level]
    return list(items.values())
