"""`mabert demo` and `mabert bench`: what comes out on this machine."""

import argparse
from pathlib import Path
from typing import Any

from mabert.cli.command import command


def add_demo(commands: Any) -> None:
    """The tour."""
    added = command(commands, "demo", run_demo, "tokenizer, pretraining, fine-tuning and mask filling in a few minutes")
    added.add_argument("--text", nargs="+", metavar="FILE", help="your own text in place of installed documentation")
    added.add_argument("-o", "--output", help="folder for the page and the models [demo-out, demo-out-2, ...]")


def run_demo(options: argparse.Namespace) -> None:
    """`mabert demo`."""
    from mabert.demo import demo

    demo(options.output, options.text)


def add_bench(commands: Any) -> None:
    """Measurements."""
    added = command(commands, "bench", run_bench, "speed beside what people know, both sides in one run")
    added.add_argument(
        "what",
        choices=("ops", "models", "parts", "lengths"),
        help="ops: the two operators; models: MaBERT beside BERT, forward and training step; "
        "parts: where the time of one forward goes; lengths: batches of uneven texts, unpadded and padded",
    )
    added.add_argument(
        "--texts", nargs="+", default=[], metavar="NAME=FILE", help="lengths: those of your own texts as well"
    )
    added.add_argument("--tokenizer", default="bert-base-uncased", help="that counts their tokens [%(default)s]")
    added.add_argument("--quick", action="store_true", help="see that everything runs, in seconds; no numbers to quote")
    added.add_argument("-o", "--output", default="benchmarks/results", help="folder for the JSON rows [%(default)s]")


def run_bench(options: argparse.Namespace) -> None:
    """`mabert bench`."""
    from mabert.bench import lengths, models, operators, parts

    output = Path(options.output)
    if options.what == "lengths":
        lengths.run(options.quick, output, lengths_of_texts(options.texts, options.tokenizer))
        return
    measure = {"ops": operators.run, "models": models.run, "parts": parts.run}[options.what]
    result = measure(quick=options.quick, output=output)
    if options.what == "models":
        from mabert.bench.results import path_of
        from mabert.report.figures import on_paper
        from mabert.report.speed import speed_chart

        chart = path_of(result, output, "models", ".svg")
        chart.write_text(on_paper(speed_chart(result)), encoding="utf-8")


def lengths_of_texts(named: list[str], tokenizer: str) -> dict[str, list[int]]:
    """Tokens of each text of each file, [CLS] and [SEP] included."""
    from mabert.data.tokenizer import load_tokenizer
    from mabert.infer.texts import read_texts

    found = {}
    for pair in named:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise ValueError(f"--texts is {pair!r}; it must be NAME=FILE, such as imdb=reviews.jsonl")
        counts = load_tokenizer(tokenizer)(read_texts(file), return_length=True)["length"]
        found[name] = [int(count) for count in counts]
    return found
