"""Charts as SVG: lines, bars, intervals and drift, in the colours of all pages."""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle, product
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from mabert_lab.report import paper
from mabert_lab.report.drift import MASKINGS, SITUATIONS, STABLE, VECTORS, Drift, Drifts, farthest, names_of
from mabert_lab.report.efficiency import DTYPES, MEASURES, NAMES, STATUSES, Condition, Results
from mabert_lab.report.statistics import averages, summary
from mabert_lab.report.studies import Study, percent

INK = "#1b2a38"
COLOURS = ("#2f6f8f", "#d0803a", "#5d8a4b", "#8a4b7d")
DASHED = (0, (4, 2.5))
"""Line style of the paper's numbers."""


class Look(NamedTuple):
    """Colour and marker of a model."""

    colour: str
    marker: str


LOOKS = {
    "bert": Look("#222222", "s"),
    "albert": Look("#56b4e9", "^"),
    "longformer": Look("#009e73", "v"),
    "bigbird": Look("#e69f00", "D"),
    "deberta": Look("#cc79a7", "P"),
    "modernbert": Look("#0072b2", "X"),
    "mabert": Look("#d55e00", "o"),
}
"""Okabe and Ito's colours, which colour-blind readers can distinguish, without the yellow, invisible on white."""


def line_chart(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    dots: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """Draws curves over one axis.

    Args:
        lines: x and y values by name.
        x_label: Label of x with its unit; x is a count.
        y_label: Label of y with its unit.
        dots: Whether to mark each point, if there are few.
        marks: x values of vertical lines.

    Returns:
        SVG text.
    """
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    colours = COLOURS if len(lines) <= len(COLOURS) else [look.colour for look in LOOKS.values()]
    strokes = cycle(product(("-", "--", ":"), colours))  # a colour comes again in another style
    for (name, (x, y)), (style, colour) in zip(lines.items(), strokes, strict=False):
        form = ("o" if dots else "") + style
        axes.plot(x, y, form, label=name, color=colour, linewidth=1.6, markersize=4.5)
    for mark in marks:
        axes.axvline(mark, color=INK, linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    plain(axes)
    if len(lines) > len(COLOURS):
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False)
    return svg(figure)


def plain(axes: Axes) -> None:
    """Sets a light grid, and removes the frame on sides without a scale."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def svg(figure: Figure) -> str:
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
    """Draws training and held-out loss over the steps of a pretraining, as SVG.

    Args:
        history: The run's log, as in its `result.json`.
        marks: Steps to mark, such as those at which the windows grow.
    """
    logged = [entry for entry in history if "loss" in entry]
    held_out = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
    lines = {
        "training": ([entry["step"] for entry in logged], [entry["loss"] for entry in logged]),
        "held out": (list(held_out), list(held_out.values())),
    }
    return line_chart(lines, "step", "loss (nats a masked token)", marks=marks)


def stage_ends(steps: int, stages: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the steps at which a run's windows change length.

    Args:
        steps: Steps of the whole run.
        stages: The stages in its request, each with its `share` of the steps.
    """
    return [steps * done for done in accumulate(stage["share"] for stage in stages[:-1])]


PAPERS_WEIGHTS = "(the paper's: most likely of float32 weights)"
"""Its memory numbers suggest this, although its other numbers are of bf16."""

_COLOURS = [look.colour for look in reversed(LOOKS.values())]
_FLOOR = 1e-16


def arm_averages(study: Study) -> pd.DataFrame:
    """Averages each arm over the tasks in `Study.averaged`; one row per arm.

    Columns are ``arm``, ``budget``, ``mean``, ``std``, ``seeds`` and ``paper``, the paper's average over the same
    tasks; missing values are NaN.
    """
    wanted, papers = study.averaged, study.papers(study.averaged)
    rows = []
    for arm in study.arms:
        table = study.table(arm.budget)
        there = table is not None and papers and arm.paper in table.mean.index
        theirs = table.average(str(arm.paper), papers) if table is not None and there else None
        rows.append((arm, arm.budget, *(summary(averages(arm.scores, wanted)) or (None, None, 0)), theirs))
    head = ["arm", "budget", "mean", "std", "seeds", "paper"]
    return pd.DataFrame(rows, columns=head).astype({"mean": float, "std": float, "paper": float})


def arm_chart(study: Study) -> str | None:
    """Draws the arms' averages with deviations, and the paper's in a second panel; None if there are no averages."""
    found = arm_averages(study).dropna(subset=["mean", "paper"], how="all")
    if found["mean"].isna().all():
        return None
    drawing = Figure(figsize=(8.2, 1.3 + 0.3 * len(found)), layout="constrained")
    heights, several = range(len(found), 0, -1), len(study.budgets) > 1
    panels = drawing.subplots(1, 2 if found["paper"].notna().any() else 1, sharey=True, squeeze=False)[0]
    for height, row in zip(heights, found.itertuples(), strict=True):
        mark = "D" if row.arm.name == study.reference else "o"
        if row.seeds:
            std = None if math.isnan(row.std) else row.std
            panels[0].errorbar(row.mean, height, xerr=std, fmt=mark, color=_COLOURS[0], capsize=2)
        if not math.isnan(row.paper):
            panels[1].plot(row.paper, height, mark, color=INK, markerfacecolor="none")
    labels = [_label(study, arm.name) + f", {percent(arm.budget)}" * several for arm in found["arm"]]
    panels[0].set_yticks(heights, labels, fontsize="small")
    panels[0].set_ylim(0.4, len(found) + 0.6)
    flagged = any((printed := study.table(budget)) is not None and printed.flag for budget in study.budgets)
    titles = ("here", "the paper's, same tasks" + " (flagged)" * flagged)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title, color=INK, fontsize="medium")
        axes.set_xlabel("average score")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        plain(axes)
    return svg(drawing)


