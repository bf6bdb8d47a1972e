"""`mabert embed`, `predict` and `fill-mask` run a model on texts; `mabert info` describes the model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mabert.cli.command import command, complain, load_libraries, number, say_written
from mabert.data import TOKENS_A_BATCH
from mabert.files.places import find
from mabert.files.sentences import POOLINGS, is_for_similarity
from mabert.files.writing import check_output
from mabert.machine import Precision
from mabert.schema.ranges import PassageTokens, Tokens

if TYPE_CHECKING:
    from mabert.infer.answers import TextOptions
    from mabert.infer.model import TextModel
    from mabert.infer.texts import TextRow


GIVEN = ("text", "pair", "question", "context")
ANSWERS = ("label", "labels", "probability", "score", "scores", "entities", "answer", "start", "end")
"""Columns of answers that `predict` writes."""


def add_embed(commands: Any) -> None:
    """Vectors."""
    added = command(commands, "embed", run_embed, "compute a vector for each text")
    add_texts(added)
    pooling = "how token vectors become one: mean, cls, or map from a classifier [as the folder says, else mean]"
    added.add_argument("--pooling", choices=POOLINGS, help=pooling)
    scaled = "scale each vector to length one [as the folder says, else not]"
    added.add_argument("--normalize", action=argparse.BooleanOptionalAction, help=scaled)
    passages = (
        "cut texts, at ends of sentences, into passages of at most so many tokens, special ones included; give each a "
        "vector, and its text's number (from 0), start and end in characters: in the same row, or for v.npy in "
        "v.passages.jsonl"
    )
    added.add_argument("--passages", type=number("--passages", PassageTokens), metavar="TOKENS", help=passages)
    context = (
        "with --passages: read each text whole, and pool each passage's tokens out of that (late chunking) [read each "
        "passage alone]"
    )
    added.add_argument("--context", action="store_true", help=context)


def add_texts(added: argparse.ArgumentParser) -> None:
    """Adds the options of every command on texts."""
    added.add_argument("model", help="model folder or hub name")
    source = "file with one text per line, or .jsonl, .csv, .tsv (without quoting) or .parquet; - is [standard input]"
    added.add_argument("input", nargs="?", help=source)
    output = "file to write; it appears only when it is complete [JSONL on standard output]"
    added.add_argument("-o", "--output", help=output)
    added.add_argument("--text-column", help="column of a table that holds the text [text]")
    added.add_argument("--jsonl", action="store_true", help="read the input as JSONL, whatever its name")
    length = (
        "most tokens of a text [the model's limit; embed: that of its sentence-transformers files; predict: that of "
        "fine-tuning]"
    )
    added.add_argument("--max-length", type=number("--max-length", Tokens), help=length)
    cut = "cut longer texts, instead of stopping at the first one [no; predict: as in fine-tuning, else in windows]"
    added.add_argument("--truncate", action=argparse.BooleanOptionalAction, help=cut)
    size, most = "most tokens of a batch, padding included [%(default)s]", number("--batch-tokens", Tokens)
    added.add_argument("--batch-tokens", type=most, default=TOKENS_A_BATCH, help=size)
    precision = (
        "int8 computes products in 8 bits: faster on a CPU, a little less accurate [the precision of the saved "
        "weights; auto for a fine-tuned model]"
    )
    added.add_argument("--precision", choices=(*get_args(Precision), "int8"), help=precision)
    added.add_argument("--device", help="cpu, cuda or cuda:N [the GPU if there is one]")
    graphs = "run bf16 on a GPU without CUDA graphs, which start all layers at once"
    added.add_argument("--no-graphs", action="store_true", help=graphs)
    alone = "process each text alone, so that its result has the same bits whatever else is in the file"
    added.add_argument("--deterministic", action="store_true", help=alone)
    added.set_defaults(pair_column=None, keep=())  # `predict` has options for these


def opened(options: argparse.Namespace, suffixes: Sequence[str]) -> tuple[TextModel, Iterable[TextRow]]:
    """Returns the model, and an iterable that reads the texts or pairs.

    Options are checked before the model is opened, which takes seconds, and before texts are read, since someone may be
    typing them on standard input.
    """
    check_output(options.output, suffixes)
    options.input = None if options.input == "-" else options.input
    options.model = find(options.model)
    rows = rows_for(options, options.model.heads)
    load_libraries()
    from mabert.infer.model import load

    how = {"precision": options.precision, "device": options.device, "graphs": not options.no_graphs}
    return load(options.model, **how), rows


def rows_for(options: argparse.Namespace, heads: Sequence[str]) -> Iterable[TextRow]:
    """Returns an iterable that reads the texts or pairs for a model that was saved with these heads.

    One that answers questions or tags words also reads the file formats that it is fine-tuned on.
    """
    from mabert.data.entities import CONLL
    from mabert.files import tables
    from mabert.infer.texts import has_words, rows_of_task, text_rows

    reads = "QuestionAnswering" in heads and options.run is run_predict
    tags = "TokenClassification" in heads
    if options.text_column is None and not options.jsonl and options.input is not None:
        path = Path(options.input)
        if reads and tables.format_of(path) == ".json":
            options.pair_column = "context"
            return rows_of_task(path, options.keep)
        if tags and tables.format_of(path) in CONLL and not options.keep:
            return rows_of_task(path)
    if reads:
        options.text_column, options.pair_column = options.text_column or "question", options.pair_column or "context"
    if tags and options.text_column is None and has_words(options.input):
        options.text_column = "tokens"
    how = {"jsonl": options.jsonl, "keep": options.keep, "words": tags}
    return text_rows(options.input, options.text_column, options.pair_column, **how)


def how_of(options: argparse.Namespace) -> TextOptions:
    """Returns how to encode and batch the texts. Shows no progress if it would mix with the answers."""
    from mabert.infer.answers import TextOptions

    return TextOptions(
        options.max_length,
        options.truncate,
        options.batch_tokens,
        options.deterministic,
        progress=options.output is not None or not (sys.stdout.isatty() or errors_join_answers()),
    )


def errors_join_answers() -> bool:
    """Checks whether standard error and standard output go to the same place, as after `2>&1` and under `nohup`."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # one is closed, or not a system file, as in a notebook
        return False


