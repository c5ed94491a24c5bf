"""The page: words and tables as HTML, numbers as JSON, scripts and styles inside; nothing is fetched."""

import base64
import gzip
import hashlib
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from qae.records import ReadTally, atomic_write, to_json
from qae.report.blocks import legend_html, notes_html, overview_html, subtitle, viewer_html
from qae.report.heldout import with_pass_at_k
from qae.report.runs import Arm, Run, arms_of, is_number, read_run, rounded, series_of
from qae.report.samples import samples_of
from qae.report.tokens import token_series, tokens_html
from qae.report.whatif import read_audit, what_if_html

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
# in the bar at the top, where all names must fit beside the buttons
SHORT = {"advantages": "Groups", "update": "Update", "whatif": "Baselines"}


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
        FileNotFoundError: a directory is no run's.

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
    atomic_write(out, render_report(run_dirs, title=title).encode("utf-8", "replace"))
    return out


def render_report(run_dirs: list[Path], *, title: str | None = None, live: str | None = None) -> str:
    """The page as text.

    Args:
        run_dirs: as for `write_report`.
        title: as for `write_report`.
        live: state of the runs shown, for a page that reloads itself when `serve_report` tells of another.

    Returns:
        HTML.
    """
    arms = arms_of([read_run(Path(path)) for path in run_dirs])
    runs = [run for arm in arms for run in arm.runs]
    title = title or ", ".join(dict.fromkeys(run.name for run in runs))
    tally = ReadTally()
    samples = samples_of([run.path for run in runs], count=SAMPLES_IN_ALL, tally=tally)
    data: dict[str, Any] = {"runs": _run_data(arms, POINTS_IN_ALL // len(runs)), "arms": _arm_data(arms)}
    return _page(title, arms, data | {"samples": samples, "live": live}, tally)


def _run_data(arms: list[Arm], points: int) -> list[dict[str, Any]]:
    return [
        {
            "label": arm.label + (f", seed {run.seed}" if len(arm.runs) > 1 else ""),
            "seed": run.seed,
            "series": series_of(run, points=max(50, min(600, points))),
            "tokens": token_series(read_audit(run.path)),
            "evals": [{k: rounded(v) for k, v in line.items()} for line in _evals(run)],
            "verdict": {"kind": run.verdict.kind, "onset": run.verdict.onset_step},
        }
        for arm in arms
        for run in arm.runs
    ]


def _evals(run: Run) -> list[dict[str, float]]:
    """Numbers of the evaluations; pass@k with intervals for the first and the last, which are drawn."""
    last = len(run.evals) - 1
    plain = [{k: float(v) for k, v in line.items() if is_number(v)} for line in run.evals]
    return [with_pass_at_k(run.evals[i]) if i in (0, last) else line for i, line in enumerate(plain)]


def _arm_data(arms: list[Arm]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    start = 0
    for arm in arms:
        found.append({"label": arm.label, "runs": list(range(start, start + len(arm.runs)))})
        start += len(arm.runs)
    return found


def _page(title: str, arms: list[Arm], data: dict[str, Any], tally: ReadTally) -> str:
    samples, live = data["samples"], data["live"] is not None
    script = "\n".join(_asset(name) for name in ("charts.js", "samples.js", "page.js", *(["live.js"] if live else [])))
    packed, plotly_hash = _plotly()
    scripts = " ".join(f"'{digest}'" for digest in (_sha256(_THEME), _sha256(script), plotly_hash))
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    policy += "; connect-src 'self'" if live else ""
    whatif = what_if_html(arms)
    parts = PARTS | ({"tokens": "Tokens"} if any(run["tokens"] for run in data["runs"]) else {})
    links = {"happened": "What happened", **parts}
    links |= ({"whatif": "Other baselines"} if whatif else {}) | ({"completions": "Completions"} if samples else {})
    links["notes"] = "Notes"
    nav = "".join(f'<a href="#{key}">{escape(SHORT.get(key, name))}</a>' for key, name in links.items())
    below = {"tokens": tokens_html(arms)}
    charts = "".join(_part(key, name, arms, below.get(key, "")) for key, name in parts.items())
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
<header class="head"><h1>{escape(title)}</h1><p class="muted">{escape(subtitle(arms))}</p></header>
<noscript><p class="card">The charts need JavaScript; the words and the table below do not.</p></noscript>
<section id="happened" tabindex="-1"><h2>What happened</h2>{overview_html(arms)}</section>
{charts}
{whatif}
{viewer_html(samples)}
<section id="notes" tabindex="-1"><h2>Notes</h2>{notes_html(arms, tally)}</section>
</main>
{_HELP}
<script type="application/json" id="data">{payload}</script>
<script type="application/octet-stream" id="plotly">{packed}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(key: str, name: str, arms: list[Arm], below: str) -> str:
    body = f'<div class="grid" id="charts-{key}"></div>{below}'
    return f'<section id="{key}" tabindex="-1"><h2>{escape(name)}</h2>{legend_html(arms)}{body}</section>'


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
