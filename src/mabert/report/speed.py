"""How fast a whole model is, beside another."""

from typing import Any

from matplotlib.figure import Figure

from mabert.report.figures import COLOURS, INK, svg

NAMES = {"mabert": "MaBERT-base", "bert": "BERT-base, SDPA", "float32": "fp32", "bfloat16": "bf16"}


def speed_chart(result: dict[str, Any]) -> str:
    """Tokens a second against length, one panel a dtype, range as bars, as SVG.

    Args:
        result: What `mabert bench models` wrote.
    """
    rows = [row for row in result["rows"] if row["task"] == "forward"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    figure = Figure(figsize=(3.6 * len(dtypes) + 0.4, 3.2), layout="constrained")
    for dtype, axes in zip(dtypes, figure.subplots(1, len(dtypes), squeeze=False)[0], strict=True):
        for side, colour in zip(("mabert", "bert"), COLOURS, strict=False):
            cells = [row for row in rows if row["dtype"] == dtype and row["side"] == side]
            lengths = [row["length"] for row in cells]
            speeds = [row["tokens_per_second"] for row in cells]
            spread = [
                [speed - 1e3 * row["length"] / row["slowest_ms"] for speed, row in zip(speeds, cells, strict=True)],
                [1e3 * row["length"] / row["fastest_ms"] - speed for speed, row in zip(speeds, cells, strict=True)],
            ]
            axes.errorbar(lengths, speeds, spread, label=NAMES[side], color=colour, marker="o", markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45, fontsize="small")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{NAMES[dtype]}, batch 1", color=INK, fontsize="medium")
        axes.set_xlabel("tokens")
        axes.set_ylabel("tokens a second")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize="small")
    return svg(figure)
