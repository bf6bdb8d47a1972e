"""`mabert pretrain`, `finetune`, `tokenizer` and `extend`."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, get_args

from mabert.cli.command import add_field, command, load_libraries, number, quoted, say
from mabert.data import GLUE, LabelKind
from mabert.files.places import expanded, find
from mabert.files.reading import shown
from mabert.machine.environment import check_reporters
from mabert.machine.processes import ended_as_interrupted, keep_freed_memory
from mabert.schema.ranges import BERT_SIZE, MOST_SEEDS, Budget, Seed, Tokens, Vocabulary, range_of
from mabert.train.folder import RunFolder
from mabert.train.recipe import FinetuneRecipe, as_begun, check_seeds, load_recipe, recipe_of_run

GLUE_OPTIONS = {"data": GLUE}
TABLE_OPTIONS = {
    "train": None,
    "validation": None,
    "test": None,
    "text_column": "text",
    "pair_column": None,
    "label_column": "label",
}
"""Options for the source of the examples, with their defaults: for a GLUE task, and for a table."""
FIELDS = {
    "learning_rates": "peak learning rate; with several, each is tried [2e-5 at width 768, higher for narrower models]",
    "epochs": "passes over the examples [3 to 30, so that 10,000 are seen; for GLUE 3, and 10 for CoLA, MRPC and RTE]",
    "batch_size": "examples per step",
    "batch_tokens": "most tokens per step, in place of --batch-size",
    "dropout": "dropout rate",
    "max_length": "most tokens of an example [the model's limit]",
    "truncate": "cut longer examples [classifiers and readers read in windows; pairs and tagged texts are refused]",
    "precision": "precision of training",
    "batches": "length puts examples of similar length into a batch, random mixes them",
    "packing": "unpad runs batches without their padding, pack as one row, none padded and masked",
    "select": "epoch whose weights are kept",
    "pooling": "how token vectors become one [the model's]",
    "padding_safe_masking": "masking of padding in the Mamba layers [the model's]",
    "from_scratch": "start the same model from random weights",
    "report_to": "where curves go: tensorboard, wandb, mlflow, trackio, all, none ... [tensorboard]",
}
"""Options of `FinetuneRecipe`'s fields, with their help."""
RENAMED = {"learning_rates": "--learning-rate", "padding_safe_masking": "--masking"}


def add_tokenizer(commands: Any) -> None:
    """Vocabularies."""
    added = command(commands, "tokenizer", run_tokenizer, "train a WordPiece tokenizer on your own text")
    added.add_argument("text", nargs="+", metavar="TEXT", help="files, folders or hub data sets, as for pretrain")
    size = "most tokens, the five special ones included [%(default)s]"
    added.add_argument("--size", type=number("--size", Vocabulary), default=BERT_SIZE, help=size)
    added.add_argument("--cased", action="store_true", help="keep capital letters and accents [lower case]")
    added.add_argument("--text-column", default="text", help="column of a table that holds the text [%(default)s]")
    added.add_argument("-o", "--output", required=True, help="folder to write")


def run_tokenizer(options: argparse.Namespace) -> None:
    """`mabert tokenizer`."""
    load_libraries()
    from mabert.data.tokenizer import make_tokenizer

    how = {"cased": options.cased, "text_column": options.text_column, "progress": sys.stderr.isatty()}
    made = make_tokenizer(options.text, options.output, options.size, **how)
    say(f"{options.output}: {len(made):,} tokens; pretrain with it by tokenizer={options.output}")


def add_pretrain(commands: Any) -> None:
    """Pretraining."""
    added = command(commands, "pretrain", run_pretrain, "pretrain a model by masked language modelling, from a recipe")
    recipe = "YAML file, or demo, mini, small-gpu or paper; with --resume alone, the run's own recipe is used"
    added.add_argument("recipe", help=recipe)
    added.add_argument(
        "fields", nargs="*", default=[], metavar="section.field=value", help="fields that replace the recipe's"
    )
    family = "family: mabert, bert, albert, longformer, bigbird, deberta or modernbert [the recipe's]"
    added.add_argument("--model", help=family)
    start = "model folder whose weights to start from [random weights]"
    added.add_argument("--start-from", metavar="MODEL", help=start)
    added.add_argument("-o", "--output", required=True, help="folder to write")
    share = "share of the recipe's steps to train [100%%]"
    added.add_argument("--budget", metavar="N%", type=number("--budget", Budget), help=share)
    going_on = added.add_mutually_exclusive_group()
    going_on.add_argument("--resume", action="store_true", help="continue the run in the folder")
    damaged = "continue from this checkpoint, where the newest is damaged"
    going_on.add_argument("--resume-from", metavar="CHECKPOINT", help=damaged)


