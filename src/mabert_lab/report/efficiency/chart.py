"""The paper's scaling figure with ours, memory, latency and training step over length; and speed over length, ours
alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from mabert_lab.report import paper
from mabert_lab.report.efficiency.results import MEASURES, NAMES, STATUSES, Condition, Results, Row, curve
from mabert_lab.report.efficiency.tables import DTYPES, PAPER, TITLES, UNITS, batch_of, lengths_of
from mabert_lab.report.figures import DASHED, INK, LOOKS, plain, svg

PAPERS_WEIGHTS = "(the paper's: most likely of float32 weights)"
"""What its memory says, see `mabert_lab.report.paper.MEMORY`, though its other numbers are of bf16."""

LEGEND_COLUMNS = {1: 2, 2: 3, 3: 5}
SIZES = {1: (4.9, 5.6), 2: (8.0, 5.2), 3: (11.7, 4.9)}
"""Of the legend and, in inches, of the figure, by the number of panels."""

SPEED_SIZE = (8.0, 3.6)
"""Inches of the figure of speed."""


def scaling_chart(results: Results, condition: Condition) -> str:
    """A panel for each measure, logarithmic both ways, ours solid with its spread and the paper's dashed.

    Args:
        results: What `load_results` returned.
        condition: One of the results' own.

    Returns:
        SVG text.

    Raises:
        ValueError: Nothing was measured under this condition.
    """
    return svg(scaling_figure(results, condition))


def scaling_figure(results: Results, condition: Condition) -> Figure:
    """The same as a figure."""
    tables = {measure: results.table(condition, measure) for measure in MEASURES}
    tables = {measure: rows for measure, rows in tables.items() if any(map(curve, rows.values()))}
    if not tables:
        found = "; ".join(", ".join(filter(None, each)) for each in results.conditions())
        raise ValueError(f"nothing measured under {', '.join(filter(None, condition))}; there is {found}")
    figure = Figure(figsize=SIZES[len(tables)], layout="constrained")
    for axes, (measure, rows) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        for model in NAMES:
            _paper_line(axes, model, PAPER[measure].rows.get(model, {}))
            _line(axes, model, rows.get(model, {}))
        remark = f"\n{PAPERS_WEIGHTS}" if measure == "memory" and condition.dtype != "float32" else ""
        axes.set_title(f"{TITLES[measure]}, batch {batch_of(rows)}{remark}", color=INK, fontsize="medium")
        axes.set_ylabel(UNITS[measure])
        _scales(axes, sorted({*lengths_of(rows), *PAPER[measure].columns}))
    shown = [row for rows in tables.values() for cells in rows.values() for row in cells.values()]
    _legend(figure, condition, shown, LEGEND_COLUMNS[len(tables)])
    return figure


def speed_chart(results: Results, condition: Condition) -> str:
    """Tokens a second of one forward over length, a line a model; from the scale's zero, so that heights compare.

    Args:
        results: What `load_results` returned.
        condition: One of the results' own.

    Returns:
        SVG text; empty where no latency was measured under this condition.
    """
    figure = speed_figure(results, condition)
    return "" if figure is None else svg(figure)


def speed_figure(results: Results, condition: Condition) -> Figure | None:
    """The same as a figure; None where there is nothing to draw."""
    rows = results.table(condition, "latency")
    lines = {model: {n: 1e3 * n / value for n, value in curve(cells).items()} for model, cells in rows.items()}
    lines = {model: points for model, points in lines.items() if points}
    if not lines:
        return None
    figure = Figure(figsize=SPEED_SIZE, layout="constrained")
    axes = figure.subplots()
    for model, points in lines.items():
        axes.plot(list(points), list(points.values()), label=NAMES[model], **_strokes(model))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens a second")
    _lengths(axes, sorted({length for points in lines.values() for length in points}))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    # Beside the lines, the fastest at the longest input on top.
    order = sorted(lines, key=lambda model: (max(lines[model]), lines[model][max(lines[model])]), reverse=True)
    handles = dict(zip(lines, axes.get_lines(), strict=True))
    figure.legend(handles=[handles[model] for model in order], loc="outside right center", frameon=False)
    return figure


def _line(axes: Axes, model: str, rows: Mapping[int, Row]) -> None:
    points = curve(rows)
    spread = [
        (value - rows[length].numbers.get("fastest_ms", value), rows[length].numbers.get("slowest_ms", value) - value)
        for length, value in points.items()
    ]
    axes.errorbar(
        list(points),
        list(points.values()),
        list(zip(*spread, strict=True)) or None,
        elinewidth=0.9,
        markeredgecolor="white" if model == "mabert" else LOOKS[model].colour,
        markeredgewidth=0.6,
        **_strokes(model),
    )


def _strokes(model: str) -> dict[str, Any]:
    """How a model's own line is drawn."""
    look, ours = LOOKS[model], model == "mabert"
    dots = {"marker": look.marker, "markersize": 7 if ours else 5}
    return {"color": look.colour, "linewidth": _width(model), **dots, "zorder": 4 if ours else 3}


def _paper_line(axes: Axes, model: str, points: Mapping[int, float]) -> None:
    look = LOOKS[model]
    axes.plot(
        list(points),
        list(points.values()),
        color=look.colour,
        marker=look.marker,
        markerfacecolor="none",
        linestyle=DASHED,
        linewidth=1.8 if model == "mabert" else 0.9,
        markersize=3.5,
        alpha=0.7,
        zorder=2,
    )


def _scales(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Up to three decades leave room for ticks between the powers of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _lengths(axes, lengths)


def _lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45, fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens")
    plain(axes)


def _number(value: float, _: int | None) -> str:
    return f"{value:,.10g}"


def _legend(figure: Figure, condition: Condition, rows: Sequence[Row], columns: int) -> None:
    names = [name for name in NAMES if name in paper.NAMES or any(row.model == name for row in rows)]
    handles = [
        Line2D([], [], color=LOOKS[name].colour, marker=LOOKS[name].marker, linewidth=_width(name), label=NAMES[name])
        for name in names
    ]
    here = f"solid: measured, {DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}"
    there = f"dashed: the paper's, {paper.MACHINE.device}, {paper.MACHINE.precision}"
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label=here))
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=DASHED, label=there))
    causes = [status for status in STATUSES[1:] if any(row.status == status for row in rows)]
    if causes:
        handles.append(Line2D([], [], linestyle="none", label=f"missing points: {', '.join(causes)}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")


def _width(model: str) -> float:
    return 2.8 if model == "mabert" else 1.4
