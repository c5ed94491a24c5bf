"""`qae eval`: draw, grade, summarise, write records. Interrupted at any moment, it goes on where it stopped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import qae
from qae.evaluation.benchmarks import ProblemSet
from qae.evaluation.samples import EvalSettings, Request, SampleFile, Sampler
from qae.evaluation.summary import Scored, Summary, summarise, table_markdown
from qae.records import Regime, Rollout, RunWriter, atomic_write, to_json
from qae.rewards import Grader, make_grader
from qae.rewards.golds import none_usable
from qae.rewards.weighted import verifier_of

Watch = Callable[[str, int, int], None]


def evaluate(
    sets: Sequence[ProblemSet],
    sampler: Sampler,
    settings: EvalSettings,
    out: Path,
    *,
    step: int = 0,
    watch: Watch | None = None,
) -> list[Summary]:
    """Evaluate a model on sets of problems.

    Each set gets a directory of its own under `out`, which `qae report` reads: `samples.jsonl` (appended as
    samples are finished), `rollouts/` with every completion and its verdict, `metrics.jsonl` with one
    evaluation, `summary.json` for comparisons. `out/table.md` holds the table. Called again with the same
    arguments, it draws only what is missing; with others it refuses.

    Args:
        sets: the problems.
        sampler: the model.
        settings: how to draw and grade.
        out: directory of the evaluation.
        step: training step of the model, for the records.
        watch: told of (set, samples finished, samples in all).

    Returns:
        One summary for each set.

    Raises:
        ValueError: `out` holds an evaluation made differently, or two sets have the same name.
    """
    names = [problems.name for problems in sets]
    if len(set(names)) < len(names):
        raise ValueError(f"sets of problems need names of their own, got {', '.join(names)}; rename a file")
    grader = make_grader(settings.grader)
    try:
        summaries = [
            _evaluate_one(problems, sampler, settings, out / problems.name, grader, step, watch or _silence)
            for problems in sets
        ]
    finally:
        grader.close()
    atomic_write(out / "table.md", table_markdown(summaries))
    return summaries


def _evaluate_one(
    problems: ProblemSet,
    sampler: Sampler,
    settings: EvalSettings,
    directory: Path,
    grader: Grader,
    step: int,
    watch: Watch,
) -> Summary:
    golds = [item.answer for item in problems.items]
    if none_usable(grader, golds):
        raise ValueError(
            f"{problems.name}: the grader {settings.grader} can use none of the {len(golds)} gold answers (first: "
            f"{golds[0]!r}); choose another grader or another column of the answer"
        )
    suffix = problems.suffix if settings.suffix is None else settings.suffix
    drawn = {k: v for k, v in asdict(settings).items() if k not in ("samples", "grader", "suffix")}
    about = {"model": sampler.name, **sampler.about}
    file = SampleFile(directory, {**about, "set": problems.name, "suffix": suffix, **drawn})
    samples = file.read()
    wanted = [Request(item, i) for item in problems.items for i in range(settings.samples)]
    missing = [request for request in wanted if (request.item.id, request.sample) not in samples]
    watch(problems.name, len(wanted) - len(missing), len(wanted))
    finished = len(wanted) - len(missing)
    for some in sampler.sample(missing, settings, suffix):
        file.append(some)
        samples.update(((sample.problem, sample.sample), sample) for sample in some)
        finished += len(some)
        watch(problems.name, finished, len(wanted))
    rows = [(request, samples[request.item.id, request.sample]) for request in wanted]
    grades = grader.grade(
        [(sample.completion, request.item.answer) for request, sample in rows],
        prompts=[request.item.prompt for request, _ in rows],
        columns=_columns([problems.columns.get(request.item.id, {}) for request, _ in rows]),
    )
    # a reward function says how good a completion is, not what its answer is
    vote: Callable[[str], str | None] | None = getattr(verifier_of(grader), "vote", None)
    scored = [
        Scored(request.item, sample, grade, vote(sample.completion) if vote else None)
        for (request, sample), grade in zip(rows, grades, strict=True)
    ]
    summary = summarise(
        problems.name, sampler.name, scored, settings.samples, notes=problems.notes, majority=vote is not None
    )
    _write(directory, summary, scored, settings, step)
    return summary


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _write(directory: Path, summary: Summary, scored: Sequence[Scored], settings: EvalSettings, step: int) -> None:
    writer = RunWriter(directory)
    about: dict[str, Any] = {"name": f"eval {summary.name}", "policy": {"path": summary.model}, "qae": qae.__version__}
    writer.write_config(to_json(about | {"eval": asdict(settings)}) + "\n")
    # an evaluation that is run again replaces its line
    (directory / "metrics.jsonl").unlink(missing_ok=True)
    writer.append_metrics({"step": step, **summary.metrics()})
    rates = {problem.id: problem.correct / problem.samples for problem in summary.problems if problem.samples}
    order = {item_id: i for i, item_id in enumerate(dict.fromkeys(row.item.id for row in scored))}
    writer.write_rollouts(step, (_rollout(row, step, order[row.item.id], rates.get(row.item.id)) for row in scored))
    atomic_write(directory / "summary.json", to_json(summary.to_dict()) + "\n")


def _rollout(row: Scored, step: int, group: int, rate: float | None) -> Rollout:
    prompt = row.item.prompt
    text = prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    regime: Regime = "unscored" if rate is None else "flat" if rate in (0, 1) else "hard" if rate <= 0.6 else "easy"
    return Rollout(
        step=step,
        prompt_id=row.item.id,
        group=group,
        prompt=text,
        completion=row.sample.completion,
        tokens=row.sample.tokens or 0,
        reward=row.grade.reward,
        outcome=row.grade.outcome,
        advantage=0.0,
        regime=regime,
        truncated=row.sample.truncated,
        entropy_mean_nats=row.sample.entropy_mean_nats,
        level=row.item.level or None,
    )


def _silence(name: str, done: int, total: int) -> None:
    pass
