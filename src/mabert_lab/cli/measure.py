"""`mabert bench`, `mabert report` and `mabert demo`."""

import argparse
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from mabert.cli.command import command, complain, load_libraries, number, say
from mabert.data import GLUE
from mabert.files.reading import shown
from mabert.files.writing import write_text
from mabert.machine.environment import EXTRAS, check_installed
from mabert.schema.ranges import BatchSize, Seconds, Tokens, range_of


def add_demo(commands: Any) -> None:
    about = "convert an encoder, search with it, and pretrain a small one, in ten to twenty minutes"
    added = command(commands, "demo", run_demo, about)
    text = "text files to use in place of installed documentation"
    added.add_argument("--text", nargs="+", metavar="FILE", help=text)
    added.add_argument("-o", "--output", help="folder to write the page and the models to [demo-out, demo-out-2, ...]")


def run_demo(options: argparse.Namespace) -> None:
    check_installed(*EXTRAS["lab"])
    load_libraries()
    from mabert_lab.demo import demo

    demo(options.output, options.text)


BENCHES = {
    "ops": "the two operators",
    "models": "memory, latency and training step of MaBERT and other encoders",
    "lengths": "batches of texts of uneven lengths, with and without padding",
    "similarity": "how well the vectors of models recognize similar texts",
    "retrieval": "how well models find long texts, beside BM25",
    "report": "tables and figures of what `models` wrote, beside the paper's numbers",
}


def add_bench(commands: Any) -> None:
    about = "measure speed, memory and quality beside other encoders, all in one run"
    added = command(commands, "bench", run_bench, about)
    added.add_argument("what", choices=BENCHES, help="; ".join(f"{kind}: {about}" for kind, about in BENCHES.items()))
    groups: dict[tuple[str, ...], Any] = {}
    takers: dict[str, tuple[str, ...]] = {}

    def add(name: str, *kinds: str, **reading: Any) -> None:
        """Adds an option that only some kinds of measurements use; for the others `check_bench` refuses it."""
        if kinds not in groups:
            groups[kinds] = added.add_argument_group(f"options of {', '.join(kinds)}")
        groups[kinds].add_argument(name, **reading)
        takers[name.removeprefix("--")] = kinds

    files = "for report: JSON files that `models` wrote; for retrieval and similarity: model folders (similarity takes "
    add("files", "report", "similarity", "retrieval", nargs="*", metavar="FILE", help=f"{files}FOLDER:int8 for 8 bits)")
    data = "for similarity: folder with GLUE [hub]; for retrieval: files of documents"
    add("--data", "similarity", "retrieval", help=data)
    own = "table of questions and texts of your own, with columns question and text, such as a JSONL file"
    add("--questions", "retrieval", metavar="FILE", help=own)
    tasks = "of the tasks that --data gives, those to run, such as definition and 'other words' [all]"
    add("--tasks", "retrieval", nargs="+", metavar="NAME", help=tasks)
    models = "families such as mabert, bert and albert [all seven], or model folders; with an engine: bert:openvino"
    add("--models", "models", "lengths", nargs="+", metavar="NAME", help=models)
    dtype = "bfloat16, float32 [bfloat16 where the processor has instructions for it]"
    add("--dtype", "models", "lengths", nargs="+", metavar="NAME", help=dtype)
    budget = "seconds for a model's calls; at least three to five are made [models 20, lengths 40]"
    add("--budget", "models", "lengths", type=number("--budget", Seconds), help=budget)
    add("--measure", "models", nargs="+", metavar="WHAT", help="memory, latency, training [all]")
    profile = (
        "settings: best of each model, stock: others as transformers runs them, or paper (Table A2); paper alone also "
        "takes the paper's lengths, 20 calls to warm up and 100 timed ones, with --budget as many as fit [best]"
    )
    add("--profile", "models", nargs="+", metavar="NAME", help=profile)
    length = "tokens of a text, or ROWSxN for a batch of equal texts, such as 32x512 [128 ... 16384]"
    add("--lengths", "models", nargs="+", type=shape_of, metavar="N", help=length)
    limit = "most seconds of a call; a slower model is left out [150]"
    add("--limit", "models", type=number("--limit", Seconds), help=limit)
    device = "cpu or cuda; on a GPU, with its own sizes, nothing is timed if an operator is wrong [cpu]"
    add("--device", "ops", "models", "lengths", choices=("cpu", "cuda"), default="cpu", help=device)
    go_on = "go on with the newest file of the same request, sources and versions: rows that are missing or failed"
    add("--resume", "ops", "models", "lengths", action="store_true", help=go_on)
    add("--texts", "lengths", nargs="+", default=[], metavar="NAME=FILE", help="measure texts of your own as well")
    add("--tokenizer", "lengths", default="minilm", help="tokenizer that counts their tokens [%(default)s]")
    quick = "see that everything runs, with small models and one call each; the numbers mean nothing"
    added.add_argument("--quick", action="store_true", help=quick)
    added.add_argument("-o", "--output", default="measurements", help="folder to write results to [%(default)s]")
    added.set_defaults(takers=takers)