def pretraining_chart(study: Study) -> str | None:
    """Draws loss over steps for each pretraining of the largest budget; arms that differ only in fine-tuning share a
    line. None if there is no pretraining."""
    arms = [arm for arm in study.arms if arm.budget == study.budgets[-1] and arm.pretraining.get("history")]
    every = [entry for arm in arms for entry in arm.pretraining["history"]]
    what = "eval_loss" if any("eval_loss" in entry for entry in every) else "loss"
    shared: dict[str, list[str]] = {}
    curves: dict[str, dict[float, float]] = {}
    for arm in arms:
        cell = arm.pretraining.get("cell", arm.name)
        shared.setdefault(cell, []).append(_label(study, arm.name))
        curves[cell] = {entry["step"]: entry[what] for entry in arm.pretraining["history"] if what in entry}
    if not any(curves.values()):
        return None
    lines = {
        shared[cell][0] + f" and {len(shared[cell]) - 1} more" * (len(shared[cell]) > 1): (
            list(points),
            list(points.values()),
        )
        for cell, points in curves.items()
    }
    return line_chart(lines, "step", f"{'held-out' if what == 'eval_loss' else 'training'} loss (nats a masked token)")


def scaling_chart(results: Results, condition: Condition) -> str | None:
    """Draws one log-log panel per measure over length, with the spread of our numbers; None if there is no data."""
    tables = {each: rows for each, rows in results.tables[condition].items() if rows["value"].notna().any()}
    if not tables:
        return None
    size, columns = {1: ((4.9, 5.6), 2), 2: ((8.0, 5.2), 3), 3: ((11.7, 4.9), 5)}[len(tables)]
    figure = Figure(figsize=size, layout="constrained")
    for axes, (measure, rows) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        _scaling(axes, measure, rows, condition)
    shown = pd.concat(tables.values())
    names = [name for name in NAMES if name in paper.MODELS or name in set(shown["model"])]
    handles = [Line2D([], [], label=NAMES[name], **_strokes(name)) for name in names]
    here = f"solid: measured, {DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}"
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label=here))
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=DASHED, label="dashed: the paper's, A100, bf16"))
    if causes := [status for status in STATUSES[1:] if status in set(shown["status"])]:
        handles.append(Line2D([], [], linestyle="none", label=f"missing points: {', '.join(causes)}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    return svg(figure)


def _scaling(axes: Axes, measure: str, rows: pd.DataFrame, condition: Condition) -> None:
    """Draws the panel of one measure."""
    printed, measured = paper.TABLES[measure].mean, rows.dropna(subset="value")
    for model in (each for each in LOOKS if each in paper.MODELS or each in rows.index):
        if model in paper.MODELS:
            strokes = {**_strokes(model), "markerfacecolor": "none", "linestyle": DASHED}
            strokes |= {"linewidth": 0.9, "markersize": 3.5, "alpha": 0.7, "zorder": 2}
            axes.plot(printed.columns, printed.loc[model], **strokes)
        own = measured[measured["model"] == model]
        ends = [(own[f"{end}_ms"].fillna(own["value"]) - own["value"]).abs() for end in ("fastest", "slowest")]
        axes.errorbar(own["length"], own["value"], ends if len(own) else None, elinewidth=0.9, **_strokes(model))
    remark = f"\n{PAPERS_WEIGHTS}" if measure == "memory" and condition.dtype != "float32" else ""
    axes.set_title(f"{MEASURES[measure].capitalize()}{remark}", color=INK, fontsize="medium")
    axes.set_ylabel("MiB" if measure == "memory" else "ms")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Up to three decades there is room for ticks between the powers of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,), numticks=12))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _over_lengths(axes, sorted({*rows["length"], *printed.columns}))


