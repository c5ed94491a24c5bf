"""What `qae study` does: plan, run, sum up, and draw again from kept summaries."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from qae.records import Record, atomic_write
from qae.report.figures import figures_of
from qae.report.study import study_markdown, study_page
from qae.study.plan import Study, check_kept, check_policies, load_study, plan_text
from qae.study.runner import RunState, StudyFailed, StudyStopped, open_study, run_study, states_of
from qae.study.summary import adopt, read_record, record_of, share, write_record
from qae.study.view import open_view
from qae.trainer.keys import ConfigError

FIGURES, SUMMARY = "figures", "summary.json"


def dry_run(path: Path, *, out: Path | None, jobs: int, only: Sequence[str] = (), shared: Sequence[Path] = ()) -> str:
    """The plan of a study, or of some of its runs, in words; nothing is written. Arguments as of `conduct`."""
    study = load_study(path)
    directory = place_of(study.config.name, out)
    states = states_of(study, directory)
    _count_kept(study, states, directory, shared)
    chosen = chosen_runs(states, only)
    count = [sum(state.state == kind for state in chosen) for kind in ("finished", "begun")]
    return plan_text(study, [state.run for state in chosen], jobs=jobs, finished=count[0], begun=count[1])


def conduct(
    path: Path,
    *,
    out: Path | None,
    jobs: int,
    console: Console,
    plain: bool,
    sum_up_only: bool,
    only: Sequence[str] = (),
    shared: Sequence[Path] = (),
) -> Path:
    """Do what is left of a study, then write its summary, table, figures and page.

    Also after a stop or a failure: the summary then holds what is finished.

    Args:
        path: the YAML file.
        out: its directory; None: runs/study-<name>.
        jobs: runs at a time.
        console: for the progress.
        plain: lines instead of a table.
        sum_up_only: run nothing.
        only: patterns of the runs to do now, such as `mb16/k0.*`; none: all.
        shared: summaries of other studies, whose runs count where they are the same.

    Returns:
        The study's directory.

    Raises:
        StudyStopped: it was asked to stop.
        StudyFailed: some runs failed.
        ConfigError: the study cannot be, or a pattern fits no run.
    """
    study = load_study(path)
    directory = place_of(study.config.name, out)
    states = states_of(study, directory)
    _count_kept(study, states, directory, shared)  # refuses before anything is written
    if not sum_up_only:
        to_do = chosen_runs(states, only)
        check_policies(study.config, [state.run for state in to_do if state.state != "finished"])
    states = open_study(study, directory)
    _count_kept(study, states, directory, shared)
    chosen = chosen_runs(states, only)
    failure: StudyStopped | StudyFailed | None = None
    if not sum_up_only:
        with open_view(console, plain=plain) as (look, tell):
            try:
                run_study(chosen, jobs=jobs, look=look, tell=tell)
            except (StudyStopped, StudyFailed) as error:
                failure = error
    states = states_of(study, directory)  # again: another process may have finished some of the others
    record = record_of(study.config, states, _count_kept(study, states, directory, shared))
    write_record(record, directory / SUMMARY)
    write_views(record, directory)
    if failure:
        raise failure
    return directory


def redraw(summaries: list[Path], *, out: Path | None, tell: Callable[[str], None]) -> None:
    """Tables, figures and pages of kept summaries, computed anew; nothing is run.

    Args:
        summaries: files that `qae study` wrote.
        out: where the figures and texts go, one folder a study; None: beside each summary, in a folder of its name.
        tell: told of each folder written.
    """
    for path in summaries:
        record = read_record(path)
        directory = (out or path.parent) / record["study"]["name"]
        write_views(record, directory)
        tell(str(directory))


def write_views(record: Record, directory: Path) -> None:
    """summary.md, report.html and figures/*.svg; figures of an older record go away."""
    figures = figures_of(record)
    for old in (directory / FIGURES).glob("*.svg"):
        if old.stem not in figures:
            old.unlink()
    for name, svg in figures.items():
        atomic_write(directory / FIGURES / f"{name}.svg", svg)
    atomic_write(directory / "summary.md", study_markdown(record, figures=FIGURES))
    atomic_write(directory / "report.html", study_page(record))


def chosen_runs(states: list[RunState], only: Sequence[str]) -> list[RunState]:
    """The runs of which BLOCK/ARM or BLOCK/ARM/seed-N fits a pattern, in the patterns' order."""
    found: dict[str, RunState] = {}
    for pattern in only:
        fits = [s for s in states if any(fnmatchcase(s.run.label, p) for p in (pattern, f"{pattern}/seed-*"))]
        if not fits:
            cells = ", ".join(dict.fromkeys(s.run.label.rpartition("/")[0] for s in states))
            raise ConfigError(
                f"--only {pattern}: no such run; give BLOCK/ARM of {cells}, or a pattern such as 'mb16/*'"
            )
        found |= {state.run.label: state for state in fits}
    return list(found.values()) if only else states


def place_of(name: str, out: Path | None) -> Path:
    """The study's directory."""
    return out or Path("runs") / f"study-{name}"


def _count_kept(study: Study, states: list[RunState], directory: Path, shared: Sequence[Path]) -> list[Record]:
    """Count kept runs of this study's own summary and of others' as finished; returns its own that are not planned."""
    summary, others = directory / SUMMARY, list[Record]()
    if summary.is_file():
        record = read_record(summary)
        if record["runs"]:
            check_kept(study, record["study"])
        others = adopt(states, record)
    for path in shared:
        share(study.config, states, read_record(path))
    return others
