"""The entropy detector: named failures of other tools, each kind of curve, onset, evidence, invariances."""

import math
import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qae.detect import EVIDENCE, Evidence, LiveDetector, Thresholds, alarm_text, detect_entropy, detect_from_metrics

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def kind(values: list[float | None]) -> str:
    return detect_entropy(range(len(values)), values).kind


def line(start: float, end: float, n: int) -> list[float]:
    return [start + (end - start) * i / (n - 1) for i in range(n)]


def test_a_climb_from_0p4_to_6p4_is_an_explosion() -> None:
    assert kind(line(0.4, 6.4, 100)) == "explosion"
    assert kind([0.4] * 50 + line(0.4, 6.4, 20) + [6.4] * 50) == "explosion"


@settings(deadline=None, max_examples=50)
@given(st.floats(0.0, 10.0), st.integers(5, 300))
def test_a_constant_is_healthy_at_any_level_and_length(level: float, n: int) -> None:
    verdict = detect_entropy(range(n), [level] * n)
    assert (verdict.kind, verdict.onset_step, verdict.alarm_step) == ("healthy", None, None)


def test_collapse_and_its_onset() -> None:
    verdict = detect_entropy(range(100), [0.6] * 40 + [0.6 * 0.85**i for i in range(60)])
    assert verdict.kind == "collapse"
    assert verdict.onset_step is not None and abs(verdict.onset_step - 40) <= 3
    assert verdict.alarm_step is not None and verdict.alarm_step > verdict.onset_step


def test_a_low_level_that_falls_a_little_is_no_collapse() -> None:
    assert kind([0.22 * math.exp(-i / 110) for i in range(125)]) == "healthy"


def test_a_quick_fall_at_the_start_is_no_collapse() -> None:
    assert kind([0.3 + 1.7 * math.exp(-i / 3) for i in range(100)]) == "healthy"


def test_oscillation() -> None:
    assert kind([0.4 + 0.25 * math.sin(i / 6) for i in range(150)]) == "oscillation"


def test_swings_that_then_break_out_are_an_explosion() -> None:
    swings = [0.4 + 0.2 * math.sin(i / 6) for i in range(150)]
    assert kind(swings + [0.4 * 1.06**i for i in range(50)]) == "explosion"


def test_single_outliers_do_nothing() -> None:
    values: list[float | None] = [0.5] * 60
    values[10], values[30], values[31], values[50] = 5.0, 0.0, 8.0, None
    assert kind(values) == "healthy"


def test_an_explosion_that_comes_back_is_still_told() -> None:
    verdict = detect_entropy(range(120), [0.4] * 30 + line(0.4, 2.0, 20) + line(2.0, 0.4, 20) + [0.4] * 50)
    assert verdict.kind == "explosion"
    assert verdict.recovered_step is not None and 55 <= verdict.recovered_step <= 75
    assert "came back" in verdict.summary


def test_a_small_rise_that_ruins_the_policy_is_an_explosion() -> None:
    curve = [0.227, 0.256, 0.368, 0.337, 0.493, 0.476, 0.487]
    ruined = {"outcome": [0.27, 0.17, 0.02, 0.06, 0.0, 0.0, 0.0]}
    assert detect_entropy(range(7), curve).kind == "healthy"
    assert detect_entropy(range(7), curve, metrics=ruined).kind == "explosion"
    assert detect_entropy(range(7), curve, metrics={"outcome": [0.27] * 7}).kind == "healthy"
    assert detect_entropy(range(7), curve, metrics={"outcome": [None, *ruined["outcome"][1:]]}).kind == "healthy"


def test_a_pass_rate_that_falls_without_the_entropy_is_no_explosion() -> None:
    verdict = detect_entropy(range(40), [0.4] * 40, metrics={"outcome": [0.5] * 20 + [0.0] * 20})
    assert verdict.kind == "healthy"


def test_steps_may_have_gaps() -> None:
    values = [0.4] * 20 + line(0.4, 3.0, 20)
    verdict = detect_entropy([10 * i for i in range(40)], values)
    assert verdict.onset_step is not None and abs(verdict.onset_step - 200) <= 20


def test_too_few_values_are_unknown() -> None:
    verdict = detect_entropy(range(10), [0.4, None, math.nan, 0.5, None, None, None, None, 0.4, None])
    assert verdict.kind == "unknown"
    assert verdict.summary == "Only 3 entropy values: at least 5 are needed to judge."
    assert detect_entropy([], []).kind == "unknown"


def test_entropy_that_stops_being_finite_is_said() -> None:
    verdict = detect_entropy(range(30), [0.4] * 25 + [math.nan] * 5)
    assert verdict.missing[0] == "a finite entropy in the last 5 steps: it diverged, or was not logged"


