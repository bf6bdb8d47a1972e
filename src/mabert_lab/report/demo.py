"""The tour's page."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from matplotlib.figure import Figure as Drawing

from mabert_lab.report.conversion import agreement, schedule, weighted
from mabert_lab.report.document import Figure, from_template, table
from mabert_lab.report.figures import COLOURS, line_chart, loss_chart, plain, svg

REGIMES = {
    "unpadded": "as it runs",
    "exact": "padding run, three masks",
    "pre+post": "padding run, the paper's two",
    "none": "padding run, no masks",
}
"""Descriptions of the ways to run a padded text, the default first."""

ROUNDING = 1e-12
"""Changes below this are shown as 0."""

LONGEST = 400
"""Maximum characters of a passage shown."""


def render(result: dict[str, Any]) -> str:
    """Renders what `mabert_lab.demo.tour.demo` returns as one self-contained page."""
    converted, pretraining = "left_out" not in result, result["pretraining"]
    changes = list(accumulate(stage["steps"] for stage in pretraining["stages"]))[:-1]
    there = [regime for regime in REGIMES if any(row["masking"] == regime for row in result["padding"])]
    moved = {name: max(row["moved"] for row in result["padding"] if row["masking"] == name) for name in there}
    described = "; ".join(f"{REGIMES[regime]}: {written(value)}" for regime, value in moved.items())
    tuned = {}
    for name, run in result["fine-tuning"].items():
        scored = [entry for entry in run["history"] if "eval_accuracy" in entry]
        tuned[name] = ([entry["epoch"] for entry in scored], [entry["eval_accuracy"] for entry in scored])
    accuracy = line_chart(tuned, "epoch", "accuracy on unseen sentences", dots=True)
    guesses = [
        ", ".join(f"{each['token']} {each['probability']:.0%}" for each in row["guesses"]) for row in result["masks"]
    ]
    seconds = [(step, f"{took:.0f}") for step, took in (*result["steps"].items(), ("all of it", result["seconds"]))]
    examples = [(row["text"], row["truth"], row["verdict"]) for row in result["examples"]]
    return from_template(
        "demo.html",
        title="An encoder that you know, as a MaBERT" if converted else "From raw text to a fine-tuned MaBERT",
        result=result,
        converted=converted,
        headline=list(headline(result)),
        counted=counted,
        shortened=shortened,
        padding=Figure(padding_chart(moved), described),
        loss=Figure(loss_chart(pretraining["history"], changes), "Loss against step, training and held out"),
        accuracy=Figure(accuracy, "Accuracy against epoch for both"),
        examples=table("", ("sentence", "it is", "verdict"), examples),
        masks=table("", ("text", "guesses"), zip([row["text"] for row in result["masks"]], guesses, strict=True)),
        steps=table("", ("step", "seconds"), seconds),
        **(of_conversion(result["conversion"], result["long"]) if converted else {}),
    )


def of_conversion(told: dict[str, Any], long: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the page says of teacher and student beyond their numbers."""
    lines = {}
    for side in ("student", "teacher", "teacher, mabert's attention"):
        timed = [row for row in told["speed"] if side in row]
        lines[side] = [row["length"] for row in timed], [row[side]["median_ms"] for row in timed]
    (_, ours), (at, theirs), (_, hastened) = lines.values()
    read = [(row["model"], f"{row['tokens']:,}", f"{row['ms']:.0f}", f"{row['cosine']:.3f}") for row in long]
    chart = line_chart(lines, "tokens of a text", "ms", dots=True)
    bands = told["agreement"]["bands"]
    return {
        "schedule": schedule(told["pattern"], told["importance"]),
        "agreement": agreement(bands) if bands else None,
        "long": table("", ("who reads", "tokens", "ms", "cosine to the teacher's whole"), read),
        "took": {"length": at[-1], "student": ours[len(at) - 1], "teacher": theirs[-1], "hastened": hastened[-1]},
        "times": Figure(chart, "Time of a forward against length"),
    }


def shortened(text: str) -> str:
    """Shortens a long passage at a word boundary."""
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " ..."


def headline(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the figures at the top of the page."""
    if "left_out" not in result:
        bands, answers = result["conversion"]["agreement"]["bands"], result["questions"]["answers"]
        if bands:
            yield f"{weighted(bands, 'student', 'cosine'):.3f}", "cosine to the teacher, on text it did not learn from"
        agreed = sum(answer["place"] == 1 for answer in answers)
        yield f"{agreed} of {len(answers)}", "questions with the teacher's answer"
    moved = max(row["moved"] for row in result["padding"] if row["masking"] == "unpadded")
    yield written(moved), "largest change by padding, as it runs"
    if "left_out" in result:
        yield f"{result['pretraining']['held_out_loss']:.2f}", "held-out MLM loss (nats)"
        yield f"{result['fine-tuning']['pretrained']['accuracy']:.1%}", "accuracy, pretrained"
        yield f"{result['fine-tuning']['from scratch']['accuracy']:.1%}", "accuracy, from scratch"


def written(moved: float) -> str:
    """Formats a change with one digit, such as 0.05 or 2e-07; 0 below `ROUNDING`."""
    return f"{moved:.1g}" if moved >= ROUNDING else "0"


def counted(number: int, noun: str) -> str:
    """Formats a count: `1 document`, `1,000 documents`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def padding_chart(moved: dict[str, float]) -> str:
    """Draws a labelled bar for each way of running a padded text, as SVG."""
    drawing = Drawing(figsize=(6.4, 0.5 + 0.4 * len(moved)), layout="constrained")
    axes = drawing.subplots()
    bars = axes.barh(range(len(moved)), list(moved.values()), color=COLOURS[1], height=0.6)
    axes.bar_label(bars, [written(value) for value in moved.values()], padding=4)
    axes.set_yticks(range(len(moved)), [REGIMES[regime] for regime in moved])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(moved.values()) or 1)
    axes.set_xlabel("largest change of a number in a token's vector")
    plain(axes)
    return svg(drawing)
