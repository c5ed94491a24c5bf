"""The views of a run, fed with made-up events: what they print, and that it fits."""

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fake_events import fake_run, play
from qae.records import RunWriter
from qae.terminal import LiveView, PlainView, Progress, latest_checkpoint, open_view, print_summary
from qae.terminal.live import panel
from qae.terminal.plain import HEADING_EVERY, HEARTBEAT_SECONDS, doing
from qae.terminal.text import SPARKS, number, percent, shares, sparkline
from qae.trainer.config import TrainConfig

RUN = Path("runs/tiny-20260101-120000")


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_console(width: int = 80, height: int = 24, **options: Any) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, **options)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def a_config(*overrides: str) -> TrainConfig:
    return TrainConfig.load("tiny", "steps=30", "eval.every=25", *overrides)


def after(steps: int, *overrides: str) -> Progress:
    """The state of a run after so many steps of one second each."""
    clock = Clock()
    progress = Progress(clock)
    for name, data in fake_run(a_config(*overrides), RUN):
        progress.event(name, **data)
        clock.now += 1 / 27
        if name == "step" and data["metrics"]["step"] == steps:
            break
    return progress


def play_plain(width: int = 80, *overrides: str) -> list[str]:
    console = a_console(width)
    view = PlainView(console, Progress(Clock()))
    play(view, fake_run(a_config(*overrides), RUN), lambda _: None)
    view.close()
    return printed(console).splitlines()


def test_plain_lines_are_short_ascii_and_one_a_step() -> None:
    lines = play_plain()
    steps = [line for line in lines if "/30 " in line]
    assert len(steps) == 30
    assert all(line.isascii() and len(line) <= 80 for line in lines)
    assert "\x1b" not in "".join(lines)


def test_plain_columns_stand_under_their_headings() -> None:
    lines = play_plain(80, "eval.problems=0")
    heading = next(i for i, line in enumerate(lines) if line.split()[:1] == ["step"])
    ends = [i for i, c in enumerate(lines[heading]) if c != " " and lines[heading][i + 1 : i + 2] in ("", " ")]
    for row in lines[heading + 1 : heading + 6]:
        assert len(row) == len(lines[heading])
        assert all(row[end] != " " for end in ends), row
    assert sum(line.split()[:1] == ["step"] for line in lines) == 1 + (30 - 1) // HEADING_EVERY


def test_plain_lines_do_not_wrap_and_take_no_markup() -> None:
    console = a_console(40)
    view = PlainView(console)
    view.event("note", text="[red]x[/red] " + "long " * 30)
    view.close()
    assert printed(console) == "[red]x[/red] " + "long " * 30 + "\n"


