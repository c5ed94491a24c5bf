"""An audit as text: tables that read well in a terminal and are Markdown."""

from qae.records import Record


def audit_text(record: Record) -> str:
    """What an audit found, as Markdown.

    Args:
        record: of `audit_paths`.

    Returns:
        Several lines of text.
    """
    parts = [_head(record), *_entropies(record)]
    if record.get("rows"):
        parts += [_pass_rates(record), _regimes(record), _baselines(record), _logged(record)]
    parts += [_tokens(record.get("tokens") or {}), _steps(record.get("entropy_step") or {})]
    parts += [_recommended(record), _list("Warnings", record["warnings"]), _list("Notes", record["notes"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(record: Record) -> str:
    if not record.get("rows"):
        return "No rollouts, scalars only."
    steps = f" in {record['steps']} steps" if record["steps"] else ""
    sizes = ", ".join(f"{count} of {size}" for size, count in record["sizes"].items())
    return (
        f"{record['rows']:,} completions in {record['groups']:,} groups{steps} (sizes: {sizes}).\n"
        f"Outcomes: {record['outcomes']}."
    )


def _entropies(record: Record) -> list[str]:
    lines: list[str] = []
    for name, verdict in record["entropy"].items():
        lines.append(f"{name}: {verdict['summary']}")
        lines += [f"  {e['label']}: {e['before']:.3g} before, {e['after']:.3g} after" for e in verdict["evidence"]]
    return ["\n".join(lines)] if lines else []


def _pass_rates(record: Record) -> str:
    counts = record["pass_rates"]
    total = sum(counts.values())
    if not total:
        return ""
    most = max(counts.values())
    lines = [f"{name:>7}  {'#' * round(40 * count / most):<40} {count}" for name, count in counts.items()]
    flat = record["flat"]
    single = record["sizes"].get("1", 0)
    mixed = total - flat["all_wrong"] - flat["all_right"] - single
    told = f"{flat['all_wrong']} all wrong, {flat['all_right']} all right, {mixed} mixed"
    told += f", {single} of one completion" if single else ""
    return "Groups by pass rate\n\n" + "\n".join(lines) + f"\n\n{told}"


def _regimes(record: Record) -> str:
    rows = [
        [f"{line['k']:g}", f"{line['hard_frac']:.0%}", f"{line['easy_frac']:.0%}", f"{line['fragile_frac']:.0%}"]
        for line in record["regimes"]
    ]
    return _table("Mixed groups by K", ["K", "hard", "easy", "change sides if one completion flips"], rows)


def _baselines(record: Record) -> str:
    rows = [
        [
            line["name"],
            *(f"{line[key]:.0%}" for key in ("zero_frac", "positive_frac", "negative_frac", "sign_changes_frac")),
            f"{line['positive_mass']:.3f}",
            f"{line['negative_mass']:.3f}",
        ]
        for line in record["baselines"]
    ]
    header = ["baseline", "zero", "positive", "negative", "sign not the mean's", "mass +", "mass -"]
    return _table("What each baseline gives the completions of mixed groups", header, rows)


def _logged(record: Record) -> str:
    logged = record["logged_baseline"]
    if not logged:
        return ""
    if logged["largest_difference"] < 1e-3:
        return f"The logged advantages are those of {logged['name']}, to within {logged['largest_difference']:.1g}."
    return (
        f"The logged advantages are those of no baseline tried; {logged['name']} comes nearest, "
        f"with differences of up to {logged['largest_difference']:.2g}."
    )


def _tokens(found: Record) -> str:
    spans = found.get("spans") or []
    shown = spans[:: max(1, len(spans) // 8)] if len(spans) > 10 else spans
    shown = [*shown, *(spans[-1:] if shown and shown[-1] is not spans[-1] else [])]
    header = [
        "step",
        "pass rate",
        "words of doubt",
        "entropy in top 20%",
        "tokens there",
        "two most frequent",
        "covariance",
    ]
    keys = ("pass_rate", "words_frac", "top_share", "effective", "two_most_frac", "covariance")
    forms = ("{:.0%}", "{:.0%}", "{:.0%}", "{:.1f}", "{:.0%}", "{:.4f}")
    rows = [
        [
            str(span["step"]),
            *("-" if span[k] is None else form.format(span[k]) for k, form in zip(keys, forms, strict=True)),
        ]
        for span in shown
    ]
    title = "Tokens over time" if found.get("tokens") else "Words of doubt over time (no tokens were recorded)"
    parts = [_table(title, header, rows)]
    if found.get("carriers"):
        parts += [
            f"Of {found['tokens']:,} recorded tokens ({found['distinct']} different), the fifth with the highest "
            f"entropy (from {found['threshold_nats']:.2f} nats) carries {found['top_share']:.0%} of the entropy.",
            _table(
                "Tokens that carry the entropy",
                ["token", "share of the entropy", "mean nats", "count", "of them in the top 20%", "mean covariance"],
                [
                    [
                        line["text"],
                        f"{line['share']:.1%}",
                        f"{line['mean_nats']:.3f}",
                        str(line["count"]),
                        f"{line['top_frac']:.0%}",
                        "-" if line["covariance"] is None else f"{line['covariance']:+.4f}",
                    ]
                    for line in found["carriers"][:10]
                ],
            ),
        ]
    return "\n\n".join(part for part in parts if part)


def _steps(found: Record) -> str:
    if not found:
        return ""
    batches = found.get("batches", 1)
    several = f" in {batches} batches" if batches > 1 else ""
    rows = [
        [
            line["baseline"],
            f"{line['gradient_norm']:.3g}",
            *(f"{1e6 * line[key]:+.2f}" for key in ("own_predicted_nats", "predicted_nats", "measured_nats")),
            *([_against_mean(line), *_scatter(line)] if several else []),
            *(f"{line[key]:+.4f}" if key in line else "-" for key in ("identity_per_step", "centred_per_step")),
        ]
        for line in found["steps"]
    ]
    header = ["baseline", "gradient", "on the batch, predicted", "held out, predicted", "held out, measured"]
    if several:
        header += [
            "against the mean (+- standard error)",
            "gradient that batches share",
            "that they do not",
            "(predicted)",
        ]
    header += ["paper's identity (nats a logit step)", "centred (likewise)"]
    table = _table(
        f"Entropy change of one small gradient step from {found['checkpoint']} "
        f"({found['completions']} completions{several}), in millionths of a nat",
        header,
        rows,
    )
    return f"{table}\n\n{_lengths(found)}" if "least_noise_k" in found else table


def _lengths(found: Record) -> str:
    ratio = found["failure_norm2"] / found["success_norm2"]
    return (
        f"The gradient of a failure's log-prob is {ratio:.3g} times as long, squared, as that of a success. Were it so "
        f"on every prompt, the gate would take the less noisy baseline at "
        f"K = 1 / (1 + {ratio:.3g}) = {found['least_noise_k']:.2f}."
    )


def _against_mean(line: Record) -> str:
    return f"{1e6 * line['from_mean_nats']:+.2f} +- {1e6 * line['from_mean_se_nats']:.2f}"


def _scatter(line: Record) -> list[str]:
    return [
        f"{line[key]:.4g}" if line.get(key) is not None else "-"
        for key in ("signal_norm", "noise_norm", "predicted_noise_norm")
    ]


def _recommended(record: Record) -> str:
    k = record["k"]
    interval = (
        f" (any K above {k['interval'][0]:.3g} and up to {k['interval'][1]:.3g} is the same)" if "interval" in k else ""
    )
    size = f" at group size {k['group_size']}" if k["group_size"] else ""
    return f"K = {k['k']:g}{size}{interval}; confidence {k['confidence']}: {k['reason']}."


def _list(title: str, lines: list[str]) -> str:
    return f"{title}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _table(title: str, header: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "| " + " | ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return f"{title}\n\n" + "\n".join([line(header), rule, *map(line, rows)])
