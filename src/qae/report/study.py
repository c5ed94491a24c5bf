"""A study's record as a page and as Markdown: what was asked before the runs beside what they answered."""

from collections import Counter
from html import escape
from importlib import resources

from qae.records import Record
from qae.report.figures import figures_of

POINTS = 100
SENTENCE = 32  # characters; a longer cell of a table may break its lines


def study_tables(record: Record) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) of each table: the questions, the differences, the arms."""
    study = record["study"]
    asked = [
        [a["ask"], _expected(a), a["answer"], _difference(a, a["metric"]) if "mean" in a else "-", a.get("words", "-")]
        for a in record["answers"]
    ]
    compared = [
        [
            c["block"], c["arm"], c["metric"].removeprefix("eval/"), f"{len(c['values'])}",
            _value(c["metric"], c["base"]), _difference(c, c["metric"]), _interval(c, "both", c["metric"]),
            *(_value(c["metric"], c[f"at_equal_{cost}"], sign="+", unit=False) for cost in ("tokens", "seconds")),
            _policies(c), f"{c['p']:.3g}", f"{c['p_holm']:.3g}", c["words"],
        ]
        for c in record["comparisons"]
    ]  # fmt: skip
    metrics = [m.removeprefix("eval/") for m in study["metrics"]]
    cells = [
        [
            c["block"], c["arm"], f"{c['finished']} of {c['planned']}",
            *(_value(m, c["metrics"][m]) for m in study["metrics"]),
            _entropy(c), f"{c['stable']} of {c['finished']}",
            *(_share(c["means"].get(f"advantage/{sign}_frac")) for sign in ("zero", "negative")),
            "-" if c["tokens"] is None else f"{c['tokens'] / 1000:,.0f}",
            "-" if c["seconds"] is None else f"{c['seconds']:,.0f}",
        ]
        for c in record["cells"]
        if c["finished"]
    ]  # fmt: skip
    tables = [
        ("Asked before the runs", ["question", "expected", "answer", "difference [95% over seeds]", "why"], asked),
        (
            f"Differences from {study['baseline']}",
            ["block", "arm", "metric", "seeds", study["baseline"], "difference [95% over seeds]",
             "[95% over seeds and problems]", "at equal update tokens", "at equal seconds", "by policy", "p",
             "p (Holm)", "verdict"],
            compared,
        ),
        (
            "Arms at the end",
            ["block", "arm", "runs", *metrics, "entropy of the runs", "stable", "zero advantage", "negative",
             "tokens updated (k)", "seconds"],
            cells,
        ),
    ]  # fmt: skip
    return [table for table in tables if table[2]]


def study_markdown(record: Record, *, figures: str | None = None) -> str:
    """The study in words and tables.

    Args:
        record: its summary.
        figures: where its figures lie, relative to the text; None: no figures.
    """
    study = record["study"]
    lines = [f"# {study['name']}", "", study["question"], "", f"**Decides**: {_rule(study)}", "", _progress(record)]
    if study["notes"]:
        lines += ["", " ".join(study["notes"].split())]
    for title, header, rows in study_tables(record):
        lines += ["", f"## {title}", "", _row(header), _row(["---"] * len(header)), *map(_row, rows)]
    if figures is not None:
        for name in figures_of(record):
            lines += ["", f"![{name}]({figures}/{name}.svg)"]
    return "\n".join(lines) + "\n"


def study_page(record: Record) -> str:
    """The study as one self-contained page without scripts."""
    study = record["study"]
    style = (resources.files("qae.report") / "assets" / "page.css").read_text(encoding="utf-8")
    tables = "".join(_table(title, header, rows) for title, header, rows in study_tables(record))
    figures = "".join(f'<div class="card scroll">{svg}</div>' for svg in figures_of(record).values())
    notes = f"<p>{escape(study['notes'])}</p>" if study["notes"] else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="qae">
<title>{escape(study["name"])} - qae study</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<header class="head"><h1>{escape(study["name"])}</h1><p>{escape(study["question"])}</p></header>
<section><h2>Written down before the runs</h2>
<div class="card"><p><b>Decides</b>: {escape(_rule(study))}</p><p>{escape(_progress(record))}</p>{notes}</div></section>
{tables}
<section><h2>Figures</h2>{figures or '<p class="card">No run is finished yet.</p>'}</section>
</main>
</body>
</html>
"""


def _table(title: str, header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        f'<section><h2>{escape(title)}</h2><div class="card scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _cell(text: str) -> str:
    return f'<td class="words">{escape(text)}</td>' if len(text) > SENTENCE else f"<td>{escape(text)}</td>"


def _rule(study: Record) -> str:
    decision = study["decision"]
    margins = ", ".join(f"{_value(m, x, sign='')} of {m.removeprefix('eval/')}" for m, x in decision["margins"].items())
    words = " ".join(decision["rule"].split())
    return f"{decision['metric'].removeprefix('eval/')}, level {decision['alpha']:g}, margin {margins}. {words}"


def _progress(record: Record) -> str:
    study, done = record["study"], len(record["runs"])
    minutes = sum(run["minutes"] or 0 for run in record["runs"])
    makers = Counter(run["from"] for run in record["runs"] if "from" in run)
    shared = "".join(f", {count} of them made by {name}" for name, count in makers.items())
    others = len(record.get("unplanned", ()))
    earlier = f" {others} more, of an earlier plan, are kept and compared with nothing." if others else ""
    return (
        f"{done} of {record['planned']} runs finished{shared}, {minutes / 60:.1f} hours of one core; "
        f"base {study['base']}{', ' if study['overrides'] else ''}{' '.join(study['overrides'])}.{earlier}"
    )


def _expected(answer: Record) -> str:
    why = f" ({answer['why']})" if answer["why"] else ""
    return f"{answer['expect']}{why}"


def _difference(line: Record, metric: str) -> str:
    return f"{_value(metric, line['mean'], sign='+')} {_interval(line, '', metric)}"


def _interval(line: Record, prefix: str, metric: str) -> str:
    key = f"{prefix}_" if prefix else ""
    low, high = line.get(f"{key}low"), line.get(f"{key}high")
    if low is None or high is None:
        return "-"
    return f"[{_value(metric, low, sign='+', unit=False)}, {_value(metric, high, sign='+', unit=False)}]"


def _policies(line: Record) -> str:
    """The mean difference of the seeds of each initial policy, where there are several."""
    found = line["by_policy"]
    if len(found) < 2:
        return "-"
    return ", ".join(f"{name} {_value(line['metric'], x, sign='+', unit=False)}" for name, x in found.items())


def _value(metric: str, value: float | None, *, sign: str = "", unit: bool = True) -> str:
    """A pass rate in points, anything else as it is."""
    if value is None:
        return "-"
    if metric.startswith("eval/pass@"):
        return f"{POINTS * value:{sign}.1f}{' points' if unit and sign else ''}"
    return f"{value:{sign}.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _entropy(cell: Record) -> str:
    told = ", ".join(f"{count} {kind}" for kind, count in cell["entropy"].items())
    stopped = f"; {cell['stopped']} stopped early" if cell["stopped"] else ""
    return (told or "-") + stopped


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
