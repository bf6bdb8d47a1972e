"""`mabert ...`: each subcommand reads its arguments, calls one library function and shows what came back."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mabert import __version__
from mabert.data.batches import TOKENS_A_BATCH

BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
        arguments: What follows `mabert` on the command line; default, that of this process.

    Returns:
        0; 2 after bad input, which gets one line; 130 after Ctrl-C.
    """
    options = parse(arguments)
    quiet_libraries()
    try:
        options.run(options)
    except KeyboardInterrupt as stop:
        complain(f"interrupted; {stop}" if str(stop) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has enough, as `head` has; Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, SafetensorError) as error:
        if options.debug:
            raise
        complain(one_line(error))
        return BAD_INPUT
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a recipe's fields may stand anywhere among the options."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    stray = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(options, "fields")]
    if stray:
        top.error(f"unrecognized arguments: {' '.join(stray)}")
    if rest:
        options.fields += rest
    return options


def one_line(error: Exception) -> str:
    """An error as one line, without the errno in front that Python puts there."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename and str(error.filename) not in text:
        text = f"{error.filename}: {text}"
    return " ".join(text.split())


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"mabert: {message}\n")


def quiet_libraries() -> None:
    """Our own progress and messages, without those of the libraries below."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.basicConfig(format="mabert: %(message)s", level=logging.WARNING)
    logging.getLogger("mabert").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="mabert", description="The Transformer-Mamba encoder of the MaBERT paper.")
    top.add_argument("--version", action="version", version=f"mabert {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_demo, add_pretrain, add_finetune, add_embed, add_predict, add_fill_mask, add_info, add_bench):
        add(commands)
    return top


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    """A subcommand with what all of them have."""
    added = commands.add_parser(name, help=text, description=text)
    added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    added.set_defaults(run=run)
    return added


def add_demo(commands: Any) -> None:
    """The tour."""
    added = command(commands, "demo", run_demo, "tokenizer, pretraining, fine-tuning and mask filling in a few minutes")
    added.add_argument("--text", nargs="+", metavar="FILE", help="your own text in place of installed documentation")
    added.add_argument("-o", "--output", help="folder for the page and the models [demo-out, demo-out-2, ...]")


def run_demo(options: argparse.Namespace) -> None:
    """`mabert demo`."""
    from mabert.demo import demo

    demo(options.output, options.text)


def add_pretrain(commands: Any) -> None:
    """Pretraining."""
    added = command(commands, "pretrain", run_pretrain, "masked language modelling from a recipe")
    added.add_argument("recipe", help="a YAML file, or demo, mini or paper")
    added.add_argument("fields", nargs="*", metavar="section.field=value", help="fields in place of the recipe's")
    added.add_argument("-o", "--output", required=True, help="folder of the run")
    added.add_argument(
        "--budget", type=percentage, default=1.0, metavar="N%", help="share of the recipe's steps [100%%]"
    )
    added.add_argument("--resume", action="store_true", help="go on with the run in the folder, as it was asked for")


def percentage(text: str) -> float:
    """`10%` as 0.1."""
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 10%") from None


def run_pretrain(options: argparse.Namespace) -> None:
    """`mabert pretrain`."""
    from mabert.train.pretrain import pretrain
    from mabert.train.recipe import load_recipe, recipe_of_run

    if options.resume:
        recipe = recipe_of_run(options.output, options.fields)
    else:
        recipe = load_recipe(options.recipe, options.fields).at_budget(options.budget)
    result = pretrain(recipe, options.output, resume=options.resume)
    if result:
        from mabert.report.figures import on_paper
        from mabert.report.training import loss_chart, stage_ends

        outcome = result["outcome"]
        chart = loss_chart(outcome["history"], stage_ends(outcome["steps"], result["request"]["stages"]))
        (Path(options.output) / "loss.svg").write_text(on_paper(chart), encoding="utf-8")
        say(
            f"{options.output}: {outcome['steps']} steps, {outcome['tokens']:,} tokens; held-out loss "
            f"{outcome['held_out_loss']:.3f}, accuracy {outcome['held_out_accuracy']:.1%}"
        )


def add_finetune(commands: Any) -> None:
    """Fine-tuning."""
    added = command(commands, "finetune", run_finetune, "a classifier on GLUE or on your own table, over several seeds")
    added.add_argument("model", help="pretrained model: folder or hub name")
    added.add_argument("-o", "--output", required=True, help="folder of the run")
    glue = added.add_argument_group("a GLUE task")
    glue.add_argument("--task", help="cola, sst2, mrpc, qqp, mnli, qnli, rte or stsb")
    glue.add_argument("--data", default="hub:nyu-mll/glue", help="folder in the official layout [%(default)s]")
    table = added.add_argument_group("your own table: CSV, TSV, JSONL or Parquet")
    table.add_argument("--train", metavar="FILE", help="labelled rows")
    table.add_argument("--validation", metavar="FILE", help="labelled rows [a tenth of --train]")
    table.add_argument("--test", metavar="FILE", help="rows to predict")
    table.add_argument("--text-column", default="text", help="[%(default)s]")
    table.add_argument("--pair-column", help="second text of a pair")
    table.add_argument("--label-column", default="label", help="[%(default)s]")
    table.add_argument("--regression", action="store_true", help="labels are numbers")
    how = added.add_argument_group("how")
    how.add_argument("--seeds", type=seed_list, default=[0], help="0-4, or 0,2,7 [0]")
    how.add_argument("--learning-rate", type=float, nargs="+", default=[2e-5], help="several make a grid [2e-5]")
    how.add_argument("--epochs", type=int, help="[10 for CoLA, MRPC and RTE, else 3]")
    how.add_argument("--batch-size", type=int, default=32, help="[%(default)s]")
    how.add_argument("--dropout", type=float, default=0.1, help="[%(default)s]")
    how.add_argument("--max-length", type=int, help="tokens of an example [all the model takes]")
    how.add_argument("--truncate", action="store_true", help="cut longer examples")
    how.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="[%(default)s]")
    how.add_argument(
        "--batches", choices=("length", "random"), default="length", help="of similar length, or mixed [%(default)s]"
    )
    how.add_argument("--select", choices=("last", "best"), default="last", help="which epoch's weights [%(default)s]")
    how.add_argument("--pooling", choices=("map", "attention", "cls", "mean"), help="[the model's]")
    how.add_argument("--from-scratch", action="store_true", help="random weights: the same model without pretraining")
    how.add_argument("--resume", action="store_true", help="keep the seeds that are finished")