def speed_chart(results: Results, condition: Condition) -> str | None:
    """Draws tokens per second of a forward pass over length, one line per model, on an axis from zero so that heights
    compare; None if no latency was measured."""
    rows = results.tables[condition].get("latency")
    if rows is None or rows["value"].isna().all():
        return None
    measured = rows.dropna(subset="value")
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    axes, handles = figure.subplots(), list[Line2D]()
    for model in measured.index.unique("model"):
        own = measured.loc[model]
        handles += axes.plot(own["length"], 1e3 * own["length"] / own["value"], label=NAMES[model], **_strokes(model))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens a second")
    _over_lengths(axes, sorted(measured["length"].unique()))
    # Labels beside the lines, with the fastest at the longest input on top.
    last = (
        measured.groupby(level="model", sort=False)
        .tail(1)
        .reset_index(drop=True)
        .sort_values(["length", "value"], ascending=[True, False])
    )
    order = list(measured.index.unique("model"))
    handles = [handles[order.index(model)] for model in reversed(last["model"].tolist())]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return svg(figure)


def farthest_chart(drifts: Drifts) -> str:
    """Draws the largest distance of any vector for trained weights: a panel for attention masked and one for not, a
    line for each model and side of the padding, a mark for each masking."""
    rows = []
    for name, (_, result) in zip(names_of(drifts), drifts, strict=True):
        about = f"{name}, up to {max(result['lengths']):,} positions"
        for row in [row for row in result["rows"] if row["weights"] == "trained"]:
            line = f"{row['direction']} scan, padding {row['side']}\n{about}"
            rows.append({**row, "line": line, "far": farthest(row)})
    least = min((row["far"] for row in rows if row["far"] > STABLE), default=0.1)
    decades = [10.0**power for power in range(math.floor(math.log10(least)) - 1, 1)]
    nothing, lines = decades[0], list(dict.fromkeys(row["line"] for row in rows))
    figure = Figure(figsize=(6.4, 2 * (0.6 + 0.42 * len(lines)) + 0.5), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, attention in zip(panels, dict.fromkeys(attention for _, attention in SITUATIONS), strict=True):
        for step, (masking, (label, colour, _)) in enumerate(MASKINGS.items()):
            own = [row for row in rows if (row["masking"], row["attention"]) == (masking, attention)]
            heights = [-lines.index(row["line"]) - 0.12 * (step - 2.5) for row in own]
            far = [row["far"] if row["far"] > STABLE else nothing for row in own]
            axes.plot(far, heights, "o", label=label, color=colour, markersize=4.5)
        axes.set_title(f"attention {attention}", color=INK, fontsize="small")
        axes.set_xscale("log")
        axes.set_xticks(decades, ["0", *(f"{decade:g}" for decade in decades[1:])], fontsize="small")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks([-height for height in range(len(lines))], lines, fontsize="small")
        plain(axes)
    panels[0].set_xlim(nothing / 2, 3)
    panels[1].set_xlabel("largest mean cosine distance; 0 is rounding alone", fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return svg(figure)


def drift_chart(result: Drift) -> str:
    """Draws cosine distance over padding for trained weights, with a row of panels per situation."""
    rows = [row for row in result["rows"] if row["weights"] == "trained"]
    figure = Figure(figsize=(7.4, 2.3 * len(SITUATIONS) + 0.5), layout="constrained")
    panels = figure.subplots(len(SITUATIONS), len(VECTORS), sharex=True, sharey=True)
    for (side, attention), line in zip(SITUATIONS, panels, strict=True):
        for (vector, name), axes in zip(VECTORS.items(), line, strict=True):
            for row in rows:
                if (row["side"], row["attention"]) == (side, attention):
                    label, colour, style = MASKINGS[row["masking"]]
                    heights = [max(distance, _FLOOR) for distance in row[vector]]
                    axes.plot(result["lengths"], heights, style, label=label, color=colour, linewidth=1.6)
            axes.set_yscale("log")
            axes.set_ylim(_FLOOR / 3, 3)
            axes.set_title(f"{name}: padding {side}, attention {attention}", color=INK, fontsize="small")
            plain(axes)
    for axes in panels[-1]:
        axes.set_xlabel("padded positions")
    for axes in panels[:, 0]:
        axes.set_ylabel("cosine distance")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return svg(figure)


def _label(study: Study, name: str) -> str:
    """Escapes an arm's name for matplotlib, which reads text between two dollar signs as a formula."""
    return study.label_of(name).replace("$", r"\$")


def _strokes(model: str) -> dict[str, Any]:
    """Returns the line style of a model's own numbers."""
    look, ours = LOOKS[model], model == "mabert"
    dots = {"marker": look.marker, "markersize": 7 if ours else 5}
    return {"color": look.colour, "linewidth": 2.8 if ours else 1.4, "zorder": 4 if ours else 3, **dots}


def _over_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45, fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens")
    plain(axes)
