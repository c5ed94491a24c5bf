"""Did a run's entropy explode, collapse, swing, or stay healthy? Plain numbers in, a verdict in words out.

The curve is judged by its own history: a level is high or low against the levels at which the curve settled
before, and absolute guards keep small wiggles of a small entropy from counting. Medians throughout, so single
outliers do nothing. The onset is a change point: the best fit of "flat, then a line" to the log of the curve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

Kind = Literal["healthy", "explosion", "collapse", "oscillation", "unknown"]
Series = Sequence[float | None]


@dataclass(frozen=True)
class Thresholds:
    """When a change counts. Chosen on the tuning half of the labelled curves (benchmarks/detector.py).

    Attributes:
        min_points: fewer finite values than this give "unknown".
        explosion_ratio: level over the lowest settled level so far.
        explosion_rise_nats: and at least this much above it.
        failing_ratio: takes the place of `explosion_ratio` while the pass rate (or the reward) has fallen to half of
            what it was: a small rise that ruins the policy is an explosion.
        failing_rise_nats: likewise.
        collapse_ratio: level over the highest settled level so far.
        collapse_level_nats: and not above this level.
        swing_ratio: high over low turn of a swing.
        swing_nats: and at least this far apart.
        swings: this many swings in alternating directions are an oscillation.
    """

    min_points: int = 5
    explosion_ratio: float = 2.0
    explosion_rise_nats: float = 0.2
    failing_ratio: float = 1.5
    failing_rise_nats: float = 0.1
    collapse_ratio: float = 0.2
    collapse_level_nats: float = 0.1
    swing_ratio: float = 1.7
    swing_nats: float = 0.08
    swings: int = 4


@dataclass(frozen=True)
class Evidence:
    """One quantity that moved (or did not) around the onset.

    Attributes:
        name: key in the metrics.
        label: in words.
        before: median up to the onset.
        after: median of the last quarter of what follows the onset.
    """

    name: str
    label: str
    before: float
    after: float

    @property
    def moved(self) -> bool:
        """By more than a quarter."""
        return abs(self.after - self.before) > max(0.25 * abs(self.before), 1e-3)


@dataclass(frozen=True)
class Verdict:
    """What happened to the entropy.

    Attributes:
        kind: healthy, explosion, collapse, oscillation, or unknown where there is too little to judge.
        summary: one or two sentences.
        reference_nats: level of the first settled window.
        start_nats: level at the onset, or at the first step if there is none.
        level_nats: level at the end.
        onset_step: where the change began.
        alarm_step: the first step at which the history so far was enough to say so.
        recovered_step: where the entropy came back, if it did.
        evidence: other quantities before and after the onset.
        missing: what was not given and would have helped.
    """

    kind: Kind
    summary: str
    reference_nats: float | None = None
    start_nats: float | None = None
    level_nats: float | None = None
    onset_step: int | None = None
    alarm_step: int | None = None
    recovered_step: int | None = None
    evidence: list[Evidence] = field(default_factory=list[Evidence])
    missing: list[str] = field(default_factory=list[str])


EVIDENCE = {
    "outcome": "pass rate",
    "reward": "reward",
    "advantage/negative_frac": "share of completions with a negative advantage",
    "advantage/negative_mass": "sum of negative advantages per completion",
    "completions/clipped_ratio": "share of completions cut off at the token limit",
    "completions/mean_length": "mean length in tokens",
    "clip_ratio/low_mean": "share of tokens clipped below",
    "clip_ratio/high_mean": "share of tokens clipped above",
    "frac_reward_zero_std": "share of groups with equal rewards",
    "logprob_gap_max": "largest gap between sampler and trainer log-probs",
    "grad_norm": "gradient norm",
}


def detect_entropy(
    steps: Sequence[int],
    entropies_nats: Series,
    *,
    metrics: Mapping[str, Series] | None = None,
    thresholds: Thresholds = Thresholds(),
) -> Verdict:
    """Judge an entropy curve.

    A value counts as high when it is `explosion_ratio` times the lowest settled level before it, and as low
    when it is below `collapse_ratio` times the highest, beyond the absolute guards, and stays there for a while.
    The earlier of the two gives the verdict, unless the curve turns back and forth: that is an oscillation.
    None and NaN are left out; a constant curve is healthy at any level.

    Args:
        steps: step of each value, increasing.
        entropies_nats: mean token entropy, in nats.
        metrics: further series of the same length, by the names in `EVIDENCE`.
        thresholds: when a change counts.

    Returns:
        The verdict, with its onset and the evidence around it.

    Raises:
        ValueError: the series differ in length.

    Example:
        >>> detect_entropy(range(40), [0.6] * 40).kind
        'healthy'
        >>> climb = detect_entropy(range(40), [0.4] * 11 + [0.4 * 1.1**i for i in range(1, 30)])
        >>> climb.kind, climb.onset_step
        ('explosion', 10)
    """
    metrics = metrics or {}
    for name, series in {"entropies_nats": entropies_nats, **metrics}.items():
        if len(series) != len(steps):
            raise ValueError(f"{name} has {len(series)} values for {len(steps)} steps; give one value a step")
    missing = [label for name, label in EVIDENCE.items() if not any(_finite(x) for x in metrics.get(name, ()))]
    rows = [i for i, x in enumerate(entropies_nats) if _finite(x)]
    values = [max(0.0, float(x)) for x in entropies_nats if x is not None and _finite(x)]
    if len(values) < thresholds.min_points:
        text = f"Only {len(values)} entropy values: at least {thresholds.min_points} are needed to judge."
        return Verdict("unknown", text, missing=missing)

    pass_rate = metrics.get("outcome") or metrics.get("reward") or [None] * len(steps)
    curve = _Curve(values, [pass_rate[i] for i in rows], thresholds)
    kind, alarm = curve.judge()
    onset = curve.onset(kind, alarm)
    recovered = curve.recovered(kind, alarm)
    evidence = [] if onset is None else _evidence(metrics, rows[onset])
    gap = len(steps) - 1 - rows[-1]
    if gap >= 3:
        missing.insert(0, f"a finite entropy in the last {gap} steps: it diverged, or was not logged")

    def step(i: int | None) -> int | None:
        return None if i is None else int(steps[rows[i]])

    verdict = Verdict(
        kind,
        summary="",
        reference_nats=curve.reference,
        start_nats=curve.levels[onset or 0],
        level_nats=curve.levels[-1],
        onset_step=step(onset),
        alarm_step=step(alarm),
        recovered_step=step(recovered),
        evidence=evidence,
        missing=missing,
    )
    return replace(verdict, summary=_summary(verdict))


def detect_from_metrics(metrics: Sequence[Mapping[str, Any]], *, thresholds: Thresholds = Thresholds()) -> Verdict:
    """Judge the lines of a metrics.jsonl (`qae.records.read_metrics`). Lines of evaluations are left out.

    Args:
        metrics: records with "step", "entropy" and whatever else was logged.
        thresholds: when a change counts.

    Returns:
        The verdict.

    Example:
        >>> detect_from_metrics([{"step": s, "entropy": 0.6} for s in range(1, 21)]).kind
        'healthy'
    """
    lines = [line for line in metrics if "entropy" in line]
    series = {name: [line.get(name) for line in lines] for name in EVIDENCE}
    return detect_entropy(
        [line["step"] for line in lines],
        [line["entropy"] for line in lines],
        metrics=series,
        thresholds=thresholds,
    )


class LiveDetector:
    """Asked after each step of a run; speaks once about each kind of failure.

    Judging takes time in proportion to the history, so a long history is judged less often: a run of n steps is judged
    about 200 log(n / 200) times after its first 200 steps.

    Example:
        >>> live = LiveDetector()
        >>> found = [live.see({"step": s, "entropy": 0.4 * 1.1 ** max(0, s - 10)}) for s in range(1, 40)]
        >>> [(verdict.kind, verdict.onset_step) for verdict in found if verdict]
        [('explosion', 10)]
    """

    def __init__(self, history: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin with the metrics of a run that goes on; what they hold already is not said again."""
        self._lines = list(history)
        self._said = {detect_from_metrics(self._lines).kind}

    def see(self, metrics: Mapping[str, Any]) -> Verdict | None:
        """Take one step's metrics in.

        Args:
            metrics: the line of the step, as for `detect_from_metrics`.

        Returns:
            The verdict if the run has come to explode, collapse or oscillate, the first time that it does.
        """
        self._lines.append(metrics)
        if len(self._lines) % (1 + len(self._lines) // 200):
            return None
        verdict = detect_from_metrics(self._lines)
        if verdict.onset_step is None or verdict.kind in self._said:
            return None
        self._said.add(verdict.kind)
        return verdict


def alarm_text(verdict: Verdict) -> str:
    """A verdict as a warning while the run goes on, with what changed since the onset."""
    start, level = verdict.start_nats or 0.0, verdict.level_nats or 0.0
    moved = "; ".join(f"{e.label} {e.before:.3g} to {e.after:.3g}" for e in verdict.evidence if e.moved)
    since = f". Since then: {moved}" if moved else ""
    return f"entropy {verdict.kind}: {start:.2g} nats at about step {verdict.onset_step}, {level:.2g} now{since}"


class _Curve:
    """The smoothed curve and the levels that it is held against."""

    def __init__(self, values: list[float], pass_rate: Series, thresholds: Thresholds) -> None:
        n = len(values)
        self.limits = thresholds
        self.window = 3 if n < 20 else max(5, min(21, n // 30 | 1))
        self.hold = self.window // 2 + 2
        self.levels = _running_median(values, self.window)
        settled = 3 if n < 20 else max(6, min(40, n // 8))
        self.low, self.high, self.reference = _settled_levels(self.levels, settled)
        self.failing = _failing(pass_rate, self.window)

    def judge(self) -> tuple[Kind, int | None]:
        """The verdict and the index at which it could be given."""
        limits = self.limits
        turns = self._turns()
        if len(turns) > limits.swings and not self._breaks_out(turns):
            return "oscillation", turns[limits.swings]
        up = self._sustained([self._is_high(i) for i in range(len(self.levels))])
        down = self._sustained(
            [
                x < limits.collapse_ratio * high and x <= limits.collapse_level_nats
                for x, high in zip(self.levels, self.high, strict=True)
            ]
        )
        if up is None and down is None:
            return "healthy", None
        if down is None or (up is not None and up <= down):
            return "explosion", up
        return "collapse", down

    def _is_high(self, i: int) -> bool:
        limits = self.limits
        ratio = limits.failing_ratio if self.failing[i] else limits.explosion_ratio
        rise = limits.failing_rise_nats if self.failing[i] else limits.explosion_rise_nats
        return self.levels[i] >= ratio * self.low[i] and self.levels[i] - self.low[i] >= rise

    def onset(self, kind: Kind, alarm: int | None) -> int | None:
        """Where the change that led to the alarm began."""
        if alarm is None:
            return None
        if kind == "oscillation":
            return self._turns()[0]
        far = max if kind == "explosion" else min
        peak = far(range(alarm, len(self.levels)), key=lambda i: self.levels[i])
        # the steepest part decides: a plateau after the move must not pull the line
        target = 0.5 * (_log(self.levels[alarm]) + _log(self.levels[peak]))
        reached = next(
            i
            for i in range(alarm, peak + 1)
            if (_log(self.levels[i]) >= target if kind == "explosion" else _log(self.levels[i]) <= target)
        )
        return _hinge([_log(x) for x in self.levels[: reached + 1]])

    def recovered(self, kind: Kind, alarm: int | None) -> int | None:
        """Where the curve came back halfway to its old level and stayed until the end."""
        if alarm is None or kind not in ("explosion", "collapse"):
            return None
        old = self.low[alarm] if kind == "explosion" else self.high[alarm]
        ratio = self.limits.explosion_ratio if kind == "explosion" else self.limits.collapse_ratio
        bound = old * math.sqrt(ratio)
        back = [x <= bound if kind == "explosion" else x >= bound for x in self.levels]
        first = len(back)
        while first > alarm and back[first - 1]:
            first -= 1
        return first if len(back) - first >= self.hold else None

    def _sustained(self, flags: list[bool]) -> int | None:
        run = 0
        for i, flag in enumerate(flags):
            run = run + 1 if flag else 0
            if run >= self.hold:
                return i
        return None

    def _turns(self) -> list[int]:
        """Extremes of the zigzag whose legs are all larger than a swing: first point, turns, last extreme."""
        turns: list[int] = []
        lowest = highest = 0
        direction = 0
        for i, x in enumerate(self.levels):
            if direction >= 0 and x >= self.levels[highest]:
                highest = i
            if direction <= 0 and x <= self.levels[lowest]:
                lowest = i
            if direction >= 0 and self._swing(x, self.levels[highest]):
                turns.append(highest)
                direction, lowest = -1, i
            elif direction <= 0 and self._swing(self.levels[lowest], x):
                turns.append(lowest)
                direction, highest = 1, i
        if direction:
            turns.append(highest if direction > 0 else lowest)
        return turns

    def _swing(self, low: float, high: float) -> bool:
        return high >= self.limits.swing_ratio * low and high - low >= self.limits.swing_nats

    def _breaks_out(self, turns: list[int]) -> bool:
        """Whether the last leg leaves the range of all earlier ones by a swing."""
        earlier = [self.levels[i] for i in turns[:-1]]
        last = self.levels[turns[-1]]
        return self._swing(max(earlier), last) or self._swing(last, min(earlier))


def _finite(x: float | None) -> bool:
    return x is not None and math.isfinite(x)


def _log(x: float) -> float:
    return math.log(x + 0.01)  # one hundredth of a nat: below it, ratios mean nothing


def _running_median(values: list[float], window: int) -> list[float]:
    half = window // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _settled_levels(levels: list[float], window: int) -> tuple[list[float], list[float], float]:
    """For each point the lowest and highest window median so far; then the first settled window's median."""
    medians: list[float] = []
    reference: float | None = None
    for end in range(window, len(levels) + 1):
        part = levels[end - window : end]
        medians.append(median(part))
        drift = abs(_log(median(part[: window // 2])) - _log(median(part[window // 2 :])))
        if reference is None and drift < 0.1:
            reference = medians[-1]
    low = high = medians[0]
    lows, highs = [low] * (window - 1), [high] * (window - 1)
    for x in medians:
        low, high = min(low, x), max(high, x)
        lows.append(low)
        highs.append(high)
    return lows, highs, medians[0] if reference is None else reference


def _failing(pass_rate: Series, window: int) -> list[bool]:
    """Where the smoothed pass rate is at most half of its best so far; nowhere if it was not logged throughout."""
    known = [float(x) for x in pass_rate if x is not None and _finite(x)]
    if not known or len(known) < len(pass_rate):
        return [False] * len(pass_rate)
    best, found = 0.0, list[bool]()
    for rate in _running_median(known, window):
        best = max(best, rate)
        found.append(best > 0.05 and rate <= 0.5 * best)
    return found


def _hinge(y: list[float]) -> int:
    """The index t at which "constant up to t, then a straight line" fits `y` best by least squares."""
    n, mean = len(y), sum(y) / len(y)
    best, best_gain = 0, -1.0
    tail = moment = 0.0  # sums over i > t of y_i - mean, and of (i - t) (y_i - mean)
    for t in range(n - 2, -1, -1):
        tail += y[t + 1] - mean
        moment += tail
        m = n - 1 - t
        spread = m * (m + 1) * (2 * m + 1) / 6 - (m * (m + 1) / 2) ** 2 / n
        gain = moment * moment / spread  # squared error that the line explains
        if gain >= best_gain:
            best, best_gain = t, gain
    return best


def _evidence(metrics: Mapping[str, Series], onset: int) -> list[Evidence]:
    found: list[Evidence] = []
    for name, label in EVIDENCE.items():
        series = metrics.get(name, ())
        before = [float(x) for x in series[: onset + 1] if x is not None and _finite(x)]
        after = [float(x) for x in series[onset + 1 :] if x is not None and _finite(x)]
        if before and after:
            found.append(Evidence(name, label, median(before), median(after[-max(1, len(after) // 4) :])))
    return found


def _summary(verdict: Verdict) -> str:
    start, level = verdict.start_nats or 0.0, verdict.level_nats or 0.0
    if verdict.kind == "healthy":
        return f"Entropy stayed healthy: {start:.2g} nats at the start, {level:.2g} at the end."
    if verdict.kind == "oscillation":
        where = f"from step {verdict.onset_step} on"
        return f"Entropy swings up and down {where}: {start:.2g} nats there, {level:.2g} at the end."
    verb = "exploded" if verdict.kind == "explosion" else "collapsed"
    text = f"Entropy {verb}: it left {start:.2g} nats at about step {verdict.onset_step}"
    if verdict.recovered_step is not None:
        return f"{text} and came back at step {verdict.recovered_step}."
    return f"{text} and stood at {level:.2g} at the end."
