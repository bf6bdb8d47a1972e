"""`mabert embed`, `predict` and `fill-mask`: a model on a person's texts; and `mabert info`, about the model itself."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mabert.cli.command import command, say_written
from mabert.data.batches import TOKENS_A_BATCH


def add_embed(commands: Any) -> None:
    """Vectors."""
    added = command(commands, "embed", run_embed, "a vector a text")
    add_texts(added)
    added.add_argument("--pooling", default="mean", help="mean, cls, or a classifier's map [%(default)s]")
    added.add_argument("--normalize", action="store_true", help="scale each vector to length one")


def add_texts(added: argparse.ArgumentParser) -> None:
    """What every command on texts takes."""
    added.add_argument("model", help="model folder or hub name")
    added.add_argument("input", nargs="?", help="a text a line, or .jsonl, .tsv, .csv, .parquet; default, stdin")
    added.add_argument("-o", "--output", help="file to write; default, JSONL on standard output")
    added.add_argument("--text-column", default="text", help="where a table has the text [%(default)s]")
    added.add_argument("--jsonl", action="store_true", help="standard input, or what is no table by its name, is JSONL")
    added.add_argument("--max-length", type=int, help="tokens of a text [all the model takes]")
    added.add_argument("--truncate", action="store_true", help="cut longer texts")
    added.add_argument("--batch-tokens", type=int, default=TOKENS_A_BATCH, help="padded tokens a batch [%(default)s]")
    added.add_argument(
        "--deterministic", action="store_true", help="each text by itself: the same bits whatever else is in the file"
    )


def texts_of(options: argparse.Namespace) -> list[str]:
    """The texts, of a table those in its text column."""
    from mabert.infer.texts import read_texts

    return read_texts(options.input, options.text_column, jsonl=options.jsonl)


def check_use(options: argparse.Namespace, suffixes: Sequence[str]) -> None:
    """What can be wrong without the texts, found before they are read: standard input may be a person typing."""
    from mabert.baselines.load import load_config
    from mabert.infer.load import check_at_least_one
    from mabert.infer.write import check_output

    numbers = {"--batch-tokens": options.batch_tokens, "--top": getattr(options, "top", 1)}
    check_at_least_one(**numbers)
    check_output(options.output, suffixes)
    load_config(options.model)


def how_to_encode(options: argparse.Namespace) -> dict[str, Any]:
    """The options of texts as arguments of the functions that take them."""
    return {
        "max_length": options.max_length,
        "truncate": options.truncate,
        "batch_tokens": options.batch_tokens,
        "deterministic": options.deterministic,
    }


@contextmanager
def naming_truncate() -> Iterator[None]:
    """Says which option cuts texts that are too long."""
    from mabert.data.encode import TextsTooLongError

    try:
        yield
    except TextsTooLongError as error:
        raise TextsTooLongError(f"{error} by --truncate") from error


def run_embed(options: argparse.Namespace) -> None:
    """`mabert embed`."""
    from mabert.infer.embed import embed
    from mabert.infer.write import write_vectors

    check_use(options, (".jsonl", ".npy"))
    texts = texts_of(options)
    with naming_truncate():
        vectors = embed(
            options.model, texts, pooling=options.pooling, normalize=options.normalize, **how_to_encode(options)
        )
    write_vectors(vectors, options.output)
    say_written(options.output, f"{len(vectors):,} vectors of {vectors.shape[1]} numbers")


def add_predict(commands: Any) -> None:
    """Labels."""
    added = command(commands, "predict", run_predict, "a label a text or pair of texts, from a fine-tuned model")
    add_texts(added)
    added.add_argument("--pair-column", help="where a table has the second text of a pair")


def run_predict(options: argparse.Namespace) -> None:
    """`mabert predict`."""
    from mabert.infer.predict import predict
    from mabert.infer.texts import read_pairs
    from mabert.infer.write import write_rows

    check_use(options, (".jsonl",))
    columns: dict[str, list[str]] = {}
    if options.pair_column is None:
        columns["text"] = texts_of(options)
    else:
        columns["text"], columns["pair"] = read_pairs(
            options.input, options.text_column, options.pair_column, jsonl=options.jsonl
        )
    with naming_truncate():
        answers = predict(options.model, columns["text"], columns.get("pair"), **how_to_encode(options))
    texts = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_rows(({**text, **answer} for text, answer in zip(texts, answers, strict=True)), options.output)
    say_written(options.output, f"{len(texts):,} rows")


def add_fill_mask(commands: Any) -> None:
    """Masks."""
    added = command(commands, "fill-mask", run_fill_mask, "the likeliest tokens behind each [MASK]")
    add_texts(added)
    added.add_argument("--top", type=int, default=5, help="guesses a mask [%(default)s]")


def run_fill_mask(options: argparse.Namespace) -> None:
    """`mabert fill-mask`."""
    from mabert.infer.fill import fill_mask
    from mabert.infer.write import write_rows

    check_use(options, (".jsonl",))
    texts = texts_of(options)
    with naming_truncate():
        guesses = fill_mask(options.model, texts, top=options.top, **how_to_encode(options))
    write_rows([{"text": text, "masks": masks} for text, masks in zip(texts, guesses, strict=True)], options.output)
    say_written(options.output, f"{len(texts):,} rows")


def add_info(commands: Any) -> None:
    """Facts."""
    added = command(commands, "info", run_info, "layers, parameters by part and memory of a model")
    added.add_argument("model", help="model folder or hub name")


def run_info(options: argparse.Namespace) -> None:
    """`mabert info`."""
    from mabert.infer.info import info
    from mabert.infer.write import show_info

    show_info(info(options.model))