def run_bench(options: argparse.Namespace) -> None:
    output = Path(options.output)
    check_bench(options)
    if options.device == "cpu":  # a machine with a GPU may lack what only reports and rivals on a CPU need
        check_installed(*EXTRAS["lab"])
    if options.what == "report":
        report_on(options.files, output)
        return
    load_libraries()
    from mabert.infer.loaded import device_named

    device_named(options.device)
    if options.quick:
        complain("a trial with small models, one call each: its numbers mean nothing")
    bench = import_module(f"mabert_lab.bench.{'operators' if options.what == 'ops' else options.what}")
    there = {"device": options.device, "resume": options.resume}
    if options.what == "similarity":
        for name, tasks in bench.run(options.files, options.data or GLUE, output).items():
            say(f"{name}: " + ", ".join(f"{task} {found['score']:.2f}" for task, found in tasks.items()))
    elif options.what == "retrieval":
        bench.run(options.files, options.data, output, options.questions, options.tasks)
    elif options.what == "lengths":
        rivals = bench.RIVALS if options.models is None else [name for name in options.models if name != "mabert"]
        budget = bench.BUDGET if options.budget is None else options.budget
        own = lengths_of_texts(options.texts, options.tokenizer)
        dtype = options.dtype[0] if options.dtype else None
        check_rows(bench.run(options.quick, output, own, dtype, rivals, budget, **there))
    elif options.what == "models":
        check_rows(bench.run(plan_of(options), options.quick, output, options.resume))
    else:
        bench.run(options.quick, output, **there)


def check_rows(result: dict[str, Any]) -> None:
    """Refuses a result in which rows of MaBERT failed."""
    ours = (row for row in result["rows"] if "mabert" in row.get("title", row.get("model")).lower())
    failed = sum(row["status"] == "failed" for row in ours)
    if failed:
        raise ValueError(f"{failed} rows of MaBERT failed; with --resume the same command tries them again")


def shape_of(text: str) -> int | tuple[int, int]:
    """Returns the tokens of a text, or rows and tokens of ROWSxN."""
    found = re.fullmatch(r"(?:([0-9]{1,8})x)?([0-9]{1,8})", text)
    if found is None or int(found[2]) not in range_of(Tokens) or int(found[1] or 1) not in range_of(BatchSize):
        raise argparse.ArgumentTypeError(
            f"{shown(text)} must be tokens, 512, or rows and tokens, 32x512, {range_of(Tokens)}"
        )
    return int(found[2]) if found[1] is None else (int(found[1]), int(found[2]))


