"""AIME, AMC and any set of problems with answers: from the Hub or a file, in all the shapes they are published in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qae.tasks.columns import ANSWER_COLUMNS, LEVEL_COLUMNS, PROMPT_COLUMNS, gold_text, guess_column, has_column
from qae.tasks.copies import Copies, merge_copies, problem_id
from qae.tasks.prompts import read_prompt
from qae.tasks.rows import column, read_rows
from qae.tasks.task import Item

BOXED_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Benchmark:
    """A published set.

    Attributes:
        problems: how many it has; another number is reported.
        hub_id: where it lies on the Hub.
        split: of the data set there.
        subsets: configurations to read and join; (None,) for the default one.
    """

    problems: int
    hub_id: str
    split: str
    subsets: tuple[str | None, ...] = (None,)


BENCHMARKS: dict[str, Benchmark] = {
    "aime24": Benchmark(30, "HuggingFaceH4/aime_2024", "train"),
    "aime25": Benchmark(30, "opencompass/AIME2025", "test", ("AIME2025-I", "AIME2025-II")),
    "amc23": Benchmark(40, "math-ai/amc23", "test"),
}


@dataclass(frozen=True)
class ProblemSet:
    """Problems to evaluate on.

    Attributes:
        name: for tables and directories.
        items: the problems, each once.
        copies: what was merged.
        notes: what a reader of the results should know about the data.
        suffix: text to append to plain prompts.
        columns: problem id -> its (first) row, for reward functions.
    """

    name: str
    items: tuple[Item, ...]
    copies: Copies
    notes: tuple[str, ...] = ()
    suffix: str = ""
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def load_benchmark(spec: str) -> ProblemSet:
    """A benchmark by name, from the Hub (`aime24`) or from a file of its rows (`aime24=aime.parquet`).

    Args:
        spec: one of `BENCHMARKS`, optionally with `=` and a JSONL or Parquet file.

    Returns:
        Its problems; prompts that are plain text get the usual request for a boxed answer.

    Raises:
        ValueError: an unknown name, or data that cannot be read.
    """
    name, _, path = spec.partition("=")
    if name not in BENCHMARKS:
        raise ValueError(
            f"benchmark {name!r} is unknown: choose from {', '.join(BENCHMARKS)}, or give your own file as data"
        )
    benchmark = BENCHMARKS[name]
    if path:
        rows = read_rows(path)
    else:
        rows = [
            row
            for subset in benchmark.subsets
            for row in read_rows(benchmark.hub_id, split=benchmark.split, subset=subset)
        ]
    found = problems_of(rows, name, where=path or benchmark.hub_id)
    notes = list(found.notes)
    if len(found.items) != benchmark.problems:
        notes.append(f"{name} has {benchmark.problems} problems, this copy {len(found.items)}")
    return replace(found, notes=tuple(notes), suffix=BOXED_SUFFIX)


def load_data(
    path: str, *, prompt: str | None = None, answer: str | None = None, split: str = "test", subset: str | None = None
) -> ProblemSet:
    """Problems of a user's own file or Hub id; the columns are recognised if they are not named.

    Args:
        path: a JSONL or Parquet file, or a Hub id.
        prompt: column of the problem: text or chat messages.
        answer: column of the gold answer; dots go into nested columns.
        split: of a Hub data set.
        subset: configuration of a Hub data set.

    Returns:
        The problems; nothing is appended to prompts.

    Raises:
        ValueError: data that cannot be read, or columns that are not there.
    """
    rows = read_rows(path, split=split, subset=subset)
    return problems_of(rows, Path(path).stem, where=path, prompt=prompt, answer=answer)


def problems_of(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    *,
    where: str,
    prompt: str | None = None,
    answer: str | None = None,
) -> ProblemSet:
    """Rows as problems: columns found, answers as text, copies merged.

    A benchmark that was copied for 32 samples per problem (960 rows for AIME) comes out as its 30 problems.

    Args:
        rows: one dict a row.
        name: of the set.
        where: the rows come from, for errors.
        prompt: column of the problem; None finds it.
        answer: column of the answer; None finds it.

    Returns:
        The problems.

    Raises:
        ValueError: no such column, or a prompt that is neither text nor messages.

    Example:
        >>> rows = [{"Problem": "1+1", "Answer": 2}] * 32 + [{"Problem": "2+2", "Answer": 4.0}] * 32
        >>> found = problems_of(rows, "tiny", where="tiny.jsonl")
        >>> [(item.prompt, item.answer) for item in found.items], found.notes
        ([('1+1', '2'), ('2+2', '4')], ('64 rows are 2 problems: 62 copies left out',))
    """
    prompt_column = prompt or guess_column(rows[0], PROMPT_COLUMNS, "prompt", where)
    answer_column = answer or guess_column(rows[0], ANSWER_COLUMNS, "answer", where)
    level_column = has_column(rows[0], LEVEL_COLUMNS)
    items: list[Item] = []
    columns: dict[str, Mapping[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        place = f"{where}, row {number}"
        text = read_prompt(column(row, prompt_column, place), f"{place}: {prompt_column}")
        gold = gold_text(column(row, answer_column, place))
        level = gold_text(row.get(level_column)) if level_column else ""
        items.append(Item(problem_id(text), text, gold, level))
        columns.setdefault(items[-1].id, row)
    kept, copies = merge_copies(items)
    if not kept:
        raise ValueError(f"{where}: no problem is left of {len(items)} rows; {copies}")
    return ProblemSet(name, tuple(kept), copies, (str(copies),) if str(copies) else (), columns=columns)
