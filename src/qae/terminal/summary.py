"""What a run has come to: before and after, and where everything lies."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qae.evaluation.estimators import paired_difference
from qae.terminal.plain import interval
from qae.terminal.progress import Metrics, Progress
from qae.terminal.text import duration, number, percent, signed

LEVEL = "eval/pass@1/"


def print_summary(console: Console, progress: Progress, report: Path | None) -> None:
    """Print the table before/after and the places.

    Args:
        console: where to.
        progress: of a run that has ended.
        report: its report, if one was written.
    """
    table = evaluation_table(progress.evals) if len(progress.evals) > 1 else training_table(progress.history)
    if table is not None:
        console.print()
        console.print(table)
    for label, text in places(progress, report):
        console.print(Text.assemble((f"{label:<11}", "bright_black"), text), soft_wrap=True)


def evaluation_table(evals: list[Metrics]) -> Table:
    """Held-out results of the first and the last evaluation."""
    before, after = evals[0], evals[-1]
    problems, samples = after.get("eval/problems"), after.get("eval/samples") or 1
    table = _table(
        f"{problems:.0f} held-out problems, {samples:.0f} samples each" if problems else "held-out",
        f"step {before['step']}" if before["step"] else "before",
        f"step {after['step']}",
    )
    table.add_row("pass@1", interval(before), interval(after), _change(before, after, "eval/pass@1"), style="bold")
    _add_paired(table, before.get("eval/rates"), after.get("eval/rates"))
    for key in sorted(after):
        if key.startswith(LEVEL):
            _add(table, f"  level {key.removeprefix(LEVEL)}", key, before, after)
    if samples > 1:
        _add(table, f"pass@{samples:.0f}", f"eval/pass@{samples:.0f}", before, after)
    _add(table, "entropy, nats", "eval/entropy", before, after)
    _add(table, "mean length, tokens", "eval/mean_length", before, after, digits=1)
    _add(table, "truncated", "eval/truncated_frac", before, after)
    return table


def training_table(history: list[Metrics]) -> Table | None:
    """Without evaluations: the training metrics of the first and the last step, if there are two."""
    if len(history) < 2:
        return None
    first, last = history[0], history[-1]
    table = _table("training prompts", f"step {first['step']}", f"step {last['step']}")
    _add(table, "pass rate", "outcome", first, last)
    _add(table, "entropy, nats", "entropy", first, last)
    _add(table, "mean length, tokens", "completions/mean_length", first, last, digits=1)
    return table


def _table(title: str, before: str, after: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    table.header_style = "bright_black"
    table.add_column("", no_wrap=True)
    for heading in (before, after, "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add(table: Table, label: str, key: str, before: Metrics, after: Metrics, *, digits: int = 3) -> None:
    if after.get(key) is None:
        return
    show = percent if key.endswith("_frac") else lambda value: number(value, digits)
    change = "" if key.endswith("_frac") else _change(before, after, key, digits)
    table.add_row(label, show(before.get(key)), show(after[key]), change)


def _add_paired(table: Table, before: dict[str, float] | None, after: dict[str, float] | None) -> None:
    """The difference on the problems that both evaluations scored, with its interval over problems."""
    common = [problem for problem in before or {} if problem in (after or {})]
    if before is None or after is None or not common:
        return
    found = paired_difference([before[p] for p in common], [after[p] for p in common])
    change = f"{signed(found.mean, 3)} [{signed(found.low, 3)}, {signed(found.high, 3)}]"
    table.add_row("  paired by problem", f"{found.won} up, {found.lost} down", change, "")


def _change(before: Metrics, after: Metrics, key: str, digits: int = 3) -> str:
    old, new = before.get(key), after.get(key)
    return "" if old is None or new is None else signed(new - old, digits)


def places(progress: Progress, report: Path | None) -> Iterator[tuple[str, str]]:
    """(label, text) of what the run has left behind."""
    run_dir = progress.run_dir
    if run_dir is None:
        return
    seconds = progress.summary.get("seconds", progress.elapsed_seconds())
    yield "finished", f"{progress.step} steps in {duration(seconds)}"
    yield "run", str(run_dir)
    checkpoint = latest_checkpoint(run_dir)
    if checkpoint:
        yield "checkpoint", f"{checkpoint}  (transformers loads it as it is)"
    if report:
        yield "report", str(report)
        yield "look at it", f"{_opener()} {shlex.quote(str(report))}"


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest step, if there is one."""
    found = [path for path in (run_dir / "checkpoints").glob("*") if path.is_dir() and path.name.isdigit()]
    return max(found, key=lambda path: int(path.name), default=None)


def _opener() -> str:
    return {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