def test_a_long_phase_gives_a_sign_of_life() -> None:
    clock = Clock()
    console = a_console()
    view = PlainView(console, Progress(clock))
    view.event("phase", phase="load")
    view.event("start", config=a_config(), run_dir=RUN, resumed_step=None)
    for second in range(100):
        clock.now = float(second)
        view.event("phase", phase="sample", done=second, total=256, tokens=0)
        view.sign_of_life()
    view.close()
    first, *signs = printed(console).splitlines()
    assert first == "loading torch and the policy"
    assert signs[0] == "  step 1: sampling 21/256 completions, 0:21"
    assert len(signs) == int(99 // (HEARTBEAT_SECONDS + 1))


def test_the_sign_of_life_needs_no_event() -> None:
    clock = Clock()
    console = a_console()
    view = PlainView(console, Progress(clock))
    clock.now = 1000.0
    deadline = time.monotonic() + 10
    while not printed(console) and time.monotonic() < deadline:
        time.sleep(0.05)
    view.close()
    assert printed(console) == "  loading torch and the policy, 16:40\n"
    assert not any(thread.name == "qae-terminal" for thread in threading.enumerate())


def test_warnings_are_said_as_such() -> None:
    assert "warning: 1 of 8 updates skipped: the gradient was not finite" in play_plain()


def test_evaluations_are_one_line() -> None:
    assert "step 25 held-out: pass@1 0.417 [0.377, 0.457], pass@16 0.810, entropy 0.400" in play_plain()


def test_time_left_counts_steps_and_evaluations() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.event("start", config=TrainConfig.load("tiny", "steps=10", "eval.every=5"), run_dir=RUN, resumed_step=None)
    assert progress.left_seconds() is None
    progress.event("phase", phase="eval", done=0, total=1, tokens=0)
    clock.now += 4
    progress.event("eval", metrics={"step": 0, "eval/pass@1": 0.2})
    for step in (1, 2):
        progress.event("phase", phase="sample", done=0, total=1, tokens=0)
        clock.now += 3
        progress.event("step", metrics={"step": step})
    assert progress.left_seconds() == 8 * 3 + 2 * 4
    progress.event("phase", phase="sample", done=0, total=1, tokens=0)
    clock.now += 1
    assert progress.left_seconds() == 8 * 3 + 2 * 4 - 1
    clock.now += 100
    assert progress.left_seconds() == 7 * 3 + 2 * 4


def test_a_resumed_run_shows_what_came_before(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for name, data in fake_run(a_config(), tmp_path):
        if name in ("step", "eval") and data["metrics"]["step"] <= 20:
            writer.append_metrics(data["metrics"])
    progress = Progress(Clock())
    progress.event("start", config=a_config(), run_dir=tmp_path, resumed_step=15)
    assert (progress.step, len(progress.history), len(progress.evals)) == (15, 15, 1)
    assert progress.left_seconds() is None


def test_trend_compares_two_windows() -> None:
    progress = Progress(Clock())
    for step in range(1, 6):
        progress.event("step", metrics={"step": step, "outcome": float(step)})
    assert progress.trend("outcome", window=3) is None
    progress.event("step", metrics={"step": 6, "outcome": 6.0})
    assert progress.trend("outcome", window=3) == 3.0
    assert progress.trend("absent", window=3) is None


def rendered(progress: Progress, width: int, height: int = 40) -> list[str]:
    console = a_console(width, height, force_terminal=True, color_system=None)
    console.print(panel(progress, width, height))
    return printed(console).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_panel_fits_and_shows_everything(width: int) -> None:
    lines = rendered(after(22), width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for word in ("22/30", "73%", "left", "pass rate", "entropy", "hard 4", "easy 4", "flat 10%", "of rows"):
        assert word in text, word
    if width >= 80:
        for word in (
            "nats",
            "in 10 steps",
            "tokens/s",
            "low 0.1%",
            "gradient norm 0.400",
            "step 3.1 s",
            "pass@1 0.250",
        ):
            assert word in text, word
    assert any(mark in text for mark in SPARKS)


@pytest.mark.parametrize("height", [1, 3, 6, 12])
def test_the_panel_fits_a_low_terminal(height: int) -> None:
    assert len(rendered(after(22), 80, height)) <= max(height, 2)


def test_the_panel_shows_progress_before_the_first_event() -> None:
    text = "\n".join(rendered(Progress(Clock()), 80))
    assert "loading" in text and "left" in text


def test_a_metric_that_was_not_measured_is_a_dash() -> None:
    progress = Progress(Clock())
    progress.event("start", config=a_config(), run_dir=RUN, resumed_step=None)
    progress.event("step", metrics={"step": 1, "outcome": None, "entropy": None, "grad_norm": None})
    assert "gradient norm -" in "\n".join(rendered(progress, 80))
    console = a_console()
    view = PlainView(console, progress)
    view.event("step", metrics={"step": 2, "outcome": None})
    view.close()
    assert printed(console).splitlines()[-1].split()[:3] == ["2/30", "-", "-"]


def live_on(console: Console) -> LiveView:
    view = LiveView(console)
    play(view, fake_run(a_config("steps=8"), RUN), lambda _: None)
    return view


def test_the_live_view_gives_the_terminal_back() -> None:
    console = a_console(force_terminal=True)
    view = live_on(console)
    view.close()
    view.close()
    assert printed(console).rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in printed(console)[-200:]
    assert not any(thread.name == "qae-terminal" for thread in threading.enumerate())


def test_the_live_view_keeps_notes_above_the_panel() -> None:
    console = a_console(force_terminal=True)
    view = live_on(console)
    view.event("note", text="[bold]as it is[/bold]")
    view.close()
    assert "[bold]as it is[/bold]" in printed(console)


def test_the_clock_moves_without_events() -> None:
    clock = Clock()
    console = a_console(force_terminal=True, color_system=None)
    view = LiveView(console, Progress(clock))
    clock.now = 83.0
    deadline = time.monotonic() + 10
    while "1:23 gone" not in printed(console) and time.monotonic() < deadline:
        time.sleep(0.05)
    view.close()
    assert "1:23 gone" in printed(console)


def test_a_resize_starts_over_with_the_notes() -> None:
    console = a_console(100, force_terminal=True, color_system=None)
    view = live_on(console)
    view.event("note", text="the note")
    before = printed(console).count("the note")
    console.size = (60, 24)
    deadline = time.monotonic() + 10
    while "\x1b[2J" not in printed(console) and time.monotonic() < deadline:
        time.sleep(0.05)
    view.close()
    cleared = printed(console).split("\x1b[2J")[-1]
    assert before == 1 and "the note" in cleared


def kind_of_view(console: Console, *, plain: bool = False) -> type:
    view = open_view(console, plain=plain)
    view.close()
    return type(view)


def test_lines_go_to_files_and_the_panel_to_terminals() -> None:
    assert kind_of_view(a_console()) is PlainView
    assert kind_of_view(a_console(force_terminal=True), plain=True) is PlainView
    assert kind_of_view(a_console(force_terminal=True)) is LiveView


def test_a_terminal_without_unicode_gets_plain_lines() -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert kind_of_view(Console(file=narrow, force_terminal=True)) is PlainView


def summary_of(*overrides: str, report: Path | None = None, width: int = 80) -> str:
    console = a_console(width)
    progress = Progress(Clock())
    for name, data in fake_run(a_config(*overrides), RUN):
        progress.event(name, **data)
    print_summary(console, progress, report)
    return printed(console)


def test_the_summary_compares_before_and_after() -> None:
    text = summary_of(report=RUN / "report.html")
    assert "96 held-out problems, 16 samples each" in text
    row = next(line for line in text.splitlines() if line.startswith(" pass@1 "))
    assert row.split(maxsplit=1)[1].split("  ")[0] == "0.250 [0.210, 0.290]"
    assert "0.450 [0.410, 0.490]" in row and row.rstrip().endswith("+0.200")
    assert "level 3" in text and "pass@16" in text and "mean length, tokens" in text
    assert "…" not in text
    assert f"report     {RUN}/report.html" in text
    assert f" {RUN}/report.html" in next(line for line in text.splitlines() if line.startswith("look at it"))
    assert "finished   30 steps in 1:01" in text


def test_without_evaluations_the_summary_compares_training_steps() -> None:
    text = summary_of("eval.problems=0")
    assert "training prompts" in text and "step 30" in text and "pass rate" in text
    assert "report" not in text


def test_a_run_that_did_nothing_has_no_table() -> None:
    console = a_console()
    print_summary(console, Progress(Clock()), None)
    assert printed(console) == ""


def test_the_latest_checkpoint_is_the_highest_step(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for name in ("000010", "000100", "000025", ".000200.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "000100"


def test_what_it_is_doing_has_a_name_for_every_phase() -> None:
    progress = Progress(Clock())
    texts = []
    for phase in ("load", "sample", "grade", "update", "eval", "checkpoint"):
        progress.event("phase", phase=phase, done=3, total=8, tokens=0)
        texts.append(doing(progress))
    assert texts == [
        "loading 3/8 torch and the policy, 0:00",
        "step 1: sampling 3/8 completions, 0:00",
        "step 1: grading 3/8 completions, 0:00",
        "step 1: updating 3/8 updates, 0:00",
        "evaluating 3/8 completions, 0:00",
        "saving 3/8 a checkpoint, 0:00",
    ]


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any), st.integers(1, 60))
def test_a_bar_has_as_many_cells_as_it_is_wide(counts: list[int], width: int) -> None:
    cells = shares([count / sum(counts) for count in counts], width)
    assert sum(cells) == width
    assert all(abs(cell - count / sum(counts) * width) < 1 for cell, count in zip(cells, counts, strict=True))


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(0, 80))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(SPARKS)


def test_numbers_never_show_a_value_as_zero() -> None:
    assert (number(1e-6), number(0.0), number(-2e-9)) == ("1.0e-06", "0.000", "-2.0e-09")
    assert (percent(0.0995), percent(0.0994), percent(1.0)) == ("10%", "9.9%", "100%")