def check_bench(options: argparse.Namespace) -> None:
    """Refuses options that the requested measurement does not use, by name."""
    for name, kinds in options.takers.items():
        if getattr(options, name) not in (None, [], options.parser.get_default(name)) and options.what not in kinds:
            option, go = ("files", "go") if name == "files" else (f"--{name}", "goes")
            raise ValueError(f"{option} {go} with bench {kinds[0]}, not with bench {options.what}")
    if options.quick and options.texts:
        raise ValueError("--texts has no effect with --quick, which has two short texts of its own")
    if options.quick and options.what in options.takers["files"]:
        raise ValueError(f"--quick goes with measurements of speed, not with bench {options.what}")
    if options.what in options.takers["data"] and not options.files:
        raise ValueError(f"bench {options.what} has no model; name one folder or several")
    if options.what == "retrieval" and options.data is None and options.questions is None:
        raise ValueError("bench retrieval has no data; name a file or folder of documents, such as --data wiki.txt.xz")
    if options.tasks is not None and options.data is None:
        raise ValueError("--tasks goes with --data, which is not given")
    for name in ("limit", "budget"):
        if options.quick and getattr(options, name) is not None:
            raise ValueError(f"--{name} has no effect with --quick, which makes one call of each")
    if options.what == "lengths" and len(options.dtype or ()) > 1:
        raise ValueError(f"bench lengths takes one dtype at a time; {' '.join(options.dtype)} are given")


def plan_of(options: argparse.Namespace) -> Any:
    from mabert_lab.bench.models import PAPER_LENGTHS, Plan
    from mabert_lab.bench.turns import PAPER, Protocol

    of_paper = options.profile == ["paper"]
    protocol = PAPER if of_paper and options.budget is None else Protocol()
    asked = given(
        models=options.models,
        measures=options.measure,
        profiles=options.profile,
        dtypes=options.dtype,
        lengths=options.lengths or (PAPER_LENGTHS if of_paper else None),
    )
    protocol = replace(protocol, **given(limit=options.limit, budget=options.budget))
    return Plan(**asked, device=options.device, protocol=protocol)


def given(**options: Any) -> dict[str, Any]:
    """Returns the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def report_on(files: list[str], output: Path) -> None:
    """Writes tables and figures of efficiency results to a folder."""
    from mabert_lab.report.charts import on_paper
    from mabert_lab.report.found import find
    from mabert_lab.report.whole import efficiency_page, engines_page

    (found,) = find(files, apart=False)
    pages = {}
    if found.costs is not None:
        pages["efficiency"] = efficiency_page(found.costs)
    if found.engines:
        pages["engines"] = engines_page(found.engines)
    if not pages:
        raise ValueError(f"{', '.join(files)}: no memory and times; give files that `mabert bench models` wrote")
    output.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        for figure, svg in page.figures.items():
            write_text(output / f"{figure}.svg", on_paper(svg))
        write_text(output / f"{name}.md", page.markdown())
        say(f"{output / name}.md: tables and figures")
    for reason in found.left_out:
        say(f"left out: {reason}")


def lengths_of_texts(named: list[str], tokenizer: str) -> dict[str, list[int]]:
    """Returns the tokens of each text of each file, [CLS] and [SEP] included."""
    from mabert.data.tokenizer import load_tokenizer
    from mabert.infer.texts import read_texts

    found = {}
    for pair in named:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise ValueError(f"--texts is {pair!r}; it must be NAME=FILE, such as imdb=reviews.jsonl")
        counts = load_tokenizer(tokenizer)(read_texts(file), return_length=True, verbose=False)["length"]
        found[name] = [int(count) for count in counts]
    return found


def add_report(commands: Any) -> None:
    added = command(commands, "report", run_report, "compare studies and measurements with the paper, claim by claim")
    paths = "JSON results, or folders to search for them; each folder gets verdicts of its own"
    added.add_argument("paths", nargs="+", metavar="PATH", help=paths)
    output = "page to write, with a .md file and a folder beside it [%(default)s]"
    added.add_argument("-o", "--output", default="report.html", help=output)


def run_report(options: argparse.Namespace) -> None:
    from mabert_lab.report.found import find
    from mabert_lab.report.whole import write_report

    every = find(options.paths)
    page, text, *others = write_report(every, Path(options.output))
    for found in every:
        for reason in found.left_out:
            say(f"left out: {found.folder}{', ' if found.folder else ''}{reason}")
    say(f"{page}: the report")
    say(f"{text}: its open parts as Markdown")
    say(f"{page.with_suffix('')}: {len(others)} files, figures as .svg and all numbers as .csv")
