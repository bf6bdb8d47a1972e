"""`mabert study`: questions about the model, answered by many runs."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from mabert.cli.command import command, complain, load_libraries, number, quoted, say
from mabert.cli.train import seed_list
from mabert.data import GLUE
from mabert.files.places import check_source
from mabert.files.writing import write_text
from mabert.machine.environment import EXTRAS, check_installed
from mabert.schema.ranges import Conversions, Count, Padding

GRIDS = {
    "pattern": "compare schedules of Mamba and Transformer layers",
    "components": "compare models with and without padding-safe masking and mask-aware pooling",
    "pooling": "compare the four poolings",
    "budget": "compare models at shares of the pretraining steps",
    "baselines": "compare MaBERT with other encoders",
}

KEPT = "what is finished is kept; the same command goes on"


def add_study(commands: Any) -> None:
    text = f"run a study: drift, {', '.join(GRIDS)}, or your own grid"
    studies = commands.add_parser("study", help=text, description=text).add_subparsers(required=True, metavar="STUDY")
    add_drift(studies)
    for name, about in GRIDS.items():
        added = command(studies, name, run_grid, about)
        added.set_defaults(study=name)
        add_grid_options(added)
    added = command(studies, "grid", run_grid, "run a study from your own YAML file")
    added.add_argument("study", metavar="FILE", help="YAML file with the fields of recipes/studies/pattern.yaml")
    add_grid_options(added)


def add_drift(studies: Any) -> None:
    added = command(studies, "drift", run_drift, "measure how far padding moves a text's vector under each masking")
    added.add_argument("model", help="model folder or hub name")
    source = added.add_argument_group("texts (the CoLA dev set, or your own)")
    source.add_argument("--data", help=f"folder with GLUE in its official layout [{GLUE}]")
    texts = "file with one text per line, or .jsonl, .tsv, .csv or .parquet"
    source.add_argument("--texts", metavar="FILE", help=texts)
    source.add_argument("--text-column", help="column of a table that holds the text [text]")
    limit = "most texts, spread over the file [%(default)s]"
    source.add_argument("--limit", type=number("--limit", Count), default=32, help=limit)
    padding = "positions of padding beside each text [0 8 32 128 512 1024]"
    added.add_argument("--padding", type=number("--padding", Padding), nargs="+", metavar="N", help=padding)
    alone = "leave out random weights in every direction and convolution, which take six times as long"
    added.add_argument("--trained-only", action="store_true", help=alone)
    output = "folder to write JSON, figure and table to; the same command goes on where it was stopped [%(default)s]"
    added.add_argument("-o", "--output", default="drift", help=output)


def add_grid_options(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "fields", nargs="*", default=[], metavar="section.field=value", help="fields that replace the scale's"
    )
    scale = "size: tiny, mini, small, paper or a YAML file; with --from, convert-tiny or convert [tiny; convert]"
    added.add_argument("--scale", help=scale)
    text = "text to pretrain on, or to convert by [the scale's]"
    added.add_argument("--text", nargs="+", metavar="SOURCE", help=text)
    teacher = "make each arm by converting this encoder, instead of pretraining"
    added.add_argument("--from", dest="teacher", metavar="MODEL", help=teacher)
    conversions = "conversions of each arm, with the seeds 0, 1, ... [the scale's, 5]"
    added.add_argument("--conversions", type=number("--conversions", Conversions), help=conversions)
    added.add_argument("--data", default=GLUE, help="folder with GLUE in its official layout [%(default)s]")
    added.add_argument("--seeds", type=seed_list, help="seeds of fine-tuning [the scale's, 0-4]")
    output = "folder to write; all studies may share it, and the same command continues [%(default)s]"
    added.add_argument("-o", "--output", default="studies", help=output)
    added.add_argument("--dry-run", action="store_true", help="show the cells and which are done; run nothing")


def run_grid(options: argparse.Namespace) -> None:
    """`mabert study pattern` and its like."""
    check_installed(*EXTRAS["lab"])
    from mabert.machine.processes import context
    from mabert_lab.study.grid import check_reach, find_scale, label_of, load_scale, load_study

    check_grid(options)
    find_scale(options.scale)
    study = load_study(options.study)
    check_start(options, study.converts)
    if not options.dry_run:
        context("mabert_lab.study.work")  # imported meanwhile: it takes as long as this process's own imports
    load_libraries()
    from mabert_lab.study.plan import Planner, at_another_precision, emulated_precision

    fields = list(options.fields)
    if options.text:
        place = "convert.texts" if study.converts else "pretrain.data.sources"
        fields.append(f"{place}=[{', '.join(map(quoted, options.text))}]")
    if options.teacher is not None:
        fields.append(f"convert.teacher={quoted(options.teacher)}")
    if options.conversions is not None:
        fields.append(f"convert.seeds={list(range(options.conversions))}")
    if options.seeds:
        fields.append(f"seeds={options.seeds}")
    root, scale = Path(options.output), load_scale(options.scale, fields)
    check_reach(study, scale, fields)
    plan = Planner(root, scale, options.data).plan(label_of(options.study), Path(options.scale).stem, study)
    for warning in filter(None, (at_another_precision(plan, root), emulated_precision(plan, root))):
        complain(warning)
    if options.dry_run:
        from rich.console import Console

        from mabert_lab.study.runner import show_plan

        show_plan(plan, root, Console())
        return
    run_plan(plan, root)


def check_grid(options: argparse.Namespace) -> None:
    """Refuses invalid and unused options by name; `--from` selects the study's version for conversions."""
    from mabert_lab.study.grid import CONVERTED

    if options.teacher is not None and options.study in GRIDS:
        if options.study not in CONVERTED:
            raise ValueError(f"--from goes with {', '.join(CONVERTED)} and grid, not with {options.study}")
        options.study = CONVERTED[options.study]
    options.scale = options.scale or ("tiny" if options.teacher is None else "convert")
    check_source(options.data, GLUE)


