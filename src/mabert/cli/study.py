"""`mabert study`: questions about the model, answered by many runs of it."""

import argparse
from pathlib import Path
from typing import Any

from mabert.cli.command import command, say


def add_study(commands: Any) -> None:
    """Studies."""
    added = command(commands, "study", run_study, "drift: how far padding moves a text's vector, by masking")
    added.add_argument("what", choices=("drift",))
    added.add_argument("model", help="model folder or hub name")
    source = added.add_argument_group("texts: the CoLA dev set, or your own")
    source.add_argument("--data", default="hub:nyu-mll/glue", help="GLUE folder in the official layout [%(default)s]")
    source.add_argument("--texts", metavar="FILE", help="a text a line, or .jsonl, .tsv, .csv, .parquet")
    source.add_argument("--text-column", default="text", help="where a table has the text [%(default)s]")
    source.add_argument("--limit", type=int, default=32, help="texts at most, spread over the file [%(default)s]")
    added.add_argument("-o", "--output", default="drift", help="folder for JSON, figure and table [%(default)s]")


def run_study(options: argparse.Namespace) -> None:
    """`mabert study drift`."""
    from mabert.bench.results import path_of, write
    from mabert.data.glue import load_glue
    from mabert.infer.load import check_at_least_one, load_for_use
    from mabert.infer.texts import read_texts
    from mabert.model.load import load_config
    from mabert.report.drift import drift_chart, drift_table
    from mabert.report.figures import on_paper
    from mabert.study.drift import NOISE, cures, drift

    check_at_least_one(limit=options.limit)
    load_config(options.model)  # the masks that are compared are MaBERT's
    loaded = load_for_use("encoder", options.model)
    if options.texts is None:
        texts = list(load_glue("cola", options.data, ["validation"])["validation"]["text_a"])
    else:
        texts = read_texts(options.texts, options.text_column)
    encoded = loaded.encode(texts[:: max(1, len(texts) // options.limit)][: options.limit], truncate=True)
    result = drift(loaded.model.cpu(), [item["input_ids"] for item in encoded], loaded.tokenizer.pad_token_id)
    result["source"] = {"texts": options.texts or f"cola validation of {options.data}", "model": str(options.model)}
    folder = Path(options.output)
    written = write(result, folder, "drift")
    path_of(result, folder, "drift", ".svg").write_text(on_paper(drift_chart(result)), encoding="utf-8")
    path_of(result, folder, "drift", ".md").write_text(drift_table(cures(result), NOISE), encoding="utf-8")
    say(f"{written.with_suffix('')}: .json, .svg and .md, {len(encoded)} texts, {len(result['rows'])} regimes")
