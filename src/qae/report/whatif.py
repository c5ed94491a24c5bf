"""What other baselines would have done with a run's rewards: the audit that lies in its directory, as tables."""

import json
from html import escape
from pathlib import Path
from typing import cast

from qae.records import SCHEMA, Record, SchemaError
from qae.report.runs import Arm, is_number


def read_audit(run_dir: Path) -> Record | None:
    """The audit.json of a run, None if there is none that can be read.

    Raises:
        SchemaError: a newer qae wrote it.
    """
    try:
        record = json.loads((run_dir / "audit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict):
        return None
    record = cast(Record, record)
    if is_number(record.get("schema")) and record["schema"] > SCHEMA:
        raise SchemaError(f"{run_dir / 'audit.json'} has schema {record['schema']}; this qae reads up to {SCHEMA}")
    return record


def what_if_html(arms: list[Arm]) -> str:
    """A section with the audits of the arms' first runs; empty if none was made."""
    found = [
        (arm.label, record) for arm in arms if (record := read_audit(arm.runs[0].path)) and record.get("baselines")
    ]
    if not found:
        return ""
    cards = "".join(_card(label if len(arms) > 1 else "", record) for label, record in found)
    return (
        '<section id="whatif" tabindex="-1"><h2>What other baselines would have done</h2>'
        '<p class="muted small">With the rewards of this run. Green: reinforced, red: penalised, between: advantage 0, '
        f"which an exact update may skip. Shares of the completions of mixed groups.</p>{cards}</section>"
    )


def _card(label: str, record: Record) -> str:
    title = f"<h3>{escape(label)}</h3>" if label else ""
    lines = [line for line in record["baselines"] if not line["name"].endswith("linear")]
    regimes = {f"quantile K={line['k']:g}": line for line in record.get("regimes", [])}
    rows = "".join(_row(line, regimes.get(line["name"])) for line in lines)
    head = "".join(
        f"<th>{name}</th>"
        for name in ("baseline", "", "reinforced", "penalised", "zero", "mass + / -", "hard / easy", "flip with one")
    )
    k = record.get("k") or {}
    said = [f"K = {k['k']:g}, confidence {k['confidence']}: {k['reason']}."] if "reason" in k else []
    said += record.get("warnings", [])
    told = "".join(f"<li>{escape(str(text))}</li>" for text in said)
    return (
        f'<div class="card">{title}<div class="scroll"><table class="whatif"><tr>{head}</tr>{rows}</table></div>'
        f'<ul class="said">{told}</ul></div>'
    )


def _row(line: Record, regime: Record | None) -> str:
    up, down = 100 * line["positive_frac"], 100 * line["negative_frac"]
    bars = (f'<i class="{name}" style="width:{width:.1f}%"></i>' for name, width in (("up", up), ("down", down)))
    bar = f'<div class="signs">{"".join(bars)}</div>'
    cells = [f"{up:.0f}%", f"{down:.0f}%", f"{100 * line['zero_frac']:.0f}%"]
    cells.append(f"{line['positive_mass']:.2f} / {line['negative_mass']:.2f}")
    if regime:
        cells += [f"{regime['hard_frac']:.0%} / {regime['easy_frac']:.0%}", f"{regime['fragile_frac']:.0%}"]
    else:
        cells += ["", ""]
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><td>{escape(str(line['name']))}</td><td>{bar}</td>{numbers}</tr>"