def pretrain_recipe(options: argparse.Namespace) -> Any:
    """Returns the recipe of a new or resumed run; a resuming command that names a budget is taken as a full repeat."""
    named = {"architecture": options.model, "start_from": options.start_from}
    fields = [*options.fields, *(f"{name}={quoted(value)}" for name, value in named.items() if value is not None)]
    if resumes(options) and options.budget is None:
        return recipe_of_run(options.output, fields)
    recipe = load_recipe(options.recipe, fields).at_budget(options.budget or 1.0)
    return as_begun(recipe, options.output) if resumes(options) else recipe


def resumes(options: argparse.Namespace) -> bool:
    """Checks whether a pretraining resumes."""
    return options.resume or options.resume_from is not None


def run_pretrain(options: argparse.Namespace) -> None:
    """`mabert pretrain`."""
    RunFolder(options.output, resumes(options)).check({})
    recipe = pretrain_recipe(options)
    load_libraries()
    from mabert.train.pretrain import pretrain

    keep_freed_memory()
    with ended_as_interrupted():
        result = pretrain(recipe, options.output, resume=resumes(options), resume_from=options.resume_from)
    if result:
        outcome = result["outcome"]
        for line in options.draw("pretrain", result, Path(options.output)):
            say(line)
        say(
            f"{options.output}: {outcome['steps']} steps, {outcome['tokens']:,} tokens; held-out loss "
            f"{outcome['held_out_loss']:.3f}, accuracy {outcome['held_out_accuracy']:.1%}"
        )


def add_finetune(commands: Any) -> None:
    """Fine-tuning."""
    added = command(commands, "finetune", run_finetune, "train a model for a GLUE task or your own labelled files")
    added.add_argument("model", help="pretrained model: folder or hub name")
    added.add_argument("-o", "--output", required=True, help="folder to write")
    glue = added.add_argument_group("a GLUE task")
    glue.add_argument("--task", help="cola, sst2, mrpc, qqp, mnli, qnli, rte or stsb")
    glue.add_argument("--data", help=f"folder with GLUE in its official layout [{GLUE}]")
    table = added.add_argument_group("your own files (CSV, TSV without quoting, JSONL, Parquet, CoNLL or SQuAD)")
    table.add_argument("--train", metavar="FILE", help="labelled rows to train on")
    table.add_argument("--validation", metavar="FILE", help="labelled rows to score on [a tenth of --train]")
    table.add_argument("--test", metavar="FILE", help="rows to predict labels for")
    table.add_argument("--text-column", help="column that holds the text [text]")
    table.add_argument("--pair-column", help="column that holds the second text of a pair")
    table.add_argument("--label-column", help="column that holds the label [label]")
    kind = (
        "kind of label: a class, a number (regression), several classes, a tag for each token, or an answer in the "
        "text [recognized from the files, else classification]"
    )
    table.add_argument("--kind", choices=get_args(LabelKind), help=kind)
    same = "the same as --kind regression"
    table.add_argument("--regression", action="store_const", dest="kind", const="regression", help=same)
    how = added.add_argument_group("training")
    how.add_argument("--seeds", type=seed_list, default=[0], help="seeds, one run each, such as 0-4 or 0,2,7 [0]")
    for name, text in FIELDS.items():
        add_field(how, FinetuneRecipe, name, text, RENAMED.get(name, ""))
    how.add_argument("--resume", action="store_true", help="continue the run in the folder")


def seed_list(text: str) -> list[int]:
    """Parses `0-4` or `0,2,7` as numbers."""
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"(\d{1,20})(?:-(\d{1,20}))?", part.strip())
        if ends is None:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a list of seeds such as 0-4 or 0,2,7")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"the range {part!r} runs backwards")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{shown(text)} are more than {MOST_SEEDS:,} seeds")
        if last not in range_of(Seed):
            raise argparse.ArgumentTypeError(f"the seed {last} is out of range; it must be {range_of(Seed)}")
        seeds += range(first, last + 1)
    return seeds