def check_start(options: argparse.Namespace, converts: bool) -> None:
    """Refuses conversion options by name if the arms are pretrainings."""
    if converts:
        return
    for option, given in {"--from": options.teacher, "--conversions": options.conversions}.items():
        if given is not None:
            raise ValueError(f"{option} goes with arms that are conversions, and those of {options.study} are not")
    from mabert_lab.study.grid import CONVERT_SCALES

    if options.scale in CONVERT_SCALES:
        raise ValueError(f"--scale {options.scale} is for conversions; give --from MODEL as well")


def run_plan(plan: Any, root: Path) -> None:
    from mabert_lab.study.plan import cells_of
    from mabert_lab.study.results import results_file, speed_of, write_results
    from mabert_lab.study.runner import Runner, progress

    runner = Runner(plan, root, progress(plan, root), partial(write_results, plan, root))
    try:
        states = runner.run()
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(KEPT) from stop
    finally:
        failed = {name: each for name, each in runner.states.items() if each.state in ("failed", "blocked")}
        for name, status in failed.items():
            complain(f"{plan.cells[name].title}: {status.reason}")
    for cell, files in cells_of(plan, root):
        result = files.result()
        if cell.kind == "pretraining" and result is not None:
            speed = speed_of(cell, result)
            share = f", {speed['share_of_peak']:.0%} of the GPU's peak" if speed["share_of_peak"] else ""
            say(f"{cell.title}: {speed['tokens_per_second'] or 0:,.0f} tokens a second{share}")
    done = sum(status.state == "done" for status in states.values())
    say(f"{results_file(plan, root)}: {done} of {len(states)} cells; mabert report {root} -o report.html")
    if failed:
        raise ValueError(f"{len(failed)} cells gave no result; the same command tries them again")


def run_drift(options: argparse.Namespace) -> None:
    check_installed(*EXTRAS["lab"])
    from mabert.files.places import find

    if options.texts is not None and options.data is not None:
        raise ValueError("--data goes with the CoLA dev set, not with --texts")
    if options.texts is None and options.text_column is not None:
        raise ValueError("--text-column goes with --texts, which is not given")
    place = find(options.model)
    load_libraries()
    import numpy as np

    from mabert.data.glue import load_glue
    from mabert.infer.loaded import load_for_use
    from mabert.infer.texts import read_texts
    from mabert.model.config import MaBertConfig
    from mabert.opening.opened import open_model
    from mabert_lab.bench.results import path_of, write
    from mabert_lab.report.charts import on_paper
    from mabert_lab.report.document import markdown
    from mabert_lab.report.drift import drift_chart, drift_tables
    from mabert_lab.study.drift import LENGTHS, drift, unfinished_file

    data = GLUE if options.data is None else options.data
    loaded = load_for_use(open_model(place, [MaBertConfig.model_type]), "encoder")  # the compared masks are MaBERT's
    if options.texts is None:
        texts = list(load_glue("cola", data, ["validation"])["validation"]["text_a"])
    else:
        texts = read_texts(options.texts, options.text_column)
    spread = np.linspace(0, len(texts) - 1, min(options.limit, len(texts)), dtype=int)
    ids = [item["input_ids"] for item, _ in loaded.encodings([texts[place] for place in spread], truncate=True)]
    pad = loaded.tokenizer.pad_token_id
    folder = Path(options.output)
    measured = (loaded.model, ids, pad, options.padding or LENGTHS, not options.trained_only)
    unfinished = unfinished_file(folder, *measured)
    try:
        result = drift(*measured, unfinished=unfinished)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(KEPT) from stop
    result["source"] = {"texts": options.texts or f"cola validation of {data}", "model": str(options.model)}
    written = write(result, folder, "drift")
    write_text(path_of(result, folder, "drift", ".svg"), on_paper(drift_chart(result)))
    write_text(path_of(result, folder, "drift", ".md"), "\n\n".join(map(markdown, drift_tables(result))) + "\n")
    unfinished.unlink(missing_ok=True)  # the same command, run twice at once, shares it
    say(f"{written.with_suffix('')}: .json, .svg and .md, {len(ids)} texts, {len(result['rows'])} regimes")
