"""The effect of padding on a text's vector: tables, figures, and the claims that it decides."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import PurePath
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mabert_lab.report.charts import INK, panels, svg, with_grid
from mabert_lab.report.document import MISSING, table
from mabert_lab.report.paper import Claim, Comparison, Verdict, verdict_on

Drift = Mapping[str, Any]  # what `mabert study drift` wrote
Drifts = Sequence[tuple[str, Drift]]  # such results with the names of their files

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre and post", "#2f6f8f", ":"),
    "exact": ("exact", "#5d8a4b", "-"),
    "unpadded": ("unpadded", "#1b2a38", "--"),
}
"""Label, colour and line style of each masking."""

VECTORS = {"cls": "[CLS]", "mean": "mean of tokens"}

SITUATIONS = (("right", "masked"), ("left", "masked"), ("right", "unmasked"), ("left", "unmasked"))
"""Side of the padding, and whether attention is masked; the first is what the paper's text says."""

FLOOR = 1e-16  # where figures on a logarithmic axis draw a distance of nothing
STABLE = 1e-9  # cosine distances above this are drift; float32 rounding stays far below


def names_of(drifts: Drifts) -> list[str]:
    """Names each result by its model's folder, and by its file too where folders have the same name."""
    names = [PurePath((result.get("source") or {}).get("model") or file).name for file, result in drifts]
    return [
        name if names.count(name) == 1 else f"{name} ({file})" for name, (file, _) in zip(names, drifts, strict=True)
    ]


def _trained(result: Drift) -> list[Mapping[str, Any]]:
    return [row for row in result["rows"] if row["weights"] == "trained"]


def farthest(row: Mapping[str, Sequence[float]]) -> float:
    """Returns a row's largest distance over the lengths of padding, of the vector that moves further."""
    return max(max(row[vector]) for vector in VECTORS)


def drift_tables(result: Drift) -> list[pd.DataFrame]:
    """Tabulates, by kind of vector, the largest distance per regime and masking, and the least masking to cure it."""
    notes = [
        f"The largest over all lengths of padding; 0 stands for anything below {STABLE:g}, which is rounding. Cured "
        "by: the first masking that leaves nothing beyond that.",
        "Exact is a third mask in the Mamba layers, after the convolution; unpadded takes padding out of the batch.",
    ]
    head = ("weights", "scan", "convolution", "padding", "attention")
    tables, said = [], {"none": "no drift", None: "nothing"}
    for vector, title in VECTORS.items():
        found, cured = _farthest(result, vector), cures(result, vector)
        rows = [
            (*situation, *map(as_distance, far), said.get(cured[situation], cured[situation]))
            for situation, *far in found.itertuples()
        ]
        tables.append(table(f"Largest cosine distance, {title}", (*head, *MASKINGS, "cured by"), rows, notes))
    return tables


def cures(result: Drift, vector: str) -> dict[tuple[str, ...], str | None]:
    """Returns the least masking without drift of a vector by situation: ``none`` if nothing drifts, None if all do."""
    stable = _farthest(result, vector) < STABLE
    return {situation: next((each for each in MASKINGS if row[each]), None) for situation, row in stable.iterrows()}


def _farthest(result: Drift, vector: str) -> pd.DataFrame:
    """Returns a vector's largest distances: situations as rows, maskings as columns, NaN if not measured."""
    rows = pd.DataFrame(result["rows"])
    rows["far"] = rows[vector].map(max)
    situation = ["weights", "direction", "conv", "side", "attention"]
    return rows.pivot_table("far", situation, "masking", sort=False).reindex(columns=list(MASKINGS))


def as_distance(value: float) -> str:
    """Formats a cosine distance; 0 if it is only rounding."""
    return MISSING if math.isnan(value) else "0" if value < STABLE else f"{value:.2g}"


STRONGLY, HARDLY = 0.1, 0.5  # shares of drift without masks: suppressed up to the first, not above the second
LEAST = 16  # minimum texts for a decision


def of_drifts(claim: Claim, drifts: Drifts) -> Iterator[Verdict]:
    """Yields a verdict for each model and situation."""
    for name, (_, result) in zip(names_of(drifts), drifts, strict=True):
        trained = _trained(result)
        for scan, (side, attention) in product(dict.fromkeys(row["direction"] for row in trained), SITUATIONS):
            where = (scan, side, attention)
            rows = [row for row in trained if (row["direction"], row["side"], row["attention"]) == where]
            papers = where == ("forward", *SITUATIONS[0])
            place = f"{scan} scan, padding {side}, attention {attention}" + ", the paper's setting" * papers
            place += f", {name}" if len(drifts) > 1 else ""
            compared = _compared(claim.rule, {row["masking"]: row for row in rows}, result["texts"])
            group = "the paper's setting" if papers else f"attention {attention}"
            yield replace(verdict_on(claim, place, compared), group=group)


def _compared(claimed: Mapping[str, Any], curves: Mapping[str, Any], texts: int) -> list[Comparison]:
    """Compares the curves of one situation, rows by masking, by a claim's rule; too few texts decide nothing."""
    rule, maskings = claimed["rule"], claimed["maskings"]
    if not set(maskings) <= curves.keys():
        return [Comparison("", None, needs=(("curves of", ", ".join(maskings)),))]
    if rule == "grows":
        compared = _grows(curves["none"])
    else:
        compared = [_by_rule(rule, {masking: farthest(curves[masking]) for masking in maskings})]
    if texts >= LEAST:
        return compared
    return [each._replace(sign=0, value=0, needs=(("texts", f"{LEAST} at least, not {texts}"),)) for each in compared]