def run_finetune(options: argparse.Namespace) -> None:
    """`mabert finetune`."""
    check_finetune(options)
    options.model = find(options.model)  # a wrong name, before examples are downloaded
    RunFolder(options.output, options.resume).check({})
    recipe = FinetuneRecipe(**{name: getattr(options, name) for name in FIELDS})
    check_reporters(recipe.report_to)
    check_seeds(options.seeds)
    task, splits = load_examples(options)
    source = asked_for(options, GLUE_OPTIONS if options.task else TABLE_OPTIONS)
    load_libraries()
    from mabert.train.finetune import finetune

    keep_freed_memory()
    with ended_as_interrupted():
        result = finetune(
            options.model, task, splits, options.output, recipe, options.seeds, source=source, resume=options.resume
        )
    if not result:
        return
    for split, metrics in result["outcome"]["scores"].items():
        for metric, score in metrics.items():
            spread = "" if score["std"] is None else f" ± {score['std']:.4f}"
            of = f" of {task.positive!r}" if metric == "f1" and task.positive and not options.task else ""
            mean = "undefined" if score["mean"] is None else f"{score['mean']:.4f}"
            name = f"{task.name} {split}" if options.task else split  # else its file is named
            count = len(result["seeds"])
            say(f"{name} {metric}{of}: {mean}{spread} ({count} seed{'s' if count > 1 else ''})")
    for line in options.draw("finetune", result, Path(options.output)):
        say(line)
    folder = Path(options.output) / f"seed-{result['seeds'][0]}"
    say(f"each seed has a model; use one by: mabert predict {folder} TEXTS")


def asked_for(options: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """Returns options by name, with defaults for those not given."""
    given = {name: getattr(options, name) for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in given.items()}


def check_finetune(options: argparse.Namespace) -> None:
    """Refuses options that would have no effect, by ValueError: neither or both of a task and a file are named, or an
    option belongs to the other one."""
    if (options.task is None) == (options.train is None):
        raise ValueError("name either a GLUE task (--task) or a file of your own (--train)")
    here, others = ("--task", (*TABLE_OPTIONS, "kind")) if options.task else ("--train", tuple(GLUE_OPTIONS))
    for name in others:
        if getattr(options, name):
            there = "--train" if options.task else "--task"
            option = "regression" if name == "kind" and options.kind == "regression" else name.replace("_", "-")
            raise ValueError(f"--{option} goes with {there}, not with {here}")


def load_examples(options: argparse.Namespace) -> tuple[Any, Any]:
    """Loads the task and its examples, from GLUE or from the user's own files."""
    from mabert.data.glue import glue_task, load_glue
    from mabert.data.own import load_own, recognized
    from mabert.data.tasks import Columns

    if options.task is not None:
        return glue_task(options.task), load_glue(options.task, asked_for(options, GLUE_OPTIONS)["data"])
    asked = asked_for(options, TABLE_OPTIONS)
    columns = Columns(asked["text_column"], asked["pair_column"], asked["label_column"])
    named = {split: asked[split] for split in ("train", "validation", "test") if asked[split] is not None}
    kind = options.kind or recognized(expanded(options.train), asked["label_column"])
    if kind in ("tokens", "answers"):
        for name in ("text_column", "pair_column", "label_column"):
            if getattr(options, name):
                raise ValueError(f"--{name.replace('_', '-')} goes with a table of texts; {options.train} holds {kind}")
    return load_own(named, columns, kind=kind, name=Path(options.train).stem.split(".")[0])


def add_extend(commands: Any) -> None:
    """Longer inputs."""
    added = command(commands, "extend", run_extend, "copy a model so that it takes longer inputs")
    added.add_argument("model", help="model folder or hub name, of any family")
    length = "tokens of the longest input of the copy"
    added.add_argument("--length", type=number("--length", Tokens), required=True, help=length)
    added.add_argument("-o", "--output", required=True, help="folder to write the copy to")


def run_extend(options: argparse.Namespace) -> None:
    """`mabert extend`."""
    options.model = find(options.model)
    load_libraries()
    from mabert.opening.opened import extend

    before = extend(options.model, options.length, options.output)
    say(
        f"{options.output}: {options.length:,} tokens instead of {before:,}; train it on longer texts before you use "
        "it (mabert pretrain ... --start-from)"
    )
