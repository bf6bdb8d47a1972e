"""`mabert export`: exports a model for runtimes without this package."""

import argparse
from typing import Any

from mabert.cli.command import command, load_libraries, say


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
