"""What happened in a run, in plain words: the sentences and the table that page and Markdown share."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from qae.evaluation.estimators import PairedDifference
from qae.report.heldout import against_first, change_of
from qae.report.runs import Arm, Run, is_number

VERDICTS = {
    "healthy": "healthy",
    "explosion": "explosion",
    "collapse": "collapse",
    "oscillation": "oscillation",
    "unknown": "too little data",
}


@dataclass(frozen=True)
class Rate:
    """A rate with its interval, None where it was not measured."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """As 25.1% (20.3 to 31.0)."""
        if self.low is None or self.high is None:
            return f"{self.value:.1%}"
        return f"{self.value:.1%} ({100 * self.low:.1f} to {100 * self.high:.1f})"


def sentences(run: Run) -> list[str]:
    """What happened in one run, one fact a sentence, nothing that was not recorded."""
    told = [_what_ran(run), _pass_rate(run), _entropy(run), _advantages(run), _regimes(run), *_troubles(run)]
    return [text for text in told if text]


def pass_at_1(run: Run) -> tuple[Rate | None, Rate | None]:
    """Held-out pass@1 at the first and at the last evaluation."""
    rates = [_rate(line) for line in run.evals if is_number(line.get("eval/pass@1"))]
    return (rates[0], rates[-1]) if rates else (None, None)


def table(arms: list[Arm]) -> tuple[list[str], list[list[str]]]:
    """One row an arm: header and cells. Over several seeds, means with the range behind them."""
    header = [
        "run", "seeds", "steps", "pass@1 before", "pass@1 after", "change", "entropy first / last (nats)",
        "entropy", "zero advantage", "tokens in update", "time",
    ]  # fmt: skip
    rows = [_row(arm) for arm in arms]
    against = against_first(arms)
    if any(against):
        header.insert(6, f"after, against {arms[0].label}")
        for row, paired in zip(rows, against, strict=True):
            row.insert(6, points(paired) if paired else "-")
    return header, rows


def points(paired: PairedDifference) -> str:
    """A paired difference as +3.1 points (1.0 to 5.2)."""
    return f"{100 * paired.mean:+.1f} points ({100 * paired.low:.1f} to {100 * paired.high:.1f})"


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def number(x: float) -> str:
    """Three significant digits without exponents where a person would not use one."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def last_part(values: list[float]) -> float | None:
    """Mean of the last tenth: what the run settled at."""
    return fmean(values[-max(1, len(values) // 10) :]) if values else None


def _what_ran(run: Run) -> str:
    steps = len(run.train)
    if not steps:
        return "No step has been recorded yet."
    prompts, size = run.setting("rollout.prompts"), run.setting("rollout.group_size")
    batch = f" of {prompts} prompts x {size} completions" if prompts and size else ""
    name, k = run.setting("algorithm.advantage.name"), run.setting("algorithm.advantage.k")
    baselines = {
        "quantile": f"the group's {k}-quantile (QAE)",
        "mean": "the group's mean",
        "leave_one_out": "the mean of the other completions",
    }
    baseline = f" The baseline was {baselines.get(name, name)}." if name else ""
    planned = run.setting("steps")
    unfinished = f" of {planned} planned" if is_number(planned) and run.train[-1]["step"] < planned else ""
    seconds = run.train[-1].get("seconds")
    took = f", {duration(seconds)}" if is_number(seconds) else ""
    return f"{steps} steps{unfinished}{batch}{took}.{baseline}"


def _pass_rate(run: Run) -> str:
    before, after = pass_at_1(run)
    if before is None or after is None:
        return "No held-out evaluation was recorded, so nothing can be said about problems outside training."
    problems, samples = run.evals[-1].get("eval/problems"), run.evals[-1].get("eval/samples")
    on = f" on {problems} held-out problems x {samples} samples" if problems and samples else ""
    if len(run.evals) == 1:
        return f"pass@1{on}: {before} (a single evaluation)."
    paired = change_of(run)
    if paired is None:
        return f"pass@1{on} went from {before} to {after}: {_judge(before, after)}."
    verdict = "clearly up" if paired.low > 0 else "clearly down" if paired.high < 0 else "no clear change"
    return (
        f"pass@1{on} went from {before} to {after}, {verdict}: {points(paired)} paired by problem, "
        f"better on {paired.won} problems and worse on {paired.lost}."
    )


def _judge(before: Rate, after: Rate) -> str:
    up = after.value > before.value
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return "up" if up else "not up"
    if up:
        return "clearly up" if after.low > before.high else "up, though the intervals overlap"
    return "clearly down" if after.high < before.low else "not up: the intervals overlap"


def _entropy(run: Run) -> str:
    verdict = run.verdict
    said = verdict.summary
    if verdict.alarm_step is not None:
        said += f" By step {verdict.alarm_step} the history was enough to say so."
    moved = [e for e in verdict.evidence if e.moved]
    if not moved or verdict.kind == "healthy":
        return said
    told = "; ".join(f"{e.label} {number(e.before)} to {number(e.after)}" for e in moved[:5])
    return f"{said} Before and after the onset: {told}."


def _advantages(run: Run) -> str:
    zero, kept = run.values("advantage/zero_frac_mixed"), run.values("tokens/kept_frac")
    told: list[str] = []
    if zero:
        told.append(f"{fmean(zero):.0%} of the completions in mixed groups had advantage 0")
    if kept:
        told.append(f"{fmean(kept):.0%} of the tokens went through the update")
    return ", and ".join(told) + "." if told else ""


def _regimes(run: Run) -> str:
    parts = [(name, last_part(run.values(f"regime/{name}_frac"))) for name in ("hard", "easy", "flat")]
    told = [f"{share:.0%} {name}" for name, share in parts if share is not None]
    return f"At the end the groups were {', '.join(told)}." if told else ""


def _troubles(run: Run) -> list[str]:
    found: list[str] = []
    skipped = sum(run.values("updates/skipped_nonfinite"))
    if skipped:
        found.append(f"{skipped:.0f} updates were skipped because their gradient was not finite.")
    unscored = sum(run.values("groups/unscored_rows"))
    if unscored:
        found.append(f"{unscored:.0f} completions could not be scored.")
    truncated = last_part(run.values("completions/clipped_ratio"))
    if truncated is not None and truncated > 0.1:
        found.append(f"{truncated:.0%} of the completions ended at the token limit.")
    flat = last_part(run.values("frac_reward_zero_std"))
    if flat is not None and flat > 0.7:
        found.append(f"{flat:.0%} of the sampled groups were all right or all wrong: little is left to learn from.")
    if run.tally.broken:
        found.append(f"{run.tally.broken} broken lines in the records were skipped ({', '.join(run.tally.where)}).")
    return found


def _row(arm: Arm) -> list[str]:
    runs = arm.runs
    pairs = [pass_at_1(run) for run in runs]
    before, after = [p[0] for p in pairs], [p[1] for p in pairs]
    changes = [b.value - a.value for a, b in pairs if a and b]
    paired = change_of(runs[0]) if len(runs) == 1 else None
    entropies = [run.values("entropy") for run in runs]
    levels = [[e[0] for e in entropies if e], [x for e in entropies if (x := last_part(e)) is not None]]
    verdicts = [VERDICTS[run.verdict.kind] for run in runs]
    counted = [f"{verdicts.count(v)} {v}" if len(runs) > 1 else v for v in dict.fromkeys(verdicts)]
    return [
        arm.label,
        str(len(runs)),
        _spread([float(len(run.train)) for run in runs], lambda x: f"{x:.0f}"),
        _rates(before),
        _rates(after),
        points(paired) if paired else _spread(changes, lambda x: f"{100 * x:+.1f} points"),
        " / ".join(f"{fmean(e):.2g}" if e else "-" for e in levels),
        ", ".join(counted),
        _spread([fmean(v) for run in runs if (v := run.values("advantage/zero_frac_mixed"))], lambda x: f"{x:.0%}"),
        _spread([fmean(v) for run in runs if (v := run.values("tokens/kept_frac"))], lambda x: f"{x:.0%}"),
        duration(fmean(ends)) if (ends := [v[-1] for run in runs if (v := run.values("seconds"))]) else "-",
    ]


def _rates(rates: list[Rate | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    if len(known) == 1:
        return str(known[0])
    return _spread([rate.value for rate in known], lambda x: f"{x:.1%}")


def _spread(values: list[float], show: Callable[[float], str]) -> str:
    if not values:
        return "-"
    low, high = show(min(values)), show(max(values))
    return show(fmean(values)) if low == high else f"{show(fmean(values))} [{low} .. {high}]"


def _rate(line: dict[str, Any]) -> Rate:
    low, high = line.get("eval/pass@1_low"), line.get("eval/pass@1_high")
    return Rate(float(line["eval/pass@1"]), low if is_number(low) else None, high if is_number(high) else None)