def test_evidence_before_and_after_the_onset_and_what_is_missing() -> None:
    n = 80
    records = [
        {
            "step": s,
            "entropy": 0.4 if s < 40 else 0.4 * 1.05 ** (s - 40),
            "completions/clipped_ratio": 0.02 if s < 45 else 0.6,
            "advantage/negative_frac": 0.45,
        }
        for s in range(n)
    ]
    records.insert(20, {"step": 20, "eval/pass@1": 0.5})
    verdict = detect_from_metrics(records)
    assert verdict.kind == "explosion"
    found = {e.name: (e.before, e.after) for e in verdict.evidence}
    assert found == {"completions/clipped_ratio": (0.02, 0.6), "advantage/negative_frac": (0.45, 0.45)}
    assert EVIDENCE["clip_ratio/high_mean"] in verdict.missing
    assert EVIDENCE["advantage/negative_frac"] not in verdict.missing
    assert verdict.summary.startswith("Entropy exploded: it left 0.4 nats at about step 4")


def test_series_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="entropies_nats has 2 values for 3 steps; give one value a step"):
        detect_entropy(range(3), [0.1, 0.2])
    with pytest.raises(ValueError, match="reward has 0 values for 2 steps"):
        detect_entropy(range(2), [0.1, 0.2], metrics={"reward": []})


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.0, 20.0) | st.none(), max_size=80))
def test_any_curve_gets_a_verdict_inside_its_steps(values: list[float | None]) -> None:
    verdict = detect_entropy(range(100, 100 + len(values)), values)
    for step in (verdict.onset_step, verdict.alarm_step, verdict.recovered_step):
        assert step is None or 100 <= step < 100 + len(values)
    assert (verdict.onset_step is None) == (verdict.kind in ("healthy", "unknown"))
    if verdict.alarm_step is not None and verdict.kind != "oscillation":
        assert verdict.onset_step is not None and verdict.onset_step <= verdict.alarm_step


def test_thresholds_are_obeyed() -> None:
    curve = [0.4] * 30 + line(0.4, 0.95, 30)
    assert kind(curve) == "explosion"
    calm = detect_entropy(range(60), curve, thresholds=Thresholds(explosion_ratio=3.0))
    assert calm.kind == "healthy"


def test_published_precision_and_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = runpy.run_path(str(BENCHMARKS / "detector.py"))
    result = benchmark["score"](benchmark["simulated"](0, 12))
    for name, figures in result["kinds"].items():
        assert figures["precision"] >= 0.95 and figures["recall"] >= 0.95, (name, result["wrong"])
    sys.modules.pop("entropy_curves", None)


def exploding(n: int) -> list[dict[str, float]]:
    climb = [0.4 * 1.1 ** max(0, s - 10) for s in range(n)]
    return [{"step": s, "entropy": e, "completions/mean_length": 40 * e} for s, e in enumerate(climb)]


def test_live_it_speaks_once_and_soon() -> None:
    live = LiveDetector()
    said = [(line["step"], verdict) for line in exploding(60) if (verdict := live.see(line))]
    assert len(said) == 1
    step, verdict = said[0]
    assert verdict.kind == "explosion" and 10 < step < 30
    assert alarm_text(verdict).startswith("entropy explosion: 0.4 nats at about step ")
    assert "Since then: mean length in tokens 16 to " in alarm_text(verdict)


def test_live_a_run_that_goes_on_is_not_told_again() -> None:
    lines = exploding(60)
    live = LiveDetector(lines[:40])
    assert not any(live.see(line) for line in lines[40:])
    fresh = LiveDetector(lines[:12])
    assert sum(fresh.see(line) is not None for line in lines[12:]) == 1


def test_live_a_second_kind_of_failure_is_told_too() -> None:
    lines = exploding(40)
    fall = [{"step": 40 + i, "entropy": lines[-1]["entropy"] * 0.6**i} for i in range(60)]
    live = LiveDetector()
    kinds = [verdict.kind for line in [*lines, *fall] if (verdict := live.see(line))]
    assert kinds[0] == "explosion" and len(set(kinds)) == len(kinds)


def test_live_a_healthy_run_stays_silent() -> None:
    live = LiveDetector()
    values = [0.22 * math.exp(-i / 110) * (1 + 0.05 * math.sin(7 * i)) for i in range(150)]
    assert not any(live.see({"step": s, "entropy": e}) for s, e in enumerate(values))


@pytest.mark.parametrize(("before", "after", "moved"), [(1.0, 1.3, True), (1.0, 1.2, False), (0.0, 1e-4, False)])
def test_evidence_moves_by_a_quarter(before: float, after: float, moved: bool) -> None:
    assert Evidence("x", "x", before, after).moved == moved
