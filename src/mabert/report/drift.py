"""What padding does to a text's vector: the paper's figure, and the table of regimes."""

from typing import Any

from matplotlib.figure import Figure

from mabert.report.figures import INK, svg

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre + post (the paper's)", "#2f6f8f", ":"),
    "exact": ("exact", "#5d8a4b", "-"),
    "unpadded": ("unpadded", "#1b2a38", "--"),
}
VECTORS = {"cls": "[CLS]", "mean": "mean of tokens"}
SITUATIONS = (("right", "masked"), ("left", "masked"), ("right", "unmasked"))
"""Side of the padding, and whether attention is masked; the first is what the paper's words say."""

_FLOOR = 1e-16


def drift_chart(result: dict[str, Any]) -> str:
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
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    for axes in panels[-1]:
        axes.set_xlabel("padded positions")
    for axes in panels[:, 0]:
        axes.set_ylabel("cosine distance")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return svg(figure)


def drift_table(rows: list[dict[str, Any]], noise: float) -> str:
    """The truth table as Markdown: the largest distance of each regime; what stays below ``noise`` is a dash.

    Args:
        rows: What `mabert.study.drift.cures` returned.
        noise: Distance that is rounding.
    """
    head = ["weights", "scan", "convolution", "padding", "attention", *MASKINGS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row[name] for name in ("weights", "direction", "conv", "side", "attention")]
        cells += ["-" if row[masking] < noise else f"{row[masking]:.1e}" for masking in MASKINGS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
