"""`mabert convert` and `mabert export`."""

import argparse
import re
from pathlib import Path
from typing import Any

from mabert.bounds import BATCH, EXPANSION, LONGEST, SEED, SHARE, TO_LEARN
from mabert.cli.command import command, load_libraries, say, within
from mabert.machine.processes import ended_as_interrupted, keep_freed_memory

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def add_convert(commands: Any) -> None:
    """Conversion."""
    added = command(commands, "convert", run_convert, "convert an encoder that you have to a MaBERT")
    added.add_argument("teacher", help="model folder or hub name: BERT, DistilBERT, RoBERTa, ELECTRA, ModernBERT, ...")
    added.add_argument("-o", "--output", required=True, help="folder to write the MaBERT to, ready to use")
    added.add_argument("--text", nargs="+", required=True, help="files, folders or hub data sets to learn from")
    added.add_argument("--text-column", default="text", help="column of a table that holds the text [%(default)s]")
    added.add_argument("--pair-column", metavar="NAME", help="column of the second text, in tables of pairs")
    added.add_argument(
        "--pairs",
        action=argparse.BooleanOptionalAction,
        help="whether a classifier reads pairs of texts [what its folder says, else both are learnt]",
    )
    added.add_argument(
        "--pattern",
        default="auto",
        help="layers: letters M (Mamba) and T (attention), repeated to the teacher's depth; auto measures which "
        "attention layers matter most and keeps those [%(default)s]",
    )
    added.add_argument(
        "--tokens",
        type=tokens,
        action=within(TO_LEARN),
        default=2_000_000,
        help="number of tokens to learn from, such as 400K or 6M [2M]",
    )
    added.add_argument(
        "--length",
        type=int,
        action=within(LONGEST),
        default=512,
        help="tokens of the longest text that the MaBERT reads; may be more than the teacher's [%(default)s]",
    )
    added.add_argument(
        "--direction",
        choices=("forward", "backward", "bidirectional"),
        default="bidirectional",
        help="direction in which the Mamba cores read [%(default)s]",
    )
    added.add_argument(
        "--expand",
        type=float,
        action=within(EXPANSION),
        default=2,
        help="channels of a Mamba core, as a multiple of the width [%(default)s]",
    )
    added.add_argument(
        "--end-to-end",
        type=float,
        action=within(SHARE),
        metavar="SHARE",
        default=0.25,
        help="share of the tokens that trains the whole model, after the cores [%(default)s]",
    )
    added.add_argument(
        "--batch-tokens",
        type=int,
        action=within(BATCH),
        default=512,
        help="most tokens of a step; small steps learn the most from each token, large ones keep a GPU busy "
        "[%(default)s]",
    )
    added.add_argument(
        "--precision", choices=("auto", "fp32", "bf16"), default="auto", help="precision of training [%(default)s]"
    )
    added.add_argument("--seed", type=int, action=within(SEED), default=0, help="seed of the run [%(default)s]")
    added.add_argument("--delta", action="store_true", help="save the cores alone, a few MB; loading adds the teacher")
    added.add_argument("--resume", action="store_true", help="continue the conversion in the folder")


def tokens(text: str) -> int:
    """Parses `2M`, `400K` or `2000000` as a number."""
    said = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMB]?)", text.strip().upper())
    if said is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens such as 400K, 2M or 2000000")
    return round(float(said[1]) * UNITS[said[2]])


def run_convert(options: argparse.Namespace) -> None:
    """`mabert convert`."""
    from mabert.files.places import find
    from mabert.train.run import RunFolder

    RunFolder(options.output).check({}, options.resume)
    options.teacher = find(options.teacher)
    load_libraries()
    from mabert.conversion.run import convert

    keep_freed_memory()
    with ended_as_interrupted():
        result = convert(
            options.teacher,
            options.text,
            options.output,
            resume=options.resume,
            text_column=options.text_column,
            pair_column=options.pair_column,
            pairs=options.pairs,
            pattern=options.pattern,
            tokens=options.tokens,
            length=options.length,
            direction=options.direction,
            expand=options.expand,
            end_to_end=options.end_to_end,
            precision=options.precision,
            seed=options.seed,
            batch_tokens=options.batch_tokens,
            delta=options.delta,
        )
    if result:
        for line in options.draw("convert", result, Path(options.output)):
            say(line)
        say(f"{options.output}: a MaBERT, ready to use")


def add_export(commands: Any) -> None:
    """Export."""
    added = command(
        commands, "export", run_export, "write a model in float32 as ONNX, for OpenVINO, or for torch alone"
    )
    added.add_argument("model", help="model folder or hub name: MaBERT, BERT, RoBERTa, ...")
    added.add_argument("-o", "--output", required=True, help="folder to write: the graph, configuration and tokenizer")
    added.add_argument("--to", choices=("onnx", "openvino", "torch"), default="onnx", help="format [%(default)s]")


def run_export(options: argparse.Namespace) -> None:
    """`mabert export`."""
    from mabert.files.places import find

    options.model = find(options.model)
    load_libraries()
    from mabert.exporting import export

    written = export(options.model, options.output, options.to)
    say(f"{written.file}: {written.runtime} and PyTorch differ by {written.difference:.1e} of the largest output")
