"""The blocks of the page that are words: overview, badges, the viewer's frame, notes. Everything is escaped."""

import json
from collections import Counter
from datetime import datetime
from html import escape
from statistics import fmean
from typing import Any

from qae.records import ReadTally, change_text
from qae.report.runs import Arm, Run
from qae.report.words import VERDICTS, duration, last_part, number, pass_at_1, sentences, table

TERMS = {
    "baseline": "What a completion's reward is compared with: the group's mean (GRPO), or its K-quantile (QAE).",
    "hard, easy, flat": "A group is hard while its pass rate is at most 1 - K: only its successes count. Above that "
    "it is easy: only its failures count. In a flat group all rewards are equal, and nothing counts.",
    "advantage 0": "The completion has no effect on the update, and an exact update can leave it out.",
    "entropy": "How undecided the policy is about the next token, in nats, averaged over tokens. Near 0 it repeats "
    "itself; a level that keeps climbing usually ends in noise.",
    "pass@k": "Chance that at least one of k samples is right; pass@1 is the plain pass rate.",
    "interval": "95%, by resampling problems. It does not cover the luck of the training seed.",
    "clipped tokens": "Tokens whose probability had moved so far since sampling that the loss stopped pushing.",
}


def legend_html(arms: list[Arm]) -> str:
    """Colours of the arms; nothing for a single one."""
    if len(arms) == 1:
        return ""
    items = "".join(f"<span>{_swatch(i)}{escape(arm.label)}</span>" for i, arm in enumerate(arms))
    return f'<div class="legend">{items}</div>'


def _swatch(index: int) -> str:
    return f'<i class="swatch" data-arm="{index}"></i>'


def subtitle(arms: list[Arm]) -> str:
    """What the page is about, in a line."""
    runs = [run for arm in arms for run in arm.runs]
    about = runs[0].setting("about") or {}
    made = [f"{name} {about[name]}" for name in ("qae", "torch") if about.get(name)]
    parts = [
        f"{len(runs)} run" + ("s" if len(runs) > 1 else ""),
        str(about.get("device") or ""),
        *made,
        f"written {datetime.now():%Y-%m-%d %H:%M}",
    ]
    return " · ".join(part for part in parts if part)


def overview_html(arms: list[Arm]) -> str:
    """What happened: tiles for a single run, a table and cards for several."""
    if len(arms) == 1 and len(arms[0].runs) == 1:
        run = arms[0].runs[0]
        return f'<div class="card">{_tiles(run)}{_said(run)}</div>'
    header, rows = table(arms)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr><td>{_swatch(i)} {escape(row[0])}</td>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for i, row in enumerate(rows)
    )
    note = '<p class="muted small">Over several seeds: mean [lowest .. highest].</p>'
    shown = f'<div class="card"><div class="scroll"><table><tr>{head}</tr>{body}</table></div>{note}</div>'
    for i, arm in enumerate(arms):
        badges = _badges(arm)
        said = _said(arm.runs[0]) if len(arm.runs) == 1 else _seeds(arm)
        head = f'<div class="run-head">{_swatch(i)}<h3>{escape(arm.label)}</h3>{badges}</div>'
        shown += f'<div class="card">{head}{said}</div>'
    return shown


def _seeds(arm: Arm) -> str:
    return "".join(
        f"<details><summary>seed {escape(str(run.seed))}: {escape(run.path.name)}</summary>{_said(run)}</details>"
        for run in arm.runs
    )


def _badges(arm: Arm) -> str:
    kinds = Counter(run.verdict.kind for run in arm.runs)
    counts = {kind: f"{count} " if len(arm.runs) > 1 else "" for kind, count in kinds.items()}
    return "".join(f'<span class="badge {kind}">entropy: {counts[kind]}{VERDICTS[kind]}</span>' for kind in kinds)


def _said(run: Run) -> str:
    return '<ul class="said">' + "".join(f"<li>{escape(text)}</li>" for text in sentences(run)) + "</ul>"


def _tiles(run: Run) -> str:
    before, after = pass_at_1(run)
    tiles: list[tuple[str, str, str]] = []
    if before and after:
        note = f"from {before.value:.1%}" if len(run.evals) > 1 else "a single evaluation"
        if after.low is not None and after.high is not None:
            note += f"; 95%: {100 * after.low:.1f} to {100 * after.high:.1f}"
        tiles.append(("held-out pass@1", f"{after.value:.1%}", note))
    entropies = run.values("entropy")
    if entropies:
        tiles.append(("entropy, nats a token", number(last_part(entropies) or 0.0), f"from {number(entropies[0])}"))
    tiles.append(("entropy verdict", VERDICTS[run.verdict.kind], _onset(run)))
    zero = run.values("advantage/zero_frac_mixed")
    if zero:
        tiles.append(("advantage 0", f"{fmean(zero):.0%}", "of completions in mixed groups"))
    name, k = run.setting("algorithm.advantage.name"), run.setting("algorithm.advantage.k")
    if name:
        tiles.append(
            (
                "baseline",
                f"K = {k}" if name == "quantile" else str(name),
                "quantile (QAE)" if name == "quantile" else "",
            )
        )
    seconds = run.values("seconds")
    if seconds:
        tiles.append(("time", duration(seconds[-1]), f"{len(run.train)} steps"))
    cells = "".join(
        f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
        for label, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _onset(run: Run) -> str:
    return "" if run.verdict.onset_step is None else f"from step {run.verdict.onset_step}"


def viewer_html(samples: list[Any]) -> str:
    """The frame that samples.js fills."""
    if not samples:
        return ""
    several = len({sample["run"] for sample in samples}) > 1
    names = [*(["run"] if several else []), "step", "prompt", "regime", "sign", "outcome"]
    labels = {"sign": "sign of the advantage"}
    selects = "".join(f'<label>{labels.get(n, n)}<select id="f-{n}"></select></label>' for n in names)
    return f"""<section id="completions" tabindex="-1"><h2>Completions</h2><div class="card">
<div class="filters">{selects}<label>text<input id="f-search" type="search" placeholder="search ( / )"></label>
<span class="muted small" id="sample-count" aria-live="polite"></span></div>
<div class="viewer"><div class="list" id="sample-list" role="listbox" aria-label="Completions"></div>
<div class="detail" id="sample-detail" tabindex="0" aria-label="The chosen completion"></div></div>
<p class="muted small">A few completions of a few steps, spread over regimes and signs. Where tokens were recorded, the
colour is each token's entropy.</p></div></section>"""


def notes_html(arms: list[Arm], tally: ReadTally) -> str:
    """Terms, what was not recorded, configs."""
    runs = [run for arm in arms for run in arm.runs]
    terms = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in TERMS.items())
    missing = sorted({text for run in runs for text in run.verdict.missing})
    said: list[str] = []
    if missing:
        said.append(f"Not recorded, so not used by the entropy verdict: {', '.join(missing)}.")
    said += [
        f"{run.path}: {change_text(change)}; the figures of this run mix the two."
        for run in runs
        for change in run.setting("about.changes") or []
    ]
    broken = tally.broken
    if broken:
        said.append(f"{broken} broken lines among the completions were skipped ({', '.join(tally.where)}).")
    configs = "".join(
        f"<details><summary>config of {escape(str(run.path))}</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2, default=str, ensure_ascii=False))}</pre></details>"
        for run in runs
    )
    told = "".join(f"<p>{escape(text)}</p>" for text in said)
    return f'<div class="card"><dl class="terms">{terms}</dl>{told}{configs}</div>'
