"""The report as Markdown: the words and the table, for a pull request or a log."""

from pathlib import Path

from qae.report.runs import arms_of, read_run
from qae.report.words import sentences, table


def write_markdown(run_dirs: list[Path]) -> str:
    """What happened in these runs, as Markdown.

    Args:
        run_dirs: run directories, in the order in which they are to appear.

    Returns:
        One table with a row for each group of runs that differ in their seed only, then the sentences of each run.

    Raises:
        FileNotFoundError: a directory is no run's.

    Example:
        >>> import tempfile
        >>> from qae.records import RunWriter
        >>> run = Path(tempfile.mkdtemp()) / "first"
        >>> RunWriter(run).append_metrics({"step": 1, "entropy": 0.5})
        >>> print(write_markdown([run]).splitlines()[-3])
        - 1 steps.
    """
    runs = [read_run(Path(path)) for path in run_dirs]
    header, rows = table(arms_of(runs))
    lines = [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    for run in runs:
        lines += ["", f"### {_plain(run.path.name)}", ""]
        lines += [f"- {_plain(text)}" for text in sentences(run)]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("\n", " ")
