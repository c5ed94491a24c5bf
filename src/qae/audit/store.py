"""Completions sorted into groups, in a few bytes each: a gigabyte of dumps fits into a fraction of that."""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_ROW = struct.Struct("<db")
_NAN = float("nan")
UNKNOWN = -1


@dataclass(slots=True)
class Row:
    """What one completion contributes. None where the dump does not say."""

    group: Any
    reward: float | None
    outcome: float | None = None
    step: int | None = None
    advantage: float | None = None
    tokens: int | None = None
    truncated: bool | None = None
    text: str | None = None


@dataclass(slots=True)
class Sums:
    """A mean in the making."""

    count: int = 0
    total: float = 0.0

    def add(self, x: float) -> None:
        """Take one value in."""
        self.count += 1
        self.total += x

    @property
    def mean(self) -> float | None:
        """The mean, None before the first value."""
        return self.total / self.count if self.count else None


@dataclass
class GroupStore:
    """All groups seen so far.

    A group is kept as packed (reward, outcome) pairs under a 64-bit hash of its id and step. Texts are only hashed,
    to count duplicates, and only those of the first `kept_texts` rows; logged advantages are kept for the first
    `kept_advantages` rows.

    Attributes:
        source: where the rows now added come from: equal ids of two sources are two groups.
        rows: completions seen.
        unscored: of them, without a reward.
        steps: distinct steps.
        length: mean length by outcome: right, wrong, or unknown.
        truncated: share of truncated completions.
        logged: (group, reward, outcome, advantage) as logged.
        duplicates: texts seen before in the same group, of `texts` looked at.
    """

    kept_texts: int = 200_000
    kept_advantages: int = 100_000
    source: str = ""
    rows: int = 0
    unscored: int = 0
    texts: int = 0
    duplicates: int = 0
    steps: set[int] = field(default_factory=set[int])
    length: dict[str, Sums] = field(default_factory=lambda: {"right": Sums(), "wrong": Sums(), "unknown": Sums()})
    length_unit: str = "tokens"
    truncated: Sums = field(default_factory=Sums)
    logged: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    _packed: dict[int, bytes] = field(default_factory=dict[int, bytes])
    _seen: set[int] = field(default_factory=set[int])

    def add(self, row: Row) -> None:
        """Take one completion in."""
        key = hash((self.source, row.group, row.step))
        self.rows += 1
        reward = row.reward
        if reward is None or reward != reward:
            self.unscored += 1
            self._packed.setdefault(key, b"")
        else:
            outcome = UNKNOWN if row.outcome is None else int(row.outcome >= 1)
            self._packed[key] = self._packed.get(key, b"") + _ROW.pack(reward, outcome)
        if row.step is not None:
            self.steps.add(row.step)
        if row.truncated is not None:
            self.truncated.add(row.truncated)
        if row.tokens is not None or row.text is not None:
            self._texts(row, key)
        if row.advantage is not None and len(self.logged) < self.kept_advantages:
            self.logged.append((key, _NAN if reward is None else reward, row.advantage))

    def add_empty(self, group: Any, step: int | None) -> None:
        """A group of which no completion is there."""
        self._packed.setdefault(hash((self.source, group, step)), b"")

    def groups(self) -> Iterator[tuple[list[float], list[int]]]:
        """Rewards and outcomes (1, 0, or `UNKNOWN`) of each group's scored completions."""
        for packed in self._packed.values():
            pairs = list(_ROW.iter_unpack(packed))
            yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def compositions(self) -> Counter[tuple[tuple[float, int], ...]]:
        """Groups with the same sorted (reward, outcome) pairs are one composition: how often each occurs."""
        packed: Counter[bytes] = Counter()
        for group in self._packed.values():
            packed[b"".join(sorted(group[i : i + _ROW.size] for i in range(0, len(group), _ROW.size)))] += 1
        found: Counter[tuple[tuple[float, int], ...]] = Counter()
        for group, count in packed.items():
            found[tuple(sorted(_ROW.iter_unpack(group)))] += count
        return found

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._packed)

    def _texts(self, row: Row, key: int) -> None:
        kind = "unknown" if row.outcome is None else "right" if row.outcome >= 1 else "wrong"
        if row.tokens is not None:
            self.length[kind].add(row.tokens)
        elif row.text is not None:
            self.length_unit = "characters"
            self.length[kind].add(len(row.text))
        if row.text is not None and self.texts < self.kept_texts:
            self.texts += 1
            text = hash((key, row.text))
            self.duplicates += text in self._seen
            self._seen.add(text)
