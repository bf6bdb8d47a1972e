"""What came out of a conversion: lines for a terminal, and one page."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mabert_lab.report.figures import COLOURS, INK, line_chart, plain, svg
from mabert_lab.report.page import figure, numbers, page, table

KINDS = {"T": (COLOURS[0], "attention"), "M": (COLOURS[1], "Mamba")}
"""A layer's letter to its colour and what it is."""

ASKED = {"encoder": "embed", "masked_lm": "fill-mask", "classifier": "predict"}
"""What a model is for to the command that asks it."""

FIGURES = {"cosine": "cosine", "cosine_p10": "tenth percentile", "neighbours": "neighbour found", "order": "word order"}
"""Names of what is measured in a band of lengths to headings."""

PARTS = {
    "encoder": ("hidden states", "vectors", "vectors among each other"),
    "masked_lm": ("hidden states", "answers"),
    "classifier": ("hidden states", "answers"),
}
"""What the losses of the second stage are of, by what a model is for."""

STAGES = {
    "align": (
        "Each core by itself",
        "From the teacher's own hidden states, each core learns to say what the attention in its place says. The loss "
        "is the share of that attention's variance which the core leaves unexplained: 1 is no better than a constant.",
    ),
    "end_to_end": (
        "All layers together",
        "The whole student learns to end where its teacher ends. The losses are weighted as they are added up.",
    ),
}
"""A stage to its heading, and to what is learnt in it."""

MEANINGS = (
    ("cosine", "how alike the two models' vectors of a text are: 1 is the same direction, 0 nothing in common"),
    ("tenth percentile", "nine texts of ten agree better than this"),
    ("neighbour found", "for how many texts the nearest other text is the same by both: what search feels"),
    ("word order", "whether the student feels a text's words in another order where its teacher does: 1 is alike"),
    ("same answer", "how often both heads answer the same; of a regression, the correlation"),
    ("floor", "the teacher with the attention of the converted layers held at its mean: what one gets for nothing"),
    ("importance", "the share of the last hidden states' variance that is lost when that attention is held so"),
    ("unexplained", "the share of the teacher's variance that the student does not explain: 0 is all explained"),
)
"""What the words of the page mean."""


def render(result: dict[str, Any]) -> str:
    """The result as one self-contained page.

    Args:
        result: The content of a conversion's `result.json`.
    """
    return page(f"{result['request']['teacher']}, converted to a MaBERT", parts(result))


def parts(result: dict[str, Any]) -> Iterator[str]:
    """The page, part by part."""
    request, outcome = result["request"], result["outcome"]
    pattern, bands = outcome["pattern"], outcome["agreement"]["bands"]
    learnt = sum(stage["tokens"] for stage in outcome["stages"].values())
    yield f"<h1>{escape(request['teacher'])}, converted to a MaBERT</h1>"
    yield (
        f'<p class="lead">Of its {len(pattern)} layers, {pattern.count("M")} have Mamba cores '
        f"({escape(request['direction'])}) where they had attention. The student learnt in "
        f"{result['seconds'] / 60:.1f} minutes from {learnt:,} tokens of {escape(', '.join(request['texts']))} to say "
        "what its teacher says. All agreement is measured on text that it did not learn from.</p>"
    )
    if bands:
        shown = (("student", "cosine"), ("floor", "cosine"), ("student", "neighbours"), ("floor", "neighbours"))
        means = [weighted(bands, who, what) for who, what in shown]
        cosine, least, found, by_chance = means
        yield numbers(
            (
                (f"{cosine:.3f}", f"cosine to the teacher (floor {least:.3f})"),
                (f"{found:.0%}", f"nearest neighbours found (floor {by_chance:.0%})"),
            )
        )
    yield from layers_part(outcome)
    yield from agreement_part(bands)
    if request["length"] > outcome["teacher_reads"]:
        yield (
            f"<p>Texts of more than {outcome['teacher_reads']:,} tokens are compared with the mean over the teacher's "
            f"windows of {outcome['teacher_reads']:,} tokens, which overlap by half.</p>"
        )
    yield from learning_part(outcome["stages"], outcome["use"])
    yield "<h2>Use it</h2>"
    command = f"mabert {ASKED[outcome['use']]} FOLDER texts.txt"
    yield f"<p>FOLDER is where this page lies, and texts.txt has a text a line.</p><pre><code>{command}</code></pre>"
    yield "<h2>What the words mean</h2>"
    yield table(("word", "meaning"), MEANINGS)


def weighted(bands: dict[str, Any], who: str, what: str) -> float:
    """The mean of a figure over all texts."""
    total = sum(told["texts"] for told in bands.values())
    return float(sum(told["texts"] * told[who][what] for told in bands.values()) / total)


