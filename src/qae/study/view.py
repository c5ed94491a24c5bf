"""How far a study is: a live table in a terminal, plain lines elsewhere."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.table import Table

from qae.study.runner import RunState

Look = Callable[[list[RunState]], None]
PLAIN_SECONDS = 60


@contextmanager
def open_view(console: Console, *, plain: bool) -> Generator[tuple[Look, Callable[[str], None]]]:
    """Two functions: one is shown the states of the runs, the other told a line."""
    if plain or not console.is_terminal:
        said = [monotonic()]

        def seldom(states: list[RunState]) -> None:
            if monotonic() - said[0] > PLAIN_SECONDS:
                said[0] = monotonic()
                console.print(progress_line(states), markup=False, highlight=False, soft_wrap=True)

        yield seldom, lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    with Live(console=console, refresh_per_second=2) as live:
        yield lambda states: live.update(progress_table(states)), lambda text: None


def progress_line(states: list[RunState]) -> str:
    """All runs in one line."""
    count = {kind: sum(state.state == kind for state in states) for kind in ("finished", "running", "failed")}
    steps = ", ".join(f"{s.run.label} {s.step}/{s.run.config.steps}" for s in states if s.state == "running")
    failed = f", {count['failed']} failed" if count["failed"] else ""
    return f"{count['finished']} of {len(states)} runs finished{failed}; {steps or 'none running'}"


def progress_table(states: list[RunState]) -> Table:
    """One row for each arm and block, one column for each seed."""
    table = Table(title=progress_line(states).split(";")[0], title_justify="left")
    seeds = sorted({state.run.seed for state in states})
    for heading in ("block", "arm", *(f"seed {seed}" for seed in seeds)):
        table.add_column(heading)
    cells = {(state.run.block, state.run.arm, state.run.seed): _cell(state) for state in states}
    for block, arm in dict.fromkeys((state.run.block, state.run.arm) for state in states):
        table.add_row(block, arm, *(cells.get((block, arm, seed), "") for seed in seeds))
    return table


def _cell(state: RunState) -> str:
    rate = "" if state.pass_rate is None else f" {state.pass_rate:.2f}"
    match state.state:
        case "finished":
            return f"[green]done{rate}[/]"
        case "running":
            return f"[cyan]{state.step}/{state.run.config.steps}{rate}[/]"
        case "failed":
            return "[red]failed[/]"
        case "begun":
            return f"at {state.step}"
        case "waiting":
            return "-"
