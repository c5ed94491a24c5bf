"""The page: words and tables as HTML, numbers as JSON, scripts and styles inside; nothing is fetched."""

import base64
import gzip
import hashlib
import json
from collections import Counter
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

from qae.records import ReadTally, atomic_write, to_json
from qae.report.runs import Arm, Run, arms_of, is_number, read_run, rounded, series_of
from qae.report.samples import pick_samples
from qae.report.whatif import what_if_html
from qae.report.words import VERDICTS, duration, last_part, number, pass_at_1, sentences, table

POINTS_IN_ALL = 6000
SAMPLES_IN_ALL = 240

PARTS = {
    "learning": "Learning",
    "entropy": "Entropy",
    "advantages": "Groups and advantages",
    "update": "The update",
    "length": "Lengths",
    "time": "Time",
}

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


def write_report(run_dirs: list[Path], out: Path, *, title: str | None = None) -> Path:
    """Write one self-contained HTML page about one run or several; it opens offline.

    Runs that differ in their seed only are drawn as one line with a band.

    Args:
        run_dirs: run directories, in the order in which they are to appear.
        out: the page to write.
        title: heading; default the runs' names.

    Returns:
        The page written.

    Raises:
        ValueError: no run directory was given.
        FileNotFoundError: a directory holds no metrics.jsonl.

    Example:
        >>> import tempfile
        >>> from qae.records import RunWriter
        >>> run = Path(tempfile.mkdtemp()) / "first"
        >>> RunWriter(run).append_metrics({"step": 1, "entropy": 0.5})
        >>> write_report([run], run / "report.html").stat().st_size < 6_000_000
        True
    """
    if not run_dirs:
        raise ValueError("no run directory was given; name at least one, such as runs/tiny-20260101-120000")
    arms = arms_of([read_run(Path(path)) for path in run_dirs])
    runs = [run for arm in arms for run in arm.runs]
    title = title or ", ".join(dict.fromkeys(run.name for run in runs))
    per_run = max(1, SAMPLES_IN_ALL // len(runs))
    tally = ReadTally()
    samples: list[dict[str, Any]] = []
    for i, run in enumerate(runs):
        picked = pick_samples(run.path, steps=min(8, per_run), per_step=max(1, per_run // 8), tally=tally)
        samples += [{"run": i, **sample} for sample in picked]
    data = {"runs": _run_data(arms, POINTS_IN_ALL // len(runs)), "arms": _arm_data(arms), "samples": samples}
    atomic_write(out, _page(title, arms, data, samples, tally).encode("utf-8", "replace"))
    return out


def _run_data(arms: list[Arm], points: int) -> list[dict[str, Any]]:
    return [
        {
            "label": arm.label + (f", seed {run.seed}" if len(arm.runs) > 1 else ""),
            "seed": run.seed,
            "series": series_of(run, points=max(50, min(600, points))),
            "evals": [{k: rounded(v) for k, v in line.items() if is_number(v)} for line in run.evals],
            "verdict": {"kind": run.verdict.kind, "onset": run.verdict.onset_step},
        }
        for arm in arms
        for run in arm.runs
    ]


def _arm_data(arms: list[Arm]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    start = 0
    for arm in arms:
        found.append({"label": arm.label, "runs": list(range(start, start + len(arm.runs)))})
        start += len(arm.runs)
    return found


def _page(title: str, arms: list[Arm], data: dict[str, Any], samples: list[Any], tally: ReadTally) -> str:
    script = "\n".join(_asset(name) for name in ("charts.js", "samples.js", "page.js"))
    packed, plotly_hash = _plotly()
    scripts = " ".join(f"'{digest}'" for digest in (_sha256(_THEME), _sha256(script), plotly_hash))
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    whatif = what_if_html(arms)
    links = {"happened": "What happened", **PARTS}
    links |= ({"whatif": "Other baselines"} if whatif else {}) | ({"completions": "Completions"} if samples else {})
    links["notes"] = "Notes"
    nav = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name in links.items())
    charts = "".join(_part(key, name, arms) for key, name in PARTS.items())
    # "</" and "<!--" must not end the script element early, whatever a completion holds
    payload = to_json(data).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="qae">
<title>{escape(title)} - qae report</title>
<link rel="icon" href="data:,">
<script>{_THEME}</script>
<style>{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#happened">Skip to the content</a>
<div class="bar"><div class="bar-inner"><span class="mark">qae</span><nav aria-label="Sections">{nav}</nav>
<button id="keys" class="desk" type="button" title="Keys (?)">Keys</button>
<button id="print" class="desk" type="button" title="Print (p)">Print</button>
<button id="theme" type="button" title="Light or dark (t)">Light / dark</button></div></div>
<main>
<header class="head"><h1>{escape(title)}</h1><p class="muted">{escape(_subtitle(arms))}</p></header>
<noscript><p class="card">The charts need JavaScript; the words and the table below do not.</p></noscript>
<section id="happened" tabindex="-1"><h2>What happened</h2>{_overview(arms)}</section>
{charts}
{whatif}
{_samples_section(samples)}
<section id="notes" tabindex="-1"><h2>Notes</h2>{_notes(arms, tally)}</section>
</main>
{_HELP}
<script type="application/json" id="data">{payload}</script>
<script type="application/octet-stream" id="plotly">{packed}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(key: str, name: str, arms: list[Arm]) -> str:
    body = f'<div class="grid" id="charts-{key}"></div>'
    return f'<section id="{key}" tabindex="-1"><h2>{escape(name)}</h2>{_legend(arms)}{body}</section>'


def _legend(arms: list[Arm]) -> str:
    if len(arms) == 1:
        return ""
    items = "".join(f"<span>{_swatch(i)}{escape(arm.label)}</span>" for i, arm in enumerate(arms))
    return f'<div class="legend">{items}</div>'


def _swatch(index: int) -> str:
    return f'<i class="swatch" data-arm="{index}"></i>'


def _subtitle(arms: list[Arm]) -> str:
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


def _overview(arms: list[Arm]) -> str:
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


def _samples_section(samples: list[Any]) -> str:
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


def _notes(arms: list[Arm], tally: ReadTally) -> str:
    runs = [run for arm in arms for run in arm.runs]
    terms = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in TERMS.items())
    missing = sorted({text for run in runs for text in run.verdict.missing})
    said: list[str] = []
    if missing:
        said.append(f"Not recorded, so not used by the entropy verdict: {', '.join(missing)}.")
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


# before the first paint, so that a dark page does not flash white
_THEME = (
    "let kept=null;try{kept=localStorage.getItem('qae-theme')}catch{}"
    "document.documentElement.dataset.theme=kept||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light')"
)
_HELP = """<dialog id="help" aria-label="Keys"><h3>Keys</h3><dl class="terms">
<dt><kbd>[</kbd> <kbd>]</kbd></dt><dd>section before, section after</dd>
<dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next, previous completion (arrows in the list)</dd>
<dt><kbd>/</kbd></dt><dd>search completions</dd><dt><kbd>t</kbd></dt><dd>light or dark</dd>
<dt><kbd>p</kbd></dt><dd>print</dd><dt><kbd>?</kbd></dt><dd>this list</dd></dl>
<form method="dialog"><button>Close</button></form></dialog>"""


@cache
def _asset(name: str) -> str:
    return (resources.files("qae.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """The plotly bundle, gzipped in base64 (a third of its size), and the hash that lets it run."""
    code = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    packed = base64.b64encode(gzip.compress(code, 9, mtime=0)).decode("ascii")
    return packed, "sha256-" + base64.b64encode(hashlib.sha256(code).digest()).decode("ascii")


def _sha256(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
