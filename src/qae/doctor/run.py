"""Which baseline do a run's advantages have? Read off its dumped rollouts, whatever they were divided by.

A group-relative advantage is A_i = (r_i - b) / s. Two rows of a group with different rewards determine b and s, all
others have to agree. So the baseline of every mixed group is known without a guess at its scale, and is compared with
the group's mean and with its order statistics. A flat group says nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from qae.audit.rows import read_completion_tables, read_jsonl
from qae.audit.sources import find_sources
from qae.audit.store import GroupStore
from qae.groups import group_mean, group_quantile, group_std
from qae.records import ReadTally

Kind = Literal["quantile", "mean", "other", "unknown"]
TOLERANCE = 1e-3
ENOUGH = 0.99
LINEAR_KS = tuple(i / 20 for i in range(1, 20))


@dataclass(frozen=True)
class Verdict:
    """What a run's advantages say.

    Attributes:
        kind: "quantile" or "mean"; "other" for a baseline that is neither; "unknown" where the data cannot tell.
        found: one sentence.
        groups: groups with logged advantages.
        mixed: of them, with different rewards.
        decisive: mixed groups in which mean and quantile differ.
        k: for "quantile": K lies above the first and at most at the second.
        scale: what advantages were divided by, in words.
    """

    kind: Kind
    found: str
    groups: int
    mixed: int
    decisive: int
    k: tuple[float, float] | None = None
    scale: str | None = None


@dataclass(frozen=True)
class _Group:
    rewards: list[float]
    baseline: float
    scale: float
    mean: float
    std: float

    @property
    def tolerance(self) -> float:
        return TOLERANCE * (max(self.rewards) - min(self.rewards))

    @property
    def has_mean(self) -> bool:
        return abs(self.baseline - self.mean) <= self.tolerance

    @property
    def ks(self) -> tuple[float, float] | None:
        """K for which the order statistic is this baseline."""
        ordered = sorted(self.rewards)
        ranks = [i for i, r in enumerate(ordered, start=1) if abs(r - self.baseline) <= self.tolerance]
        return ((ranks[0] - 1) / len(ordered), ranks[-1] / len(ordered)) if ranks else None


def check_run(paths: Sequence[Path]) -> Verdict:
    """Say which baseline the logged advantages of a run fit.

    Args:
        paths: run directories or dumps that `qae audit` reads.

    Returns:
        The verdict; "unknown", with the reason, where the data fit several baselines or none was logged.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no rollouts were found.

    Example:
        >>> import tempfile
        >>> dump = Path(tempfile.mkdtemp()) / "dump.jsonl"
        >>> rows = ((1.0, 2.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
        >>> line = '{{"prompt_id": 1, "reward": {}, "advantage": {}}}'
        >>> _ = dump.write_text("".join(line.format(r, a) + chr(10) for r, a in rows))
        >>> verdict = check_run([dump])
        >>> verdict.kind, verdict.k
        ('quantile', (0.0, 0.75))
    """
    logged = _read(paths)
    by_group: dict[int, list[tuple[float, float]]] = {}
    for group, reward, advantage in logged:
        if reward == reward:
            by_group.setdefault(group, []).append((reward, advantage))
    mixed = [rows for rows in by_group.values() if len({reward for reward, _ in rows}) > 1]
    count = len(by_group)
    if not logged:
        return Verdict("unknown", "no advantages were logged with the rollouts: nothing to compare", 0, 0, 0)
    if not mixed:
        return Verdict(
            "unknown", f"all {count} groups are flat, where every baseline gives 0: this run cannot tell", count, 0, 0
        )
    solved = [_solve(rows) for rows in mixed]
    groups = _with_statistics([(rows, pair) for rows, pair in zip(mixed, solved, strict=True) if pair is not None])
    if len(groups) < ENOUGH * len(mixed):
        return Verdict(
            "other",
            f"in {len(mixed) - len(groups)} of {len(mixed)} mixed groups the advantage is no (reward - baseline) / "
            "scale: it depends on more than the logged reward (an outcome gate beside a penalty, KL in the reward)",
            count,
            len(mixed),
            0,
        )
    return _judge(groups, count)


def _read(paths: Sequence[Path]) -> list[tuple[int, float, float]]:
    sources = find_sources([Path(path) for path in paths])
    if not (sources.rollouts or sources.tables):
        raise ValueError(f"no rollouts in {', '.join(str(path) for path in paths)}; give a run directory or its dumps")
    store, tally = GroupStore(), ReadTally()
    for path in sources.rollouts:
        store.source = str(path.parent)
        read_jsonl(path, store, tally)
    if sources.tables:
        read_completion_tables(sources.tables, store, tally)
    logged = store.logged
    if len(logged) == store.kept_advantages:  # the last group may have been cut
        logged = [row for row in logged if row[0] != logged[-1][0]]
    return logged


def _solve(rows: list[tuple[float, float]]) -> tuple[float, float] | None:
    """(baseline, scale) with which every row agrees, or None."""
    (low, a_low), (high, a_high) = min(rows), max(rows)
    if not a_high > a_low:
        return None
    scale = (high - low) / (a_high - a_low)
    baseline = low - scale * a_low
    fits = all(abs((r - baseline) / scale - a) <= TOLERANCE * (1 + abs(a)) for r, a in rows)
    return (baseline, scale) if fits else None


def _with_statistics(groups: list[tuple[list[tuple[float, float]], tuple[float, float]]]) -> list[_Group]:
    rewards = torch.tensor([reward for rows, _ in groups for reward, _ in rows], dtype=torch.float64)
    ids = torch.tensor([i for i, (rows, _) in enumerate(groups) for _ in rows], dtype=torch.int64)
    means, stds = group_mean(rewards, ids).tolist(), group_std(rewards, ids).tolist()
    made: list[_Group] = []
    start = 0
    for rows, (baseline, scale) in groups:
        made.append(_Group([reward for reward, _ in rows], baseline, scale, means[start], stds[start]))
        start += len(rows)
    return made


def _judge(groups: list[_Group], count: int) -> Verdict:
    mixed = len(groups)
    decisive = sum(group.has_mean != (group.ks is not None) for group in groups)
    with_mean = sum(group.has_mean for group in groups)
    intervals = [group.ks for group in groups if group.ks is not None]
    scale = _name_scale(groups)
    told = f"{mixed} mixed groups ({count} in all)"
    if with_mean >= ENOUGH * mixed:
        if not decisive:
            return Verdict(
                "unknown", f"the {told} fit a mean and a quantile alike: this run cannot tell", count, mixed, 0
            )
        found = f"the baseline is the group's mean, in {with_mean} of {told}"
        return Verdict("mean", found, count, mixed, decisive, scale=scale)
    if len(intervals) >= ENOUGH * mixed:
        k, agreeing = _common(intervals)
        if agreeing >= ENOUGH * mixed:
            found = f"the baseline is the group's quantile with K in ({k[0]:.4g}, {k[1]:.4g}], in {agreeing} of {told}"
            return Verdict("quantile", found, count, mixed, decisive, k, scale)
        found = f"the baseline is a quantile in all {told}, but no single K fits: K changes during the run"
        return Verdict("quantile", found, count, mixed, decisive, None, scale)
    linear = _linear_k(groups)
    if linear is not None:
        found = f"the baseline is an interpolated quantile (method linear), K={linear:g}, in {told}"
        return Verdict("quantile", found, count, mixed, decisive, (linear, linear), scale)
    found = f"the baseline is the mean in {with_mean} and an order statistic in {len(intervals)} of {told}: neither"
    return Verdict("other", found, count, mixed, decisive, scale=scale)


def _common(intervals: list[tuple[float, float]]) -> tuple[tuple[float, float], int]:
    """The interval of K that most groups allow, and how many do."""
    edges = sorted({edge for interval in intervals for edge in interval})
    pieces = list(pairwise(edges))
    weights = Counter(intervals)
    counts = [sum(n for (low, high), n in weights.items() if low <= a and b <= high) for a, b in pieces]
    best = max(counts)
    joined = [piece for piece, n in zip(pieces, counts, strict=True) if n == best]
    return (joined[0][0], joined[-1][1]), best


def _linear_k(groups: list[_Group]) -> float | None:
    rewards = torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float64)
    ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.rewards], dtype=torch.int64)
    wanted = torch.tensor([group.baseline for group in groups for _ in group.rewards], dtype=torch.float64)
    near = torch.tensor([group.tolerance for group in groups for _ in group.rewards], dtype=torch.float64)
    for k in LINEAR_KS:
        agree = (group_quantile(rewards, ids, k, method="linear") - wanted).abs() <= near
        if agree.double().mean() >= ENOUGH:
            return k
    return None


def _name_scale(groups: list[_Group]) -> str:
    def share(expected: list[float]) -> float:
        near = [abs(g.scale - e) <= 2 * TOLERANCE * e for g, e in zip(groups, expected, strict=True)]
        return sum(near) / len(near)

    sizes = [len(group.rewards) for group in groups]
    constant = median(group.scale for group in groups)
    named = {
        "not divided": [1.0] * len(groups),
        "divided by the group's std (n)": [group.std for group in groups],
        "divided by the group's std (n-1)": [g.std * (n / (n - 1)) ** 0.5 for g, n in zip(groups, sizes, strict=True)],
        "leave one out": [(n - 1) / n for n in sizes],
        f"divided by {constant:.4g} everywhere": [constant] * len(groups),
    }
    return next((name for name, expected in named.items() if share(expected) >= ENOUGH), "divided by something else")
