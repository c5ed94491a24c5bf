"""Labelled entropy curves: simulated ones from seeded recipes, and curves of real runs kept beside this file.

A recipe draws its level, length, noise and timing at random; its label follows from what it draws, with a gap
between what is called healthy and what is not, so that no label is a matter of taste.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Curve:
    """One entropy curve with its label; `onset` is None where nothing happens or nobody knows."""

    name: str
    label: str
    entropies: list[float | None]
    onset: int | None = None
    outcomes: list[float | None] | None = None


Recipe = Callable[[random.Random, int, float], tuple[list[float], int | None]]


def ramp(n: int, start: int, length: int) -> list[float]:
    """0 up to `start`, then a straight line to 1 over `length` points, then 1."""
    return [min(1.0, max(0.0, (i - start) / length)) for i in range(n)]


def smooth_ramp(n: int, start: int, length: int) -> list[float]:
    return [x * x * (3 - 2 * x) for x in ramp(n, start, length)]


def transient(rng: random.Random, n: int) -> list[float]:
    """Log-factor of the first steps: none, or a quick fall from a higher start."""
    height, decay = rng.choice([0.0, rng.uniform(0.1, 1.2)]), rng.uniform(0.01, 0.05) * n
    return [height * math.exp(-i / decay) for i in range(n)]


def constant(rng, n, level):
    return [level] * n, None


def settling(rng, n, level):
    return [level * math.exp(x) for x in transient(rng, n)], None


def slow_decline(rng, n, level):
    depth = math.log(rng.uniform(0.35, 0.9))
    shape = rng.choice([ramp(n, 0, n), [1 - math.exp(-4 * i / n) for i in range(n)]])
    return [level * math.exp(depth * x) for x in shape], None


def slow_growth(rng, n, level):
    return [level * (1 + rng_factor * x) for rng_factor in [rng.uniform(0.1, 0.45)] for x in ramp(n, 0, n)], None


def dip(rng, n, level):
    depth = math.log(rng.uniform(0.65, 0.9))
    return [level * math.exp(depth * math.sin(math.pi * i / n)) for i in range(n)], None


def outliers(rng, n, level):
    values = [level] * n
    for i in rng.sample(range(n), max(1, n // 40)):
        values[i] = level * rng.choice([0.2, 3.0, 6.0])
    return values, None


def level_shift(rng, n, level):
    factor, at = rng.choice([0.7, 0.8, 1.25, 1.4]), rng.randrange(n // 3, 2 * n // 3)
    return [level * (factor if i >= at else 1) for i in range(n)], None


def small_learner(rng, n, level):
    """A small model learns a nearly deterministic task: a low level falls further, but not to nothing."""
    level, depth = rng.uniform(0.15, 0.3), math.log(rng.uniform(0.32, 0.5))
    return [level * math.exp(depth * (1 - math.exp(-3 * i / n))) for i in range(n)], None


def explosion(rng, n, level):
    start, factor = rng.randrange(0, 2 * n // 3), rng.uniform(2.6, 16)
    factor = max(factor, 1 + 0.35 / level)
    length = rng.randrange(max(4, n // 12), n)
    length = min(length, max(4, int((n - start) * rng.uniform(0.5, 0.9))))
    shape = rng.choice([ramp, smooth_ramp])(n, start, length)
    if rng.random() < 0.5:
        values = [level * math.exp(math.log(factor) * x) for x in shape]
    else:
        values = [level * (1 + (factor - 1) * x) for x in shape]
    return [v * math.exp(t) for v, t in zip(values, transient(rng, n), strict=True)], start


def explosion_after_fall(rng, n, level):
    low, turn = rng.uniform(0.45, 0.75), rng.randrange(n // 5, n // 2)
    factor = max(rng.uniform(2.8, 8), 1 + 0.35 / (level * low))
    rise = ramp(n, turn, int((n - turn) * rng.uniform(0.5, 0.9)))
    values = [level * math.exp(math.log(low) * min(1, i / turn)) * (1 + (factor - 1) * rise[i]) for i in range(n)]
    return values, turn


def collapse(rng, n, level):
    level = max(level, 0.2)
    start = rng.randrange(0, n // 2)
    floor = min(rng.uniform(0.02, 0.12) * level, 0.06)
    shape = rng.choice([ramp, smooth_ramp])(n, start, int((n - start) * rng.uniform(0.2, 0.8)))
    return [level * math.exp(math.log(floor / level) * x) for x in shape], start


def collapse_cliff(rng, n, level):
    level, at = max(level, 0.2), rng.randrange(n // 4, 3 * n // 4)
    floor = min(rng.uniform(0.01, 0.1) * level, 0.05)
    return [level if i < at else floor for i in range(n)], at


def collapse_from_the_start(rng, n, level):
    level, scale = max(level, 0.3), rng.uniform(0.06, 0.2) * n
    floor = min(0.05 * level, 0.03)
    return [floor + (level - floor) * math.exp(-i / scale) for i in range(n)], 0


def sine(rng, n, level):
    level, swing = max(level, 0.15), math.log(rng.uniform(2.4, 6)) / 2
    period, phase = n / rng.uniform(3, 7), rng.uniform(0, 2 * math.pi)
    return [level * math.exp(swing * math.sin(2 * math.pi * i / period + phase)) for i in range(n)], None


def sawtooth(rng, n, level):
    level, swing = max(level, 0.15), math.log(rng.uniform(2.4, 6))
    period = n / rng.uniform(3.2, 7)
    return [level * math.exp(swing * ((i / period) % 1.0)) for i in range(n)], None


RECIPES: dict[str, tuple[str, Recipe]] = {
    "constant": ("healthy", constant),
    "settling": ("healthy", settling),
    "slow_decline": ("healthy", slow_decline),
    "slow_growth": ("healthy", slow_growth),
    "dip": ("healthy", dip),
    "outliers": ("healthy", outliers),
    "level_shift": ("healthy", level_shift),
    "small_learner": ("healthy", small_learner),
    "explosion": ("explosion", explosion),
    "explosion_after_fall": ("explosion", explosion_after_fall),
    "collapse": ("collapse", collapse),
    "collapse_cliff": ("collapse", collapse_cliff),
    "collapse_from_the_start": ("collapse", collapse_from_the_start),
    "sine": ("oscillation", sine),
    "sawtooth": ("oscillation", sawtooth),
}


def simulate(recipe: str, seed: int) -> Curve:
    """One curve of `recipe`: clean shape times correlated log-normal noise, with some values missing."""
    label, shape = RECIPES[recipe]
    rng = random.Random(f"{recipe}/{seed}")
    n = int(math.exp(rng.uniform(math.log(40), math.log(500))))
    level = math.exp(rng.uniform(math.log(0.12), math.log(1.5)))
    values, onset = shape(rng, n, level)
    scale, correlation, noise = rng.choice([0.0, 0.02, 0.05, 0.1, 0.18]), rng.choice([0.0, 0.5]), 0.0
    missing = rng.choice([0.0, 0.0, 0.1])
    entropies: list[float | None] = []
    for value in values:
        noise = correlation * noise + math.sqrt(1 - correlation**2) * rng.gauss(0, scale)
        entropies.append(None if rng.random() < missing else value * math.exp(noise))
    return Curve(f"{recipe}/{seed}", label, entropies, onset)


def real_curves(half: str) -> list[Curve]:
    """Curves of runs of our own trainer, labelled by eye; those of "held_out" before the detector saw them."""
    folder = Path(__file__).with_name("curves")
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [
        Curve(r["name"], r["label"], r["entropies"], r.get("onset"), r["outcomes"])
        for r in records
        if r["half"] == half
    ]