def layers_part(outcome: dict[str, Any]) -> Iterator[str]:
    """Which layers were converted, how much their attention matters, and what each explains."""
    pattern, lost, layers = outcome["pattern"], outcome["importance"], outcome["agreement"]["layers"]
    yield "<h2>Which layers were converted</h2>"
    yield (
        "<p>A box a layer, the first on the left: T keeps attention, M has a Mamba core. The bar is the importance of "
        "the attention that the teacher has there.</p>"
    )
    yield figure(
        schedule_chart(pattern, lost), f"The schedule {pattern}, with the importance of each layer's attention"
    )
    rows = [
        (number, KINDS[letter][1], f"{share:.3f}", "" if core is None else f"{core:.3f}", f"{hidden:.3f}")
        for number, (letter, share, core, hidden) in enumerate(
            zip(pattern, lost, layers["core"], layers["hidden"], strict=True), 1
        )
    ]
    yield table(("layer", "kind", "importance", "unexplained by its core", "unexplained behind it"), rows)


def agreement_part(bands: dict[str, Any]) -> Iterator[str]:
    """Agreement by length, beside the floor."""
    yield "<h2>Agreement with the teacher, by length of text</h2>"
    if not bands:
        yield "<p>Too little text was held out to compare the two.</p>"
        return
    yield figure(bands_chart(bands), "Cosine to the teacher and nearest neighbours found, by tokens, beside the floor")
    heads = dict(FIGURES)
    if any("answers" in told["student"] for told in bands.values()):
        heads["answers"] = "same answer"
    rows = [
        (band if who == "student" else "", told["texts"] if who == "student" else "", who, *written(told[who], heads))
        for band, told in bands.items()
        for who in ("student", "floor")
    ]
    yield table(("tokens", "texts", "", *heads.values()), rows)


def written(told: dict[str, float], names: dict[str, str]) -> list[str]:
    """Figures in three places."""
    return [f"{told[name]:.3f}" for name in names]


def learning_part(stages: dict[str, Any], use: str) -> Iterator[str]:
    """Curves of the losses, a stage a figure."""
    yield "<h2>How it learnt</h2>"
    for name, (title, told) in STAGES.items():
        if name in stages:
            stage = stages[name]
            yield (
                f"<p><b>{title}</b>: {stage['steps']:,} steps, {stage['tokens']:,} tokens, "
                f"{stage['seconds'] / 60:.1f} minutes. {told}</p>"
            )
            history = [entry for entry in stage["history"] if entry.get("parts")]
            if len(history) > 1:
                chart = line_chart(curves(history, PARTS[use] if name == "end_to_end" else ()), "step", "loss")
                yield figure(chart, f"{title}: loss against step")
            else:
                yield "<p>It was too short for a curve.</p>"


def curves(history: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Lines of losses against steps: by name where there are as many names; else the mean and the extremes."""
    steps = [float(entry["step"]) for entry in history]
    rows = [[float(part) for part in entry["parts"].split()] for entry in history]
    if len(names) == len(rows[0]):
        return {name: (steps, [row[place] for row in rows]) for place, name in enumerate(names)}
    found = {"mean of the cores": (steps, [sum(row) / len(row) for row in rows])}
    if len(rows[0]) > 1:
        found |= {"worst core": (steps, [max(row) for row in rows]), "best core": (steps, [min(row) for row in rows])}
    return found


def schedule_chart(pattern: str, lost: Sequence[float]) -> str:
    """A row of boxes, one a layer, with a bar on each for the importance of its attention, as SVG."""
    drawing = Figure(figsize=(6.4, 2.4), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for place, (letter, share) in enumerate(zip(pattern, lost, strict=True)):
        colour, _ = KINDS[letter]
        above.bar(place, share, width=0.7, color=colour)
        below.add_patch(Rectangle((place - 0.42, 0), 0.84, 1, facecolor=colour, edgecolor=INK, linewidth=0.8))
        below.text(place, 0.5, letter, color="white", ha="center", va="center", weight="bold")
    above.set_ylabel("importance")
    above.set_ylim(bottom=0)
    above.tick_params(bottom=False)
    plain(above)
    below.set_xlim(-0.6, len(pattern) - 0.4)
    below.set_ylim(-0.05, 1.05)
    below.set_yticks([])
    below.set_xticks(range(len(pattern)), map(str, range(1, len(pattern) + 1)))
    below.tick_params(bottom=False)
    below.spines[:].set_visible(False)
    below.set_xlabel("layer")
    return svg(drawing)


def bands_chart(bands: dict[str, Any]) -> str:
    """Bars of student and floor side by side, a band of lengths a group, as SVG."""
    drawing = Figure(figsize=(6.4, 2.8), layout="constrained")
    shown = {"cosine": "cosine to the teacher", "neighbours": "nearest neighbours found"}
    for axes, (what, title) in zip(drawing.subplots(1, 2), shown.items(), strict=True):
        for shift, who, colour in ((-0.2, "student", COLOURS[0]), (0.2, "floor", "#b9c2c9")):
            places = [place + shift for place in range(len(bands))]
            axes.bar(places, [told[who][what] for told in bands.values()], width=0.38, color=colour, label=who)
        axes.set_xticks(range(len(bands)), bands)
        axes.set_xlabel("tokens of a text")
        axes.set_title(title, fontsize=10)
        axes.set_ylim(top=1)
        plain(axes)
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return svg(drawing)
