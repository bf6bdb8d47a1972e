"""What padding does to a text's vector: the paper's figure, and the tables of regimes."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from mabert_lab.report.figures import INK, plain, svg
from mabert_lab.report.grid import Cell, Grid, missing, words

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre + post (the paper's)", "#2f6f8f", ":"),
    "exact": ("exact", "#5d8a4b", "-"),
    "unpadded": ("unpadded", "#1b2a38", "--"),
}
VECTORS = {"cls": "[CLS]", "mean": "mean of tokens"}
SITUATIONS = (("right", "masked"), ("left", "masked"), ("right", "unmasked"), ("left", "unmasked"))
"""Side of the padding, and whether attention is masked; the first is what the paper's words say."""

STABLE = 1e-9
"""Cosine distance that rounding in float32 stays far below; what lies above is drift."""

_SITUATION = ("weights", "direction", "conv", "side", "attention")
_FLOOR = 1e-16


def drift_chart(result: Mapping[str, Any]) -> str:
    """Cosine distance against padding, trained weights, a row of panels a situation, as SVG.

    Args:
        result: What `mabert study drift` wrote.
    """
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


def drift_grids(result: Mapping[str, Any], name: str) -> list[Grid]:
    """The largest distance in every situation by masking, a table for each kind of vector.

    Args:
        result: What `mabert study drift` wrote.
        name: What the names of the tables begin with.
    """
    head = ("weights", "scan", "convolution", "padding", "attention", *MASKINGS)
    note = f"Largest over all lengths of padding; 0 stands for anything below {STABLE:g}, which is rounding."
    grids = []
    for vector, title in VECTORS.items():
        rows = [
            (*words(*situation), *(_distance(far.get(masking)) for masking in MASKINGS))
            for situation, far in _farthest(result, vector).items()
        ]
        grids.append(Grid(f"{name}-{vector}", f"Largest cosine distance, {title}", head, tuple(rows), (note,)))
    return grids


def truth_grids(result: Mapping[str, Any], name: str) -> list[Grid]:
    """Which regimes drift, and the least that cures each, a table for each kind of vector.

    Args:
        result: What `mabert study drift` wrote.
        name: What the names of the tables begin with.
    """
    head = ("weights", "scan", "convolution", "padding", "attention", "drifts without a mask", "cured by")
    note = "The first of pre, post, pre + post, exact and unpadded that leaves nothing beyond rounding."
    grids = []
    for vector, title in VECTORS.items():
        rows = [
            (*words(*situation), *words("yes" if cure != "none" else "no", "" if cure == "none" else cure or "nothing"))
            for situation, cure in cures(result, vector).items()
        ]
        grids.append(Grid(f"{name}-truth-{vector}", f"Which regime drifts, {title}", head, tuple(rows), (note,)))
    return grids


def cures(result: Mapping[str, Any], vector: str) -> dict[tuple[str, ...], str | None]:
    """The least masking under which a vector does not drift, by situation: weights, direction, conv, side, attention.

    Args:
        result: What `mabert study drift` wrote.
        vector: Of `VECTORS`.

    Returns:
        A name of `MASKINGS`, which are in order; ``none`` where nothing drifts, None where everything does.
    """
    return {
        situation: next((masking for masking in MASKINGS if far.get(masking, 1.0) < STABLE), None)
        for situation, far in _farthest(result, vector).items()
    }


def _farthest(result: Mapping[str, Any], vector: str) -> dict[tuple[str, ...], dict[str, float]]:
    """The largest distance of a vector by situation and masking."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in result["rows"]:
        found.setdefault(tuple(row[key] for key in _SITUATION), {})[row["masking"]] = max(row[vector])
    return found


def _distance(value: float | None) -> Cell:
    if value is None:
        return missing()
    return Cell("0" if value < STABLE else f"{value:.1e}", value=value)
