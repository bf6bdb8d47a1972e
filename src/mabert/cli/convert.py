"""`mabert convert` and `mabert export`."""

import argparse
from pathlib import Path
from typing import Any

from mabert.cli.command import add_field, command, load_libraries, say
from mabert.conversion.recipe import ConversionRecipe
from mabert.files.places import find
from mabert.machine.processes import ended_as_interrupted, keep_freed_memory
from mabert.train.folder import RunFolder

FIELDS = {
    "pattern": "layers: letters M (Mamba) and T (attention), repeated to the teacher's depth; auto measures which "
    "attention layers matter most and keeps those",
    "tokens": "number of tokens to learn from, such as 400K or 6M [2M]",
    "length": "tokens of the longest text that the MaBERT reads; may be more than the teacher's",
    "direction": "direction in which the Mamba cores read",
    "expand": "channels of a Mamba core, as a multiple of the width",
    "end_to_end": "share of the tokens that trains the whole model, after the cores",
    "batch_tokens": "most tokens of a step; small steps learn the most from each token, large ones keep a GPU busy",
    "precision": "precision of training",
    "seed": "seed of the run",
    "delta": "save the cores alone, a few MB; loading adds the teacher",
}
"""Options of `ConversionRecipe`'s fields, with their help."""


def add_convert(commands: Any) -> None:
    """Conversion."""
    added = command(commands, "convert", run_convert, "convert an encoder that you have to a MaBERT")
    added.add_argument("teacher", help="model folder or hub name: BERT, DistilBERT, RoBERTa, ELECTRA, ModernBERT, ...")
    added.add_argument("-o", "--output", required=True, help="folder to write the MaBERT to, ready to use")
    added.add_argument("--text", nargs="+", required=True, help="files, folders or hub data sets to learn from")
    added.add_argument("--text-column", default="text", help="column of a table that holds the text [%(default)s]")
    added.add_argument("--pair-column", metavar="NAME", help="column of the second text, in tables of pairs")
    pairs = "whether a classifier reads pairs of texts [what its folder says, else both are learnt]"
    added.add_argument("--pairs", action=argparse.BooleanOptionalAction, help=pairs)
    for name, text in FIELDS.items():
        add_field(added, ConversionRecipe, name, text)
    added.add_argument("--resume", action="store_true", help="continue the conversion in the folder")


def run_convert(options: argparse.Namespace) -> None:
    """`mabert convert`."""
    RunFolder(options.output, options.resume).check({})
    options.teacher = find(options.teacher)
    load_libraries()
    from mabert.conversion.agreement import in_words
    from mabert.conversion.convert import convert

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
            **{name: getattr(options, name) for name in FIELDS},
        )
    if result:
        for line in in_words(result["outcome"]["agreement"]):
            say(line)
        for line in options.draw("convert", result, Path(options.output)):
            say(line)
        say(f"{options.output}: a MaBERT, ready to use")


def add_export(commands: Any) -> None:
    """Export."""
    about = "write a model in float32 as ONNX, for OpenVINO, or for torch alone"
    added = command(commands, "export", run_export, about)
    added.add_argument("model", help="model folder or hub name: MaBERT, BERT, ModernBERT, DeBERTa, ...")
    added.add_argument("-o", "--output", required=True, help="folder to write: the graph, configuration and tokenizer")
    added.add_argument("--to", choices=("onnx", "openvino", "torch"), default="onnx", help="format [%(default)s]")


def run_export(options: argparse.Namespace) -> None:
    """`mabert export`."""
    options.model = find(options.model)
    load_libraries()
    from mabert.exporting import export

    written = export(options.model, options.output, options.to)
    say(f"{written.file}: {written.runtime} and PyTorch differ by {written.difference:.1e} of the largest output")
