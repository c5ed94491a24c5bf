"""How often the entropy detector is right: precision and recall on labelled curves that it was not tuned on.

Odd seeds tune, even seeds report. `--tune` shows the tuning half and the curves that it gets wrong.
Prints one JSON object.
"""

import argparse
import json
import platform
import time
from collections import Counter
from statistics import median

from entropy_curves import RECIPES, Curve, real_curves, simulate

from qae.detect import Thresholds, Verdict, detect_entropy

KINDS = ("healthy", "explosion", "collapse", "oscillation")


def judge(curve: Curve, end: int) -> Verdict:
    """The verdict on the first `end` steps."""
    metrics = {"outcome": curve.outcomes[:end]} if curve.outcomes else {}
    return detect_entropy(range(end), curve.entropies[:end], metrics=metrics)


def score(curves: list[Curve]) -> dict:
    confusion: Counter[tuple[str, str]] = Counter()
    onset_errors: list[float] = []
    wrong: list[str] = []
    by_recipe: dict[str, list[bool]] = {}
    for curve in curves:
        verdict = judge(curve, len(curve.entropies))
        confusion[curve.label, verdict.kind] += 1
        by_recipe.setdefault(curve.name.split("/")[0], []).append(verdict.kind == curve.label)
        if verdict.kind != curve.label:
            wrong.append(f"{curve.name}: {curve.label} called {verdict.kind}")
        elif curve.onset is not None and verdict.onset_step is not None:
            onset_errors.append(abs(verdict.onset_step - curve.onset) / len(curve.entropies))
    kinds = {}
    for kind in KINDS:
        hit = confusion[kind, kind]
        said = sum(count for (_, got), count in confusion.items() if got == kind)
        real = sum(count for (label, _), count in confusion.items() if label == kind)
        kinds[kind] = {
            "curves": real,
            "precision": round(hit / said, 4) if said else None,
            "recall": round(hit / real, 4) if real else None,
        }
    return {
        "curves": len(curves),
        "kinds": kinds,
        "recall_by_recipe": {name: round(sum(hits) / len(hits), 4) for name, hits in by_recipe.items()},
        "onset_error_median_frac_of_run": round(median(onset_errors), 4) if onset_errors else None,
        "wrong": wrong,
    }


def live(curves: list[Curve], every: int = 4) -> dict:
    """The detector asked again and again while the run goes on, as `qae train` does."""
    false_alarms = healthy = missed = failing = 0
    delays: list[float] = []
    for curve in curves:
        n = len(curve.entropies)
        ends = range(5, n + 1, every)
        first = next((e for e in ends if judge(curve, e).onset_step is not None), None)
        if curve.label == "healthy":
            healthy += 1
            false_alarms += first is not None
        else:
            failing += 1
            missed += first is None
            if first is not None and curve.onset is not None:
                delays.append((first - curve.onset) / n)
    return {
        "healthy_runs": healthy,
        "with_a_false_alarm_at_any_step": false_alarms,
        "failing_runs": failing,
        "never_alarmed": missed,
        "delay_after_onset_median_frac_of_run": round(median(delays), 4) if delays else None,
    }


def simulated(remainder: int, per_recipe: int) -> list[Curve]:
    return [simulate(recipe, 2 * i + remainder) for recipe in RECIPES for i in range(per_recipe)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-recipe", type=int, default=100)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    if options.tune:
        curves = simulated(1, options.per_recipe)
        shown = {**score(curves), "live": live(curves[::10]), "real": score(real_curves("tuning"))}
        print(json.dumps(shown, indent=1))
        return
    held_out, real = score(simulated(0, options.per_recipe)), score(real_curves("held_out"))
    result = {
        "benchmark": "detector",
        "python": platform.python_version(),
        "thresholds": vars(Thresholds()),
        "simulated_held_out": {**held_out, "wrong": held_out["wrong"][:20]},
        "simulated_held_out_live": live(simulated(0, options.per_recipe // 10)),
        "real_held_out": real,
        "seconds": round(time.perf_counter() - start, 2),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
