"""The page of a conversion's results."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.patches import Rectangle

from mabert_lab.report.charts import COLOURS, INK, Figure, line_chart, panels, svg, with_grid
from mabert_lab.report.document import from_template, table

LAYERS = {"T": (COLOURS[0], "attention"), "M": (COLOURS[1], "Mamba")}  # colour and meaning of a layer's letter

FIGURES = {"cosine": "cosine", "cosine_p10": "tenth percentile", "neighbours": "neighbour found", "order": "word order"}
"""Headings of the measures within a band of lengths."""

PARTS = {
    "encoder": ("hidden states", "vectors", "vectors among each other"),
    "masked_lm": ("hidden states", "answers"),
    "classifier": ("hidden states", "answers"),
}
"""Names of the second stage's losses by the model's use."""


def render(result: dict[str, Any]) -> str:
    """Renders the content of a conversion's `result.json` as one self-contained page."""
    outcome = result["outcome"]
    bands, layers = outcome["agreement"]["bands"], outcome["agreement"]["layers"]
    columns = zip(outcome["pattern"], outcome["importance"], layers["core"], layers["hidden"], strict=True)
    rows = [
        (number, LAYERS[letter][1], f"{share:.3f}", "" if core is None else f"{core:.3f}", f"{hidden:.3f}")
        for number, (letter, share, core, hidden) in enumerate(columns, 1)
    ]
    heads = FIGURES | ({"answers": "same answer"} if any("answers" in own["student"] for own in bands.values()) else {})
    by_length = [
        (band, own["texts"], who, *(f"{own[who][name]:.3f}" for name in heads))
        for band, own in bands.items()
        for who in ("student", "floor")
    ]
    losses = {}
    for name, stage in outcome["stages"].items():
        history = [entry for entry in stage["history"] if entry.get("parts")]
        if len(history) > 1:
            drawn = curves(history, PARTS[outcome["use"]] if name == "end_to_end" else ())
            losses[name] = Figure(line_chart(drawn, "step", "loss"), "Loss against step")
    return from_template(
        "conversion.html",
        title=f"{result['request']['teacher']}, converted to a MaBERT",
        result=result,
        weighted=weighted,
        schedule=schedule(outcome["pattern"], outcome["importance"]),
        layers=table("", ("layer", "kind", "importance", "unexplained by its core", "unexplained behind it"), rows),
        agreement=agreement(bands) if bands else None,
        by_length=table("", ("tokens", "texts", "who", *heads.values()), by_length),
        losses=losses,
    )


def weighted(bands: dict[str, Any], who: str, what: str) -> float:
    """Averages a figure over all texts."""
    return fmean([own[who][what] for own in bands.values()], [own["texts"] for own in bands.values()])


def curves(history: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Returns lines of losses over steps: one per name if the numbers match, else mean and extremes."""
    steps = [float(entry["step"]) for entry in history]
    rows = [[float(part) for part in entry["parts"].split()] for entry in history]
    if len(names) == len(rows[0]):
        return {name: (steps, [row[place] for row in rows]) for place, name in enumerate(names)}
    found = {"mean of the cores": (steps, [sum(row) / len(row) for row in rows])}
    if len(rows[0]) > 1:
        found |= {"worst core": (steps, list(map(max, rows))), "best core": (steps, list(map(min, rows)))}
    return found


def schedule(pattern: str, lost: Sequence[float]) -> Figure:
    """Draws a row of boxes, one per layer, each with a bar for the importance of its attention."""
    drawing, (above, below) = panels((6.4, 2.4), 2, 1, sharex=True, height_ratios=(3, 1))
    for place, (letter, share) in enumerate(zip(pattern, lost, strict=True)):
        colour, _ = LAYERS[letter]
        above.bar(place, share, width=0.7, color=colour)
        below.add_patch(Rectangle((place - 0.42, 0), 0.84, 1, facecolor=colour, edgecolor=INK, linewidth=0.8))
        below.text(place, 0.5, letter, color="white", ha="center", va="center", weight="bold")
    above.tick_params(bottom=False)
    with_grid(above, ylabel="importance", ylim=(0, None))
    below.set_xticks(range(len(pattern)), map(str, range(1, len(pattern) + 1)))
    below.set(xlim=(-0.6, len(pattern) - 0.4), ylim=(-0.05, 1.05), yticks=[], xlabel="layer")
    below.tick_params(bottom=False)
    below.spines[:].set_visible(False)
    return Figure(svg(drawing), f"The schedule {pattern}, with each layer's importance")


def agreement(bands: dict[str, Any]) -> Figure:
    """Draws bars of student and floor side by side, one group per band of lengths."""
    drawing, both = panels((6.4, 2.8), 1, 2)
    shown = {"cosine": "cosine to the teacher", "neighbours": "nearest neighbours found"}
    for axes, (what, title) in zip(both, shown.items(), strict=True):
        for shift, who, colour in ((-0.2, "student", COLOURS[0]), (0.2, "floor", "#b9c2c9")):
            places = [place + shift for place in range(len(bands))]
            axes.bar(places, [own[who][what] for own in bands.values()], width=0.38, color=colour, label=who)
        axes.set_xticks(range(len(bands)), bands)
        axes.set_title(title, fontsize=10)
        with_grid(axes, xlabel="tokens of a text", ylim=(None, 1))
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return Figure(svg(drawing), "Cosine to the teacher and nearest neighbours found, by tokens")
