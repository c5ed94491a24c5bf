"""Rollout dumps as rows: JSONL of qae, verl (V0, V1, validation) or anyone, and TRL's tables of completions.

Field names are found by aliases; a field that a dump does not have is None. Broken lines are counted and skipped.
"""

import json
import math
from pathlib import Path
from typing import Any, cast

from qae.audit.store import GroupStore, Row
from qae.audit.tokens import TokenStore
from qae.records import ReadTally, Record

GROUP = (
    "prompt_id",
    "group_id",
    "uid",
    "problem_id",
    "question_id",
    "prompt_uid",
    "group",
    "prompt",
    "input",
    "question",
)
REWARD = ("reward", "score", "total_reward", "final_reward")
OUTCOME = ("outcome", "acc", "accuracy", "correct", "is_correct")
STEP = ("step", "global_step", "iteration")
ADVANTAGE = ("advantage", "advantages", "adv")
TOKENS = ("tokens", "completion_tokens", "response_length", "num_tokens", "output_tokens")
TEXT = ("completion", "output", "response", "generation", "text")
TRUNCATED = ("truncated", "is_truncated")
_NO_REWARD = ("step", "prompt", "completion", "advantage")
_REWARD_LISTS = ("rewards", "scores")


def read_jsonl(path: Path, store: GroupStore, tally: ReadTally, tokens: TokenStore | None = None) -> None:
    """Add the rows of a JSONL file: one completion a line, or one group a line with a list under "rewards".

    Args:
        path: the file; read line by line.
        store: takes the rows.
        tally: counts lines and broken lines.
        tokens: takes texts and recorded tokens, if given.
    """
    names: dict[str, str] | None = None
    parse = json.JSONDecoder().raw_decode  # json.loads on bytes takes a third longer
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            tally.lines += 1
            try:
                record, end = parse(line)
                if line[end:].strip():
                    raise ValueError("two values in a line")
                if names is None or not _fits(record, names):
                    names = _names(record)
                if names["rewards"]:
                    _add_group(record, names, store)
                elif not _is_padding(record):
                    row = _row(record, names)
                    store.add(row)
                    if tokens is not None:
                        tokens.add(record, row.step, row.text, row.outcome)
            except (ValueError, TypeError, KeyError, RecursionError):
                tally.skip(path, number)


def is_rollout(record: Any) -> bool:
    """Whether a record is a completion, or a group, with a reward."""
    if not isinstance(record, dict):
        return False
    keys = cast(Record, record).keys()
    return any(name in keys for name in GROUP) and any(name in keys for name in (*REWARD, *_REWARD_LISTS))


def read_completion_tables(paths: list[Path], store: GroupStore, tally: ReadTally) -> list[str]:
    """Add the rows of TRL's completions_*.parquet.

    They hold no group id: a group is a run of rows with one prompt. Reward functions are summed with weight 1, as
    the table does not hold their weights. TRL writes a batch again when several updates use it; repeats are left
    out.

    Args:
        paths: the tables, in order of their steps.
        store: takes the rows.
        tally: counts rows.

    Returns:
        What a reader should know.
    """
    import pyarrow.parquet as pq

    notes: dict[str, None] = {}
    seen: set[int] = set()
    for path in paths:
        try:
            columns = pq.read_table(path).to_pydict()
        except (ValueError, OSError) as error:
            notes[f"{path} could not be read: {error}"] = None
            continue
        if not {"step", "prompt", "completion"} <= columns.keys():
            notes[f"{path} is no table of completions: its columns are {', '.join(columns)}"] = None
            continue
        count = len(columns["prompt"])
        tally.lines += count
        functions = [
            n for n in columns if n not in ("step", "prompt", "completion", "advantage") and _numeric(columns[n])
        ]
        if len(functions) != 1:
            notes[
                f"rewards are the plain sum of {', '.join(functions) or 'nothing'}: their weights are not in the table"
            ] = None
        prompts = [json.dumps(p, sort_keys=True, default=str) for p in columns["prompt"]]
        texts = [c if isinstance(c, str) else json.dumps(c, sort_keys=True, default=str) for c in columns["completion"]]
        start = 0
        for end in range(1, count + 1):
            if end < count and prompts[end] == prompts[start]:
                continue
            content = hash((prompts[start], *texts[start:end]))
            if content in seen:
                notes["batches that were logged again are counted once"] = None
            else:
                for i in range(start, end):
                    values = [float(columns[n][i]) for n in functions if columns[n][i] is not None]
                    reward = math.fsum(values) if values else None
                    row = Row((path.name, start), reward, step=int(columns["step"][i]), text=texts[i])
                    row.advantage = columns["advantage"][i] if "advantage" in columns else None
                    store.add(row)
            seen.add(content)
            start = end
    return list(notes)


def _numeric(values: list[Any]) -> bool:
    return all(v is None or isinstance(v, (int, float)) for v in values)


def _names(record: Any) -> dict[str, str]:
    """Which of the aliases this record uses."""
    if not isinstance(record, dict):
        raise TypeError("a rollout is a JSON object")
    keys = cast(Record, record).keys()

    def first(aliases: tuple[str, ...]) -> str:
        return next((name for name in aliases if name in keys), "")

    names = {
        "group": first(GROUP), "reward": first(REWARD), "rewards": first(_REWARD_LISTS), "outcome": first(OUTCOME),
        "step": first(STEP), "advantage": first(ADVANTAGE), "tokens": first(TOKENS), "text": first(TEXT),
        "truncated": first(TRUNCATED),
    }  # fmt: skip
    if not names["group"] or not (names["reward"] or names["rewards"]):
        raise KeyError("no group or no reward")
    return names


def _is_padding(record: Record) -> bool:
    """Verl V1 fills batches up with empty rows whose uid begins with "pad"."""
    return "gts" in record and not record.get("input") and str(record.get("uid", "")).startswith("pad")


def _fits(record: Any, names: dict[str, str]) -> bool:
    return names["group"] in record and (names["reward"] in record or names["rewards"] in record)


def _row(record: Record, names: dict[str, str]) -> Row:
    get = record.get
    group = get(names["group"])
    if names["group"] == "uid" and "gts" in record:
        # verl V1 appends session and output: "<group>_<session>_<output>"
        group = str(group).rsplit("_", 2)[0]
    elif names["group"] == "prompt_id" and "group" in record:
        group = (group, record["group"])  # ours: one prompt may be asked twice in a step
    elif isinstance(group, (list, dict)):
        group = json.dumps(group, sort_keys=True)
    truncated = get(names["truncated"])
    if truncated is None and "finish_reason" in record:
        truncated = record["finish_reason"] == "length"
    return Row(
        group,
        _number(get(names["reward"])),
        _number(get(names["outcome"])),
        get(names["step"]),
        _number(get(names["advantage"])),
        get(names["tokens"]),
        truncated,
        get(names["text"]),
    )


def _number(x: Any) -> float | None:
    if x is None:
        return None
    if isinstance(x, list):
        raise TypeError("a number was expected")
    x = float(x)
    return x if x == x else None


def _add_group(record: Record, names: dict[str, str], store: GroupStore) -> None:
    rewards = cast(list[Any], record[names["rewards"]])
    outcomes = record.get(names["outcome"])
    group, step = record[names["group"]], record.get(names["step"])
    if not rewards:
        store.add_empty(group, step)
    for i, reward in enumerate(rewards):
        outcome = outcomes[i] if isinstance(outcomes, list) else None
        store.add(Row(group, _number(reward), _number(outcome), step))
