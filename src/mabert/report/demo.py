"""The page of the tour."""

from collections.abc import Iterator
from html import escape
from itertools import accumulate
from typing import Any

from mabert.report.figures import line_chart
from mabert.report.page import figure, numbers, page, table
from mabert.report.training import loss_chart


def render(result: dict[str, Any]) -> str:
    """The tour's result as one self-contained page.

    Args:
        result: What `mabert.demo.demo` returns.
    """
    return page("MaBERT: from raw text to a fine-tuned encoder", parts(result))


def parts(result: dict[str, Any]) -> Iterator[str]:
    """The page, part by part."""
    pretraining, tuned = result["pretraining"], result["fine-tuning"]
    source = result["source"] if isinstance(result["source"], str) else ", ".join(result["source"])
    yield "<h1>From raw text to a fine-tuned MaBERT</h1>"
    yield (
        f'<p class="lead">A Transformer-Mamba encoder of {pretraining["parameters"] / 1e6:.1f} million parameters, '
        f"pretrained and fine-tuned on this machine in {result['seconds'] / 60:.1f} minutes, on {escape(source)}: "
        f"{counted(result['documents'], 'document')}, {result['characters'] / 1e6:.1f} million characters.</p>"
    )
    exact = max(row["moved"] for row in result["padding"] if row["masking"] == "exact")
    yield numbers(
        (
            (f"{pretraining['held_out_loss']:.2f}", "held-out MLM loss (nats)"),
            (f"{tuned['pretrained']['accuracy']:.1%}", "accuracy, pretrained"),
            (f"{tuned['from scratch']['accuracy']:.1%}", "accuracy, from scratch"),
            (f"{exact:.0e}", "largest change by padding"),
        )
    )
    yield from pretraining_part(pretraining)
    yield from tuning_part(tuned, result["examples"])
    yield from mask_part(result["masks"])
    yield from padding_part(result["padding"])


def counted(number: int, noun: str) -> str:
    """`1 document`, `1,000 documents`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def pretraining_part(outcome: dict[str, Any]) -> Iterator[str]:
    """The loss curve."""
    windows = " and then of ".join(str(stage["length"]) for stage in outcome["stages"])
    changes = list(accumulate(stage["steps"] for stage in outcome["stages"]))[:-1]
    dotted = " (dotted line)" if changes else ""
    yield "<h2>Pretraining: guessing masked tokens</h2>"
    yield (
        f"<p>{counted(outcome['steps'], 'step')}, {outcome['tokens'] / 1e6:.1f} million tokens, windows of {windows} "
        f"tokens{dotted}. Of held-out masked tokens {outcome['held_out_accuracy']:.1%} are guessed right.</p>"
    )
    yield figure(loss_chart(outcome["history"], changes), "Loss against step, on training and on held-out text")


def tuning_part(tuned: dict[str, Any], examples: list[dict[str, str]]) -> Iterator[str]:
    """Accuracy with and without pretraining, and some verdicts."""
    yield "<h2>Fine-tuning: real sentence or broken word order?</h2>"
    yield "<p>The same model, data and steps twice: from the pretrained weights, and from random ones.</p>"
    lines = {}
    for name, run in tuned.items():
        scored = [entry for entry in run["history"] if "eval_accuracy" in entry]
        lines[name] = ([entry["epoch"] for entry in scored], [entry["eval_accuracy"] for entry in scored])
    chart = line_chart(lines, "epoch", "accuracy on unseen sentences", dots=True)
    yield figure(chart, "Accuracy against epoch for both")
    yield table(("sentence", "it is", "verdict"), ((row["text"], row["truth"], row["verdict"]) for row in examples))


def mask_part(masks: list[dict[str, Any]]) -> Iterator[str]:
    """Guesses behind masks."""
    yield "<h2>Filling masks</h2>"
    yield table(
        ("text", "guesses"),
        (
            (row["text"], ", ".join(f"{guess['token']} {guess['probability']:.0%}" for guess in row["guesses"]))
            for row in masks
        ),
    )


def padding_part(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What padding does under three maskings, and where it is left out."""
    yield "<h2>Padding changes nothing</h2>"
    yield (
        "<p>One sentence, alone and with padding beside it: the largest change of any token's vector, in float32. "
        "Without masks in the Mamba layers a left-padded text drifts; the two masks of the paper leave a rest; with "
        "the third one, after convolution and SiLU, what remains is rounding. Unpadded, which is how the model runs "
        "unless told otherwise, it computes no padding at all.</p>"
    )
    paddings = sorted({row["padding"] for row in rows})
    by_case = {(row["masking"], row["side"], row["padding"]): row["moved"] for row in rows}
    cases = list(dict.fromkeys((row["masking"], row["side"]) for row in rows))
    yield table(
        ("masking", "side", *(f"{padding} padded" for padding in paddings)),
        ((*case, *(f"{by_case[(*case, padding)]:.1e}" for padding in paddings)) for case in cases),
    )