def _by_rule(rule: str, far: Mapping[str, float]) -> Comparison:
    """Compares the largest distances of any vector, by masking, by a rule except growth."""
    if rule == "moves":
        sign = 1 if far["none"] > 10 * STABLE else -int(far["none"] <= STABLE)
        need = ("a distance", "farther from rounding")
    elif rule == "suppressed":
        none, both = far.values()
        sign = 0 if none <= STABLE else int(both <= STRONGLY * none) - int(both > HARDLY * none)
        need = ("the paper's definition", 'how much is "strongly"')
    else:
        pre, post, both = (max(each, STABLE) for each in far.values())
        sign = 0 if pre == post == both else 1 if both <= post < pre else -1
        need = ("curves", "farther from rounding")
    if max(far.values()) <= STABLE:
        need = ("a situation", "in which padding moves anything")
    numbers = ", ".join(f"{MASKINGS[masking][0]} {as_distance(distance)}" for masking, distance in far.items())
    return Comparison("", sign, numbers=numbers, needs=(need,))


def _grows(curves: Mapping[str, Sequence[float]]) -> list[Comparison]:
    """Checks by vector whether longer padding always moves it further, or the longest no further than the shortest."""
    signs, ends = [], []
    for kind, title in VECTORS.items():
        _, *distances = curves[kind]
        falls = len(distances) > 1 and distances[-1] <= distances[0]
        rises = len(distances) > 1 and all(less < more for less, more in pairwise(distances))
        signs.append(-1 if falls or max(distances, default=0.0) <= STABLE else int(rises))
        ends.append(f"{title} {as_distance(distances[0])} to {as_distance(distances[-1])}" if distances else "")
    needs = (("curves", "of more lengths or texts"),)
    return [Comparison("", sign, numbers=", ".join(ends), value=sign, needs=needs) for sign in signs]


def farthest_chart(drifts: Drifts) -> str:
    """Draws the largest distance of any vector for trained weights, by masking, with attention masked and not."""
    rows = []
    for name, (_, result) in zip(names_of(drifts), drifts, strict=True):
        about = f"{name}, up to {max(result['lengths']):,} positions"
        for row in _trained(result):
            line = f"{row['direction']} scan, padding {row['side']}\n{about}"
            rows.append({**row, "line": line, "far": farthest(row)})
    least = min((row["far"] for row in rows if row["far"] > STABLE), default=0.1)
    decades = [10.0**power for power in range(math.floor(math.log10(least)) - 1, 1)]
    nothing, lines = decades[0], list(dict.fromkeys(row["line"] for row in rows))
    figure, both = panels((6.4, 2 * (0.6 + 0.42 * len(lines)) + 0.5), 2, 1, sharex=True, sharey=True)
    for axes, attention in zip(both, ("masked", "unmasked"), strict=True):
        for step, (masking, (label, colour, _)) in enumerate(MASKINGS.items()):
            own = [row for row in rows if (row["masking"], row["attention"]) == (masking, attention)]
            heights = [-lines.index(row["line"]) - 0.12 * (step - 2.5) for row in own]
            far = [row["far"] if row["far"] > STABLE else nothing for row in own]
            axes.plot(far, heights, "o", label=label, color=colour, markersize=4.5)
        axes.set_title(f"attention {attention}", color=INK, fontsize="small")
        axes.set_xscale("log")
        axes.set_xticks(decades, ["0", *(f"{decade:g}" for decade in decades[1:])], fontsize="small")
        axes.set_yticks([-height for height in range(len(lines))], lines, fontsize="small")
        with_grid(axes)
    axes.set_xlim(nothing / 2, 3)
    axes.set_xlabel("largest mean cosine distance; 0 is rounding alone", fontsize="small")
    return _with_legend(figure, axes)


def drift_chart(result: Drift) -> str:
    """Draws cosine distance over padding for trained weights, with a row of panels per situation."""
    rows = _trained(result)
    grid = (len(SITUATIONS), len(VECTORS))
    figure, every = panels((7.4, 2.3 * len(SITUATIONS) + 0.5), *grid, sharex=True, sharey=True)
    for (side, attention), line in zip(SITUATIONS, every, strict=True):
        for (vector, name), axes in zip(VECTORS.items(), line, strict=True):
            for row in rows:
                if (row["side"], row["attention"]) == (side, attention):
                    label, colour, style = MASKINGS[row["masking"]]
                    heights = [max(distance, FLOOR) for distance in row[vector]]
                    axes.plot(result["lengths"], heights, style, label=label, color=colour, linewidth=1.6)
            axes.set_title(f"{name}: padding {side}, attention {attention}", color=INK, fontsize="small")
            with_grid(axes, yscale="log", ylim=(FLOOR / 3, 3), xlabel="padded positions", ylabel="cosine distance")
            axes.label_outer()
    return _with_legend(figure, every[0][0])


def _with_legend(figure: Figure, axes: Axes) -> str:
    """Renders a figure as SVG, with the maskings of one of its panels below."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return svg(figure)
