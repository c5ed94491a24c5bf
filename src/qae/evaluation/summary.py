"""From graded samples to the numbers of a table, and the comparison of two evaluations."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qae.evaluation.estimators import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    maj_at_k,
    paired_difference,
    pass_at_k,
)
from qae.evaluation.samples import Sample
from qae.rewards import Grade
from qae.tasks.task import Item

SCHEMA = 1


@dataclass(frozen=True)
class Scored:
    """A sample with its verdict.

    Attributes:
        item: the problem.
        sample: the completion.
        grade: the verdict.
        vote: the answer in one spelling, None if there is none.
    """

    item: Item
    sample: Sample
    grade: Grade
    vote: str | None


@dataclass(frozen=True)
class ProblemResult:
    """What came of one problem.

    Attributes:
        id: of the problem.
        samples: completions that were scored.
        correct: how many of them are correct.
        level: difficulty label, or empty.
    """

    id: str
    samples: int
    correct: int
    level: str = ""


@dataclass(frozen=True)
class Summary:
    """An evaluation of one model on one set.

    Attributes:
        name: of the set.
        model: its name.
        samples: completions asked for per problem.
        problems: results of each problem that could be scored.
        unscored: problems left out because nothing of them could be scored (unusable gold answers, or a reward
            function that gave no reward).
        pass_at: k -> pass@k, averaged over problems, with its 95% interval; k = 1 is avg@n.
        maj_at: k -> maj@k likewise.
        truncated_frac: share of completions that ran into the token limit.
        unparseable_frac: share without a readable answer.
        timeout_frac: share whose grading ran out of time.
        mean_tokens: mean length of a completion; None if the server did not say.
        entropy_nats: mean entropy a token; None from a server.
        by_level: label -> pass@1.
        notes: what one should know about the data.
        unscored_samples: completions of the other problems that could not be scored and are left out.
    """

    name: str
    model: str
    samples: int
    problems: tuple[ProblemResult, ...]
    unscored: int
    pass_at: dict[int, Interval]
    maj_at: dict[int, Interval]
    truncated_frac: float
    unparseable_frac: float
    timeout_frac: float
    mean_tokens: float | None
    entropy_nats: float | None
    by_level: dict[str, float]
    notes: tuple[str, ...] = ()
    unscored_samples: int = 0

    def metrics(self) -> dict[str, Any]:
        """The line for metrics.jsonl, under the names that training uses."""
        line: dict[str, Any] = {
            "eval/problems": len(self.problems),
            "eval/samples": self.samples,
            "eval/problems_unscored": self.unscored,
            "eval/truncated_frac": self.truncated_frac,
            "eval/unparseable_frac": self.unparseable_frac,
            "eval/timeout_frac": self.timeout_frac,
            "eval/mean_length": self.mean_tokens,
            "eval/entropy": self.entropy_nats,
        }
        for kind, values in (("pass", self.pass_at), ("maj", self.maj_at)):
            for k, interval in values.items():
                line[f"eval/{kind}@{k}"] = interval.mean
                line[f"eval/{kind}@{k}_low"] = interval.low
                line[f"eval/{kind}@{k}_high"] = interval.high
        return line | {f"eval/pass@1/{level}": rate for level, rate in self.by_level.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; `read_summary` reads it back."""
        return {"schema": SCHEMA, **asdict(self)}


def summarise(
    name: str,
    model: str,
    scored: Sequence[Scored],
    samples: int,
    *,
    notes: Sequence[str] = (),
    majority: bool = True,
) -> Summary:
    """The numbers of an evaluation.

    A sample that could not be scored is left out; a problem without any is left out and counted. pass@k and
    maj@k are given for powers of two and for all samples, as far as every problem has that many.

    Args:
        name: of the set.
        model: its name.
        scored: all samples, those of a problem anywhere in the list.
        samples: completions asked for per problem.
        notes: about the data.
        majority: whether there are votes to count; without them there is no maj@k.

    Returns:
        The summary.
    """
    by_problem: dict[str, list[Scored]] = {}
    for row in scored:
        by_problem.setdefault(row.item.id, []).append(row)
    usable = {p: [row for row in rows if row.grade.outcome is not None] for p, rows in by_problem.items()}
    usable = {p: rows for p, rows in usable.items() if rows}
    results = tuple(
        ProblemResult(p, len(rows), sum(_right(row) for row in rows), rows[0].item.level) for p, rows in usable.items()
    )
    sizes = _sizes(min((result.samples for result in results), default=0))
    votes = {p: ([row.vote for row in rows], [_right(row) for row in rows]) for p, rows in usable.items()}
    lengths = [row.sample.tokens for row in scored if row.sample.tokens is not None]
    entropies = [
        (row.sample.entropy_mean_nats, row.sample.tokens)
        for row in scored
        if row.sample.entropy_mean_nats is not None and row.sample.tokens
    ]
    tokens = sum(count for _, count in entropies)
    levels = sorted({result.level for result in results if result.level})
    return Summary(
        name=name,
        model=model,
        samples=samples,
        problems=results,
        unscored=len(by_problem) - len(usable),
        pass_at={k: bootstrap_interval([pass_at_k(r.samples, r.correct, k) for r in results]) for k in sizes},
        maj_at={k: bootstrap_interval([maj_at_k(*votes[p], k) for p in usable]) for k in sizes if k > 1 and majority},
        truncated_frac=_share(row.sample.truncated for row in scored),
        unparseable_frac=_share(row.grade.reason == "unparseable" for row in scored),
        timeout_frac=_share(row.grade.reason == "timeout" for row in scored),
        mean_tokens=statistics.fmean(lengths) if lengths else None,
        entropy_nats=sum(entropy * count for entropy, count in entropies) / tokens if tokens else None,
        by_level={
            level: statistics.fmean(r.correct / r.samples for r in results if r.level == level) for level in levels
        },
        notes=tuple(notes),
        unscored_samples=sum(len(by_problem[p]) - len(rows) for p, rows in usable.items()),
    )