def run_embed(options: argparse.Namespace) -> None:
    """`mabert embed`."""
    if options.context and options.passages is None:
        raise ValueError("--context is for passages; say how long they are by --passages")
    beside = None
    if options.passages is not None and Path(options.output or "").suffix == ".npy":
        beside = str(Path(options.output).with_suffix(".passages.jsonl"))
        check_output(beside, (".jsonl",))
    model, rows = opened(options, (".jsonl", ".npy"))
    from mabert.infer.write import write_passages, write_vectors

    width, how = model.config.hidden_size, how_of(options)
    way = {"pooling": options.pooling, "normalize": options.normalize}
    if options.passages is None:
        answered = model.vectors(rows, how, **way)
        count = write_vectors((vectors for _, vectors in answered), width, options.output)
    else:
        found = model.passage_vectors(rows, how, options.passages, context=options.context, **way)
        count = write_passages(found, width, options.output, beside)
    say_written(options.output, f"{count:,} vectors of {width} numbers")
    say_written(beside, f"text, start and end of {count:,} passages")
    if not is_for_similarity(model.opened.place):
        complain(
            f"{options.model} was never trained to put similar texts near each other; a model that was: minilm, or "
            "what mabert convert sentence-transformers/all-MiniLM-L6-v2 --text FILE -o FOLDER makes"
        )


def add_predict(commands: Any) -> None:
    """Labels."""
    added = command(commands, "predict", run_predict, "predict labels, entities or answers with a fine-tuned model")
    add_texts(added)
    added.add_argument("--pair-column", help="column of a table that holds the second text of a pair")
    keep = "columns of the input to copy to the output, such as an id"
    added.add_argument("--keep", nargs="+", default=[], metavar="COLUMN", help=keep)


def run_predict(options: argparse.Namespace) -> None:
    """`mabert predict`."""
    if taken := sorted({*GIVEN, *ANSWERS} & set(options.keep)):
        raise ValueError(f"--keep has {taken[0]!r}, which is a name in the answers; rename that column")
    if options.input is None and options.keep and Path(options.keep[-1]).is_file():
        raise ValueError(f"--keep has {options.keep[-1]!r}, which is a file; give the file of texts before --keep")
    model, rows = opened(options, (".jsonl",))
    paired = options.pair_column is not None
    reads = model.opened.use == "reader"
    names = (GIVEN[2:] if reads else GIVEN[:2])[: 1 + paired]
    answered = (
        [
            {**getattr(row, "kept", {}), **dict(zip(names, row, strict=True)), **answer}
            for row, answer in zip(*chunk, strict=True)
        ]
        for chunk in model.labels(rows, how_of(options), paired=paired)
    )
    write_answers(answered, options.output)


def write_answers(chunks: Iterable[list[dict[str, Any]]], output: str | None) -> None:
    """Writes rows of answers, and says how many went to a file."""
    from mabert.infer.write import write_rows

    count = write_rows(chunks, output)
    say_written(output, f"{count:,} rows")


def add_fill_mask(commands: Any) -> None:
    """Masks."""
    added = command(commands, "fill-mask", run_fill_mask, "guess the tokens at each [MASK]")
    add_texts(added)
    added.add_argument("--top", type=number("--top", Tokens), default=5, help="guesses for each mask [%(default)s]")


def run_fill_mask(options: argparse.Namespace) -> None:
    """`mabert fill-mask`."""
    model, rows = opened(options, (".jsonl",))
    answered = (
        [{"text": text, "masks": masks} for (text,), masks in zip(*chunk, strict=True)]
        for chunk in model.guesses(rows, how_of(options), top=options.top)
    )
    write_answers(answered, options.output)


def add_info(commands: Any) -> None:
    """Facts."""
    added = command(commands, "info", run_info, "describe a model: layers, parameters by part, memory")
    added.add_argument("model", help="model folder or hub name")


def run_info(options: argparse.Namespace) -> None:
    """`mabert info`."""
    options.model = find(options.model)
    load_libraries()
    from mabert.infer.info import info
    from mabert.infer.write import show_info

    show_info(info(options.model))
