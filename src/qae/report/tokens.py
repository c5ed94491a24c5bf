"""Tokens that carry the entropy, words of doubt, and the measured step: what the audit of a run says about them."""

from html import escape
from pathlib import Path
from typing import Any

from qae.report.runs import Arm, rounded
from qae.report.whatif import Record, read_audit

SHOWN = 12
LONGEST = 40
# of a measured step: heading, scale, form; an older audit holds fewer
STEP_COLUMNS = {
    "gradient_norm": ("gradient norm", 1, "{:.3g}"),
    "own_predicted_nats": ("predicted, batch", 1e6, "{:+.2f}"),
    "own_measured_nats": ("measured, batch", 1e6, "{:+.2f}"),
    "predicted_nats": ("predicted, held out", 1e6, "{:+.2f}"),
    "measured_nats": ("measured, held out", 1e6, "{:+.2f}"),
    "identity_per_step": ("paper's identity", 1, "{:+.4f}"),
    "centred_per_step": ("centred identity", 1, "{:+.4f}"),
}


def token_series(audit: Record | None) -> dict[str, list[float | None]]:
    """What changes over time, as columns by step; empty without a token view.

    Args:
        audit: of `read_audit`.
    """
    spans = ((audit or {}).get("tokens") or {}).get("spans") or []
    return {
        name: [None if span.get(name) is None else rounded(span[name]) for span in spans]
        for name in ("step", "pass_rate", "words_frac", "top_share", "effective", "two_most_frac", "covariance")
        if spans
    }


def tokens_html(arms: list[Arm]) -> str:
    """Cards with the tokens of the arms' first runs, and their measured steps; empty if no audit holds them."""
    cards = ""
    for arm in arms:
        audit = read_audit(arm.runs[0].path) or {}
        body = _carriers(audit.get("tokens") or {}) + _steps(audit.get("entropy_step") or {})
        if body:
            title = f"<h3>{escape(arm.label)}</h3>" if len(arms) > 1 else ""
            cards += f'<div class="card">{title}{body}</div>'
    return cards


def _carriers(found: Record) -> str:
    if not found.get("carriers"):
        return ""
    said = (
        f"Of {found['tokens']:,} recorded tokens ({found['distinct']:,} different), the fifth with most entropy, "
        f"from {found['threshold_nats']:.2f} nats up, carries {found['top_share']:.0%} of all entropy."
    )
    head = ("token", "share of the entropy", "mean nats", "count", "in the top 20%", "mean covariance")
    rows = [
        [
            f"<code>{escape(str(line['text'])[:LONGEST])}</code>",
            f"{line['share']:.1%}",
            f"{line['mean_nats']:.3f}",
            f"{line['count']:,}",
            f"{line['top_frac']:.0%}",
            "-" if line["covariance"] is None else f"{line['covariance']:+.4f}",
        ]
        for line in found["carriers"][:SHOWN]
    ]
    return f"<p>{escape(said)}</p>{_table(head, rows)}"


def _steps(found: Record) -> str:
    if not found.get("steps"):
        return ""
    said = (
        f"One small plain gradient step from checkpoint {Path(found['checkpoint']).name} under each baseline, on the "
        f"same {found['completions']} completions; the entropy of their own tokens, and of {found['heldout_tokens']:,} "
        "tokens of held-out problems, in millionths of a nat. Identities: for a step on the logits themselves."
    )
    shown = {key: column for key, column in STEP_COLUMNS.items() if all(key in line for line in found["steps"])}
    head = ("baseline", *(name for name, _, _ in shown.values()))
    rows = [
        [escape(str(line["baseline"])), *(form.format(scale * line[key]) for key, (_, scale, form) in shown.items())]
        for line in found["steps"]
    ]
    return f"<p>{escape(said)}</p>{_table(head, rows)}"


def _table(head: tuple[str, ...], rows: list[list[Any]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'