def seed_list(text: str) -> list[int]:
    """`0-4` or `0,2,7` as numbers."""
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, dash, last = part.partition("-")
            if dash and int(last) < int(first):
                raise argparse.ArgumentTypeError(f"the range {part!r} runs backwards")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds such as 0-4 or 0,2,7") from None
    return seeds


def run_finetune(options: argparse.Namespace) -> None:
    """`mabert finetune`."""
    from mabert.train.finetune import FinetuneRecipe, finetune

    if (options.task is None) == (options.train is None):
        raise ValueError("name either a GLUE task (--task) or a table of your own (--train)")
    task, splits = load_examples(options)
    recipe = FinetuneRecipe(
        learning_rates=options.learning_rate,
        epochs=options.epochs,
        batch_size=options.batch_size,
        batches=options.batches,
        dropout=options.dropout,
        max_length=options.max_length,
        truncate=options.truncate,
        precision=options.precision,
        select=options.select,
        from_scratch=options.from_scratch,
        pooling=options.pooling,
    )
    names = ("data",) if options.task else ("train", "validation", "test", "text_column", "pair_column", "label_column")
    source = {name: getattr(options, name) for name in names}
    result = finetune(
        options.model, task, splits, options.output, recipe, options.seeds, source=source, resume=options.resume
    )
    for split, metrics in result["outcome"]["scores"].items():
        for metric, score in metrics.items():
            spread = "" if score["std"] is None else f" ± {score['std']:.4f}"
            line = f"{task.name} {split} {metric}: {score['mean']:.4f}{spread}"
            say(f"{line} ({len(options.seeds)} seed{'s' if len(options.seeds) > 1 else ''})")


def load_examples(options: argparse.Namespace) -> tuple[Any, Any]:
    """The task and its examples, from GLUE or from tables."""
    from mabert.data.glue import glue_task, load_glue
    from mabert.data.table import Columns, load_tables

    if options.task is not None:
        return glue_task(options.task), load_glue(options.task, options.data)
    files = {"train": options.train, "validation": options.validation, "test": options.test}
    columns = Columns(options.text_column, options.pair_column, options.label_column)
    named = {split: file for split, file in files.items() if file is not None}
    return load_tables(named, columns, name=Path(options.train).stem.split(".")[0], regression=options.regression)


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
    added.add_argument("--jsonl", action="store_true", help="standard input is JSONL")
    added.add_argument("--max-length", type=int, help="tokens of a text [all the model takes]")
    added.add_argument("--truncate", action="store_true", help="cut longer texts")
    added.add_argument("--batch-tokens", type=int, default=TOKENS_A_BATCH, help="padded tokens a batch [%(default)s]")


def texts_of(options: argparse.Namespace) -> list[str]:
    """The texts, of a table those in its text column."""
    from mabert.infer.texts import read_texts

    return read_texts(options.input, options.text_column, jsonl=options.jsonl)


def check_use(options: argparse.Namespace, suffixes: Sequence[str]) -> None:
    """What can be wrong without the texts, found before they are read: standard input may be a person typing."""
    from mabert.infer.load import check_at_least_one
    from mabert.infer.write import check_output
    from mabert.model.load import load_config

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


def say(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")


def say_written(output: str | None, what: str) -> None:
    """What was written to a file; nothing where the answers themselves went to standard output."""
    if output is not None:
        say(f"{output}: {what}")


def add_bench(commands: Any) -> None:
    """Measurements."""
    added = command(commands, "bench", run_bench, "speed beside what people know, both sides in one run")
    added.add_argument(
        "what",
        choices=("ops", "models", "parts"),
        help="ops: the two operators; models: MaBERT beside BERT, forward and training step; "
        "parts: where the time of one forward goes",
    )
    added.add_argument("--quick", action="store_true", help="see that everything runs, in seconds; no numbers to quote")
    added.add_argument("-o", "--output", default="benchmarks/results", help="folder for the JSON rows [%(default)s]")


def run_bench(options: argparse.Namespace) -> None:
    """`mabert bench`."""
    from mabert.bench import models, operators, parts

    measure = {"ops": operators.run, "models": models.run, "parts": parts.run}[options.what]
    result = measure(quick=options.quick, output=Path(options.output))
    if options.what == "models":
        from mabert.bench.results import path_of
        from mabert.report.figures import on_paper
        from mabert.report.speed import speed_chart

        chart = path_of(result, Path(options.output), "models", ".svg")
        chart.write_text(on_paper(speed_chart(result)), encoding="utf-8")