def read_summary(directory: Path) -> Summary:
    """The summary that an evaluation left in its directory.

    Args:
        directory: of one set: `<out>/<set>`.

    Returns:
        The summary.

    Raises:
        ValueError: there is none, or a newer version wrote it.
    """
    path = directory / "summary.json"
    if not path.is_file():
        raise ValueError(f"{directory} holds no finished evaluation (no summary.json)")
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.pop("schema", SCHEMA) > SCHEMA:
        raise ValueError(f"{path} was written by a newer qae; upgrade to read it")
    for name in ("pass_at", "maj_at"):
        record[name] = {int(k): Interval(**interval) for k, interval in record[name].items()}
    record["problems"] = tuple(ProblemResult(**problem) for problem in record["problems"])
    record["notes"] = tuple(record["notes"])
    return Summary(**record)


def compare(baseline: Summary, treatment: Summary) -> dict[int, PairedDifference]:
    """Paired differences of pass@k, for every k that both evaluations have.

    Args:
        baseline: one evaluation.
        treatment: another one, of the same problems.

    Returns:
        k -> treatment minus baseline, with interval and the problems won and lost.

    Raises:
        ValueError: the problems are not the same.
    """
    first, second = ({problem.id: problem for problem in s.problems} for s in (baseline, treatment))
    if first.keys() != second.keys():
        raise ValueError(
            f"{baseline.model} was evaluated on {len(first)} problems of {baseline.name}, {treatment.model} on "
            f"{len(second)} of {treatment.name}, and only {len(first.keys() & second.keys())} are the same: "
            "evaluate both on one set"
        )
    return {
        k: paired_difference(
            [pass_at_k(problem.samples, problem.correct, k) for problem in first.values()],
            [pass_at_k(second[p].samples, second[p].correct, k) for p in first],
        )
        for k in baseline.pass_at
        if k in treatment.pass_at
    }


def table_markdown(summaries: Sequence[Summary], *, k: int = 16) -> str:
    """A table like the paper's Table 2 (one row a model, pass@1 / pass@k a set), and one with everything else.

    Args:
        summaries: of any models and sets.
        k: of pass@k; the largest smaller one if there were fewer samples.

    Returns:
        Markdown.
    """
    sets = list(dict.fromkeys(s.name for s in summaries))
    models = list(dict.fromkeys(s.model for s in summaries))
    found = {(s.model, s.name): s for s in summaries}
    lines = ["| model | " + " | ".join(f"{name} p@1 / p@k" for name in sets) + " |", "|---" * (len(sets) + 1) + "|"]
    for model in models:
        cells = [_cell(found.get((model, name)), k) for name in sets]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| model | set | problems x samples | pass@1 [95%] | pass@k [95%] | maj@n [95%] | truncated | unparseable "
        "| tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for s in summaries:
        last = max((j for j in s.pass_at if j <= k), default=1)
        majority = s.maj_at.get(max(s.maj_at, default=0))
        lines.append(
            f"| {s.model} | {s.name} | {len(s.problems)} x {s.samples} | {_interval(s.pass_at.get(1))} | "
            f"{_interval(s.pass_at.get(last))} (k={last}) | {_interval(majority)} | {s.truncated_frac:.1%} | "
            f"{s.unparseable_frac:.1%} | {'-' if s.mean_tokens is None else f'{s.mean_tokens:,.0f}'} |"
        )
    lines += [f"\n{s.name}: {note}." for s in summaries for note in _notes(s)]
    return "\n".join(lines) + "\n"


def comparison_markdown(baseline: Summary, treatment: Summary) -> str:
    """The paired comparison as a table.

    Args:
        baseline: one evaluation.
        treatment: another one, of the same problems.

    Returns:
        Markdown.
    """
    lines = [
        f"{treatment.model} minus {baseline.model} on {baseline.name}, {len(baseline.problems)} problems:",
        "",
        "| | difference [95%] | problems won / lost / tied |",
        "|---|---|---|",
    ]
    for k, d in compare(baseline, treatment).items():
        interval = f"{100 * d.mean:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
        lines.append(f"| pass@{k} | {interval} | {d.won} / {d.lost} / {d.tied} |")
    return "\n".join(lines) + "\n"


def _notes(s: Summary) -> list[str]:
    notes = list(s.notes)
    if s.unscored:
        notes.append(
            f"{s.unscored} problems left out, nothing of them could be scored (a gold answer that cannot be used, or "
            "no reward from a function)"
        )
    if s.unscored_samples:
        notes.append(f"{s.unscored_samples} completions of the other problems could not be scored and are left out")
    return notes


def _sizes(most: int) -> list[int]:
    powers = [2**i for i in range(most.bit_length()) if 2**i <= most]
    return powers if not most or most in powers else [*powers, most]


def _right(row: Scored) -> bool:
    return row.grade.outcome is not None and row.grade.outcome >= 1.0


def _share(flags: Any) -> float:
    listed = list(flags)
    return sum(listed) / len(listed) if listed else 0.0


def _cell(s: Summary | None, k: int) -> str:
    if s is None or not s.pass_at:
        return "-"
    last = max(j for j in s.pass_at if j <= k)
    shown = f"{100 * s.pass_at[1].mean:.2f} / {100 * s.pass_at[last].mean:.2f}"
    return shown if last == k else f"{shown} (k={last})"


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval.mean:.2f} [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
