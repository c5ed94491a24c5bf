"""Figures of a study as SVG, drawn from its record: small, without scripts, the same in a page and in the docs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from qae.records import Record

COLOURS = ("#566072", "#2f5fd0", "#d1495b", "#14794f", "#c77700", "#7b3fb5", "#008a9a", "#a0522d", "#b0127b", "#4d6b00")
AXES = {"step": "steps", "tokens": "tokens updated (thousands)", "seconds": "seconds of sampling and learning"}
NAMES = {"eval/entropy": "held-out entropy (nats)", "train/entropy": "training entropy (nats)"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 360, 230, 46, 26, 36, 10
CAPTION = 480  # the longest line below a figure of one panel
TEXT = 'font-family="system-ui, sans-serif" font-size="11" fill="#333d4d"'


@dataclass(frozen=True)
class Line:
    """A curve with a band.

    Attributes:
        name: in the legend.
        x: its places.
        y: means.
        low: lower end of the band.
        high: upper end.
    """

    name: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


def figures_of(record: Record) -> dict[str, str]:
    """Every figure of a study by its file name without ending.

    Args:
        record: a study's summary, with comparisons.

    Returns:
        name -> SVG: curves of the deciding metric against steps, update tokens and seconds, of the other metrics and
        of the training entropy against steps, and the differences from the baseline with their intervals.

    Example:
        >>> figures_of({"study": {"arms": {}, "blocks": {}}, "runs": [], "comparisons": []})
        {}
    """
    if not record["runs"]:
        return {}
    study = record["study"]
    decides = study["decision"]["metric"]
    found = {f"{_file(decides)}-{x}": curves(record, decides, x) for x in AXES}
    found |= {
        f"{_file(m)}-step": curves(record, m, "step") for m in [*study["metrics"], "train/entropy"] if m != decides
    }
    found |= {f"{_file(m)}-differences": differences(record, m) for m in study["metrics"]}
    return {name: svg for name, svg in found.items() if svg}


def curves(record: Record, metric: str, x: str) -> str:
    """One panel a block, one line an arm: the mean over seeds, in a band from the lowest to the highest seed."""
    panels: list[tuple[str, list[Line]]] = []
    for block in record["study"]["blocks"]:
        lines = [_line(record, block, arm, metric, x) for arm in record["study"]["arms"]]
        panels.append((block, [line for line in lines if line is not None]))
    panels = [(title, lines) for title, lines in panels if lines]
    return _panels(panels, list(record["study"]["arms"]), AXES[x], NAMES.get(metric, _words(metric)))


def differences(record: Record, metric: str) -> str:
    """A dot and an interval for each arm and block: the difference from the baseline at the end, seed by seed."""
    rows = [line for line in record["comparisons"] if line["metric"] == metric]
    if not rows:
        return ""
    ends = [x for row in rows for x in (0.0, row["mean"], *row["values"], row["low"], row["high"]) if x is not None]
    low, high = _nice(min(ends), max(ends))
    label, width, row_height = 210, 640, 20
    scale = (width - label - 20) / (high - low)

    def at(value: float) -> float:
        return label + (value - low) * scale

    parts = [_text(label, 14, f"{_words(metric)}: difference from {rows[0]['against']}, 95% over seeds; dots: seeds")]
    bottom = 26 + row_height * len(rows)
    for tick in _ticks(low, high):
        parts.append(f'<line x1="{at(tick):.1f}" y1="22" x2="{at(tick):.1f}" y2="{bottom}" stroke="#e3e7ee"/>')
        parts.append(_text(at(tick), bottom + 14, f"{tick:g}", anchor="middle"))
    parts.append(f'<line x1="{at(0):.1f}" y1="22" x2="{at(0):.1f}" y2="{bottom}" stroke="#838c9c"/>')
    arms = list(record["study"]["arms"])
    for i, row in enumerate(rows):
        y, colour = 36 + row_height * i, _colour(arms.index(row["arm"]))
        parts.append(_text(label - 8, y + 4, f"{row['block']}: {row['arm']}", anchor="end"))
        if row["low"] is not None:
            parts.append(
                f'<line x1="{at(row["low"]):.1f}" y1="{y}" x2="{at(row["high"]):.1f}" y2="{y}" stroke="{colour}" '
                'stroke-width="2"/>'
            )
        dot = f'cy="{y}" r="2" fill="{colour}" fill-opacity=".45"/>'
        parts += [f'<circle cx="{at(value):.1f}" {dot}' for value in row["values"]]
        parts.append(f'<circle cx="{at(row["mean"]):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return _svg(width, bottom + 24, parts, f"{_words(metric)}, differences from the baseline")


def _line(record: Record, block: str, arm: str, metric: str, x: str) -> Line | None:
    """Mean and range over the seeds at each step that all of them have; places are means too."""
    runs = [run for run in record["runs"] if run["block"] == block and run["arm"] == arm]
    series = [_series(run, metric, x) for run in runs]
    series = [points for points in series if points]
    if not series:
        return None
    steps = set[int].intersection(*(set(points) for points in series))
    columns = [[points[step] for points in series] for step in sorted(steps)]
    ys = [[y for _, y in column] for column in columns]
    return Line(
        arm,
        [statistics.fmean(place for place, _ in column) for column in columns],
        [statistics.fmean(y) for y in ys],
        [min(y) for y in ys],
        [max(y) for y in ys],
    )


def _series(run: Record, metric: str, x: str) -> dict[int, tuple[float, float]]:
    """Step -> place and value."""
    source = run["entropy"] if metric == "train/entropy" else run["eval"]
    values = source["nats"] if metric == "train/entropy" else source.get(metric, [])
    places = [place / 1000 if x == "tokens" else place for place in source.get(x, [])]
    points = zip(source["step"], places, values, strict=False)
    return {step: (place, y) for step, place, y in points if y is not None}


def _panels(panels: Sequence[tuple[str, list[Line]]], arms: Sequence[str], x_name: str, y_name: str) -> str:
    if not panels:
        return ""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    every = [y for _, lines in panels for line in lines for y in (*line.low, *line.high)]
    low, high = _nice(min(every), max(every))
    parts: list[str] = []
    for i, (title, lines) in enumerate(panels):
        across = max(1e-9, max(x for line in lines for x in line.x))
        dx, dy = WIDTH * (i % columns), HEIGHT * (i // columns)
        parts += [f'<g transform="translate({dx},{dy})">', *_panel(title, lines, arms, across, low, high), "</g>"]
    legend = HEIGHT * rows + 14
    used = [arm for arm in arms if any(line.name == arm for _, lines in panels for line in lines)]
    place, down = 8.0, 0
    for arm in used:
        length = 26 + 6.6 * len(arm)
        if place + length > WIDTH * columns:
            place, down = 8.0, down + 18
        y, stroke = legend + down - 4, _stroke(list(arms).index(arm))
        parts.append(f'<line x1="{place:.0f}" y1="{y}" x2="{place + 12:.0f}" y2="{y}" stroke-width="5" {stroke}/>')
        parts.append(_text(place + 16, legend + down, arm))
        place += length
    parts.append(_text(8, legend + down + 20, f"across: {x_name}; up: {y_name}; bands: lowest to highest seed"))
    width = max(WIDTH * columns, CAPTION)
    return _svg(width, legend + down + 28, parts, f"{y_name} against {x_name}")


def _panel(title: str, lines: Sequence[Line], arms: Sequence[str], across: float, low: float, high: float) -> list[str]:
    def px(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / across

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)

    parts = [_text(LEFT, 16, title, bold=True)]
    for tick in _ticks(low, high):
        parts.append(
            f'<line x1="{LEFT}" y1="{py(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{py(tick):.1f}" stroke="#e3e7ee"/>'
        )
        parts.append(_text(LEFT - 5, py(tick) + 4, f"{tick:g}", anchor="end"))
    parts += [_text(px(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", anchor="middle") for tick in _ticks(0, across)]
    for line in lines:
        colour = _colour(list(arms).index(line.name))
        upper = [f"{px(x):.1f},{py(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        lower = [f"{px(x):.1f},{py(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
        middle = [f"{px(x):.1f},{py(y):.1f}" for x, y in zip(line.x, line.y, strict=True)]
        parts.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" fill-opacity=".13"/>')
        stroke = _stroke(list(arms).index(line.name))
        parts.append(f'<polyline points="{" ".join(middle)}" fill="none" {stroke} stroke-width="1.8"/>')
    return parts


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight} {TEXT}>{escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers from low to high."""
    step = _round_step(high - low)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _nice(low: float, high: float) -> tuple[float, float]:
    """Round ends around a range; never empty."""
    if high - low < 1e-9:
        low, high = low - 0.05, high + 0.05
    step = _round_step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _round_step(span: float) -> float:
    rough = max(span, 1e-9) / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _stroke(i: int) -> str:
    """The colour of an arm's line; broken where the colours have been used before."""
    dashes = ' stroke-dasharray="4 2"' if i >= len(COLOURS) else ""
    return f'stroke="{_colour(i)}"{dashes}'


def _words(metric: str) -> str:
    return metric.removeprefix("eval/")


def _file(metric: str) -> str:
    return _words(metric).replace("@", "").replace("/", "-")
