"""Figures as inline SVG: colours, panels, and the line charts of several pages."""

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator


class Figure(NamedTuple):
    """A figure as SVG, with a description for those who do not see it."""

    svg: str
    description: str


INK = "#1b2a38"
COLOURS = ("#2f6f8f", "#d0803a", "#5d8a4b", "#8a4b7d")
DASHED = (0, (4, 2.5))  # line style of the paper's numbers

LOOKS = {
    "bert": ("#222222", "s"),
    "albert": ("#56b4e9", "^"),
    "longformer": ("#009e73", "v"),
    "bigbird": ("#e69f00", "D"),
    "deberta": ("#cc79a7", "P"),
    "modernbert": ("#0072b2", "X"),
    "mabert": ("#d55e00", "o"),
}
"""Colour and marker of each model: Okabe and Ito's colours for the colour-blind, but the yellow, invisible on white."""


def line_chart(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    dots: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """Draws curves over one axis, as SVG, from x (a count) and y by name; `marks` are x values of vertical lines."""
    figure, axes = panels((6.4, 3.2))
    many = len(lines) > len(COLOURS)
    colours = [colour for colour, _ in LOOKS.values()] if many else COLOURS
    strokes = cycle(product(("-", "--", ":"), colours))  # a colour comes again in another style
    for (name, (x, y)), (style, colour) in zip(lines.items(), strokes, strict=False):
        form = ("o" if dots else "") + style
        axes.plot(x, y, form, label=name, color=colour, linewidth=1.6, markersize=4.5)
    for place, mark in enumerate(marks):
        axes.axvline(mark, color=INK, linewidth=0.8, linestyle=":", label=None if place else "other length of windows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    with_grid(axes, xlabel=x_label, ylabel=y_label)
    if many:
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False)
    return svg(figure)


def panels(size: tuple[float, float], *grid: int, **shared: Any) -> tuple[Drawing, Any]:
    """Makes a figure of a size in inches; returns it and its axes, as `Figure.subplots` does."""
    figure = Drawing(figsize=size, layout="constrained")
    return figure, figure.subplots(*grid, **shared)


def with_grid(axes: Axes, **settings: Any) -> None:
    """Sets what `Axes.set` takes and a light grid, and removes small ticks and the frame on sides without a scale."""
    axes.set(**settings)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def svg(figure: Drawing) -> str:
    """Renders a figure as SVG without XML preamble; text stays text, so that it can be searched and read aloud."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mabert"}):
        figure.savefig(out, format="svg", metadata=nothing, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def on_paper(svg_text: str) -> str:
    """Adds a white background, for a file that may be shown on a dark one."""
    return svg_text.replace("<svg ", '<svg style="background: #fff" ', 1)


def loss_chart(history: Sequence[Mapping[str, Any]], marks: Sequence[float] = ()) -> str:
    """Draws the losses of a pretraining, as SVG, from its log; `marks` are steps at which windows change length."""
    lines = {"training": over_steps(history, "loss"), "held out": over_steps(history, "eval_loss")}
    return line_chart(lines, "step", "loss (nats a masked token)", marks=marks)


def over_steps(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """Returns the steps at which a run logged a number, each once, and the numbers."""
    found = {entry["step"]: entry[name] for entry in history if name in entry}
    return list(found), list(found.values())


def losses_chart(tables: Sequence[Path]) -> str:
    """Draws a fine-tuning's training losses, as SVG, a line for each CSV of `step` and `loss`."""
    logged = {table.stem: pd.read_csv(table).dropna(subset="loss") for table in tables}
    lines = {name: (rows["step"], rows["loss"]) for name, rows in logged.items()}
    return line_chart(lines, "step", "training loss")


def stage_ends(steps: int, stages: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the steps at which a run's windows change length; each stage has a `share` of all steps."""
    return [steps * done for done in accumulate(stage["share"] for stage in stages[:-1])]
