"""Rows of a user's data set: a JSONL or Parquet file, or a Hub id."""

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

Row = dict[str, Any]


def read_rows(path: str, *, split: str = "train", subset: str | None = None, label: str = "data ") -> list[Row]:
    """All rows of a data set at once; see `iter_rows`."""
    return list(iter_rows(path, split=split, subset=subset, label=label))


def iter_rows(
    path: str, *, split: str = "train", subset: str | None = None, label: str = "task.path="
) -> Iterator[Row]:
    """The rows of a `.jsonl` or `.parquet` file, or of a data set on the Hub, one at a time.

    Args:
        path: a file, or a Hub id such as openai/gsm8k (needs the extra `hub`).
        split: of a Hub data set.
        subset: configuration of a Hub data set.
        label: what stands before the path in errors.

    Yields:
        One dict a row.

    Raises:
        ValueError: nothing there, no such format, a broken line, or no rows at all.
    """
    file = Path(path).expanduser()
    if file.is_file():
        readers = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".parquet": _read_parquet}
        if file.suffix not in readers:
            raise ValueError(f"{label}{path}: cannot read {file.suffix or 'this'} files; give .jsonl or .parquet")
        rows = readers[file.suffix](file)
    elif file.suffix or path.startswith(("/", ".", "~")) or path.count("/") != 1:
        raise ValueError(
            f"{label}{path}: no such file (looked for {file.absolute()}); give a .jsonl or .parquet file, or a "
            "Hub id such as openai/gsm8k"
        )
    else:
        rows = _read_hub(path, split, subset, label)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise ValueError(f"{label}{path}: no rows in it")


def column(row: Mapping[str, Any], name: str, where: str) -> Any:
    """The value of a column; dots go into nested columns, as in `reward_model.ground_truth`.

    Args:
        row: the row.
        name: the column.
        where: the row is from, for the error.

    Returns:
        The value.

    Raises:
        ValueError: no such column; the text names those that there are.

    Example:
        >>> column({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth", "data.parquet")
        '4'
    """
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            near = difflib.get_close_matches(name, list(row), n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where} has no column {name!r}{hint}; its columns are {', '.join(row)}")
        value = cast(Mapping[str, Any], value)[part]
    return value


def _read_jsonl(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{file}, line {number}"
            try:
                # some editors begin a file with a byte order mark
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                row = json.loads(text, object_pairs_hook=_object)
            except UnicodeDecodeError as error:
                raise ValueError(f"{place}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
            except _TwiceTheSame as error:
                raise ValueError(f"{place}: the column {error} stands there twice; keep one of them") from None
            # integers of more than 4,300 digits and deep nesting are errors of other kinds than bad JSON
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}: not JSON ({error}); each line must be one object") from None
            if not isinstance(row, dict):
                raise ValueError(f"{place}: {type(row).__name__} instead of an object")
            yield cast(Row, row)


class _TwiceTheSame(Exception):
    """A JSON object has a name twice: Python would keep the last and say nothing."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceTheSame(_repeated([name for name, _ in pairs]))
    return found


def _repeated(names: list[str]) -> str:
    return ", ".join(name for name, count in Counter(names).items() if count > 1)


def _read_parquet(file: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(file)
        if twice := _repeated(table.schema_arrow.names):
            raise ValueError(f"{file}: the column {twice} stands there twice; keep one of them")
        batches = table.iter_batches(batch_size=4_096)
        while (batch := next(batches, None)) is not None:
            yield from cast(list[Row], batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a Parquet file that can be read ({error})") from error


def _read_hub(path: str, split: str, subset: str | None, label: str) -> Iterator[Row]:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"{label}{path}: no such file here; to read it from the Hub: pip install 'qae[hub]'") from None
    try:
        table = datasets.load_dataset(path, subset, split=split)
    except Exception as error:  # whatever the data set's host or format raises
        raise ValueError(
            f"{label}{path}: no such file here, and the Hub did not give it (subset {subset}, split {split}): "
            f"{type(error).__name__}: {error}"
        ) from error
    for row in table:
        yield dict(row)
