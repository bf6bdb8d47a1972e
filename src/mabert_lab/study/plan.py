"""A plan of a study: its cells, each named by what determines it, and what it may do on this machine."""

import copy
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from mabert.baselines.registry import family_of
from mabert.data.cache import FORMAT as TOKENS
from mabert.data.corpus import identities
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.files.reading import key_of, to_json
from mabert.files.writing import make_once
from mabert.machine.environment import fast_dtype, resolve_precision
from mabert.machine.memory import parameters_of
from mabert.opening.uses import class_for
from mabert.train.finetune_run import OF_MABERT, epochs_of, tuned_config
from mabert.train.pretrain_run import FREE, find_tokenizer, model_config
from mabert.train.recipe import DataRecipe, PretrainRecipe, as_mapping
from mabert_lab.study.cells import FORMAT, WITHOUT_WEIGHTS, Cell, CellFiles, absolute, without
from mabert_lab.study.conversions import Conversions
from mabert_lab.study.grid import Arm, Scale, Study
from mabert_lab.study.tasks import LoadedTask

CUT = tuple(name for name in FREE if name != "training.eval_windows")  # they only split the work, dropout draws aside
TOKENIZERS = "tokenizers"  # folder of tokenizers found or trained for studies


@dataclass
class PlannedModel:
    """A model of an arm: its pretraining, or one of its conversions at the whole budget, and its fine-tunings."""

    arm: str
    budget: float
    pretraining: str
    finetunings: dict[str, str] = field(default_factory=dict)  # by task


@dataclass
class Plan:
    """A study divided into cells."""

    name: str  # the study's
    scale_name: str  # with digits of a hash of everything that determines the results
    study: Study
    scale: Scale
    tasks: dict[str, LoadedTask]
    rows: list[PlannedModel]  # in the order of the tables
    cells: dict[str, Cell]  # by name, each before those that start from it


class Planner:
    """Divides studies at a scale into cells in a shared folder (`root`), with the tasks' data from `data`."""

    def __init__(self, root: Path, scale: Scale, data: str) -> None:
        self.root, self.scale = root, scale
        self.tasks = {name: task.load(data) for name, task in scale.tasks.items()}
        self.digests = {name: task.digest() for name, task in self.tasks.items()}
        self.texts: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def plan(self, name: str, scale_name: str, study: Study) -> Plan:
        """Plans a study; `scale_name` gets digits that tell apart studies of other text, tasks or settings."""
        rows: list[PlannedModel] = []
        cells: dict[str, Cell] = {}
        own: dict[Any, list[float]] = {**self.scale.budgets}
        budgets = own.get(name, study.budgets)
        converter = Conversions(self.scale) if study.converts else None
        for budget, (title, arm) in itertools.product(budgets, study.arms.items()):
            at_budget = f"{title}, {100 * budget:g}%"
            if converter is not None:
                models = converter.cells(title, arm)
            else:
                which = at_budget if len(budgets) > 1 else title
                models = iter([(which, *self.pretraining(at_budget, arm, budget), self.scale.seeds)])
            for which, start, config, seeds in models:
                cells.setdefault(start.name, start)
                rows.append(PlannedModel(title, budget, start.name))
                for task in self.tasks.values():
                    cell = self.finetuning(which, arm, task, start, config, seeds)
                    cells.setdefault(cell.name, cell)
                    rows[-1].finetunings[task.task.name] = cell.name
        digits = key_of([dataclasses.asdict(row) for row in rows], 4)
        return Plan(name, f"{scale_name}-{digits}", study, self.scale, self.tasks, rows, cells)

    def pretraining(self, title: str, arm: Arm, budget: float) -> tuple[Cell, PreTrainedConfig]:
        try:
            recipe = self.scale.pretraining(arm, budget)
        except ValueError as error:
            raise ValueError(f"the pretraining of {title}: {error}") from error
        if recipe.start_from is not None:
            raise ValueError(
                f"pretrain.start_from is {recipe.start_from!r}; cells begin with random weights, since a path says "
                "nothing of the weights there"
            )
        if not recipe.data.sources:
            raise ValueError("the study names no text; give --text files, folders or hub data sets")
        recipe.data.cache = recipe.data.cache or str(self.root.resolve() / "cache")
        folder, tokenizer = self.tokenizer(recipe)
        recipe = dataclasses.replace(recipe, tokenizer=str(folder.resolve()))
        config = model_config(recipe, tokenizer)
        named = without(as_mapping(recipe), (*CUT, "data.sources", "data.cache", "tokenizer"))
        named["model"] = without(config.to_dict(), WITHOUT_WEIGHTS)
        named["training"]["precision"] = resolve_precision(recipe.training.precision)
        content = {"format": FORMAT, "tokens": TOKENS, "kind": "pretraining", "recipe": named}
        content |= {"text": self.text(recipe.data), "vocabulary": fingerprint(tokenizer)}
        order = as_mapping(recipe)
        order["data"]["sources"] = [absolute(source) for source in order["data"]["sources"]]  # to run from any folder
        parameters = parameters_of(class_for("masked_lm", config), config)
        cell = Cell(content, {"recipe": order}, f"pretrain {title}", steps=recipe.training.steps, parameters=parameters)
        return cell, config

    def finetuning(
        self, title: str, arm: Arm, task: LoadedTask, start: Cell, config: PreTrainedConfig, seeds: list[int]
    ) -> Cell:
        """Returns the fine-tuning cell of a model on a task; ValueError if it cannot be tuned so."""
        recipe = self.scale.finetuning(arm, task.asked)
        try:
            family_of(config).finite_limit(tuned_config(config, recipe, {}, pools=True), recipe.max_length)
        except ValueError as error:
            raise ValueError(f"the fine-tuning of {title} on {task.title}: {error}") from error
        rows = len(task.splits["train"])
        epochs, begun = epochs_of(recipe, task.task, rows), start.content["recipe"]["model"]
        content = {
            "format": FORMAT,
            "kind": "finetuning",
            "start": [start.name, ""],  # the second part, always empty, keeps the names of older cells
            "task": task.task.name,
            "data": self.digests[task.task.name],
            "recipe": {
                **without(dataclasses.asdict(recipe), ("report_to",)),
                "epochs": epochs,
                "precision": resolve_precision(recipe.precision),
                **{name: getattr(recipe, name) or begun.get(name) for name in OF_MABERT},
            },
        }
        rates = len(recipe.learning_rates or ())
        if rates > 1:
            content["chosen_under"] = seeds[0]
        if task.asked.files and task.task.main_metric != "accuracy":  # learning rates and epochs are chosen by it
            content["metric"] = task.task.main_metric
        runs = len(seeds) + (rates if rates > 1 else 0)
        order = {"start": start.name, "task": dataclasses.asdict(task.asked), "data": absolute(task.data)}
        return Cell(
            content,
            order | {"recipe": dataclasses.asdict(recipe)},
            f"{task.title}, {title}",
            needs=start.name,
            seeds=tuple(seeds),
            steps=None if recipe.batch_tokens else runs * epochs * math.ceil(rows / recipe.batch_size),
            parameters=start.parameters,
        )

    def tokenizer(self, recipe: PretrainRecipe) -> tuple[Path, PreTrainedTokenizerFast]:
        """Returns the tokenizer of a family, found once for all studies of the folder and kept there."""
        family = recipe.family
        asked = recipe.tokenizer or self.scale.tokenizers.get(family.name)
        # A requested tokenizer is identified by its content, the family's own by the text it may be trained on.
        what = self.text(recipe.data) if asked is None else fingerprint(load_tokenizer(asked))
        size = recipe.model.get("vocab_size") if asked is None else None
        # The size stands there where it is asked for alone, so that folders of earlier studies keep their names.
        key = hashlib.sha256(to_json([asked is None, what, *filter(None, [size])]).encode()).hexdigest()[:8]
        folder = self.root / TOKENIZERS / f"{family.name}-{key}"

        def fill(building: Path) -> None:
            cache = Path(str(recipe.data.cache))
            tokenizer, origin = find_tokenizer(family, asked, recipe.data.readable(), cache, size=size)
            tokenizer.save_pretrained(building)
            (building / "origin.json").write_text(to_json({"tokenizer": origin}) + "\n", encoding="utf-8")

        make_once(folder, fill)
        return folder, load_tokenizer(str(folder))

    def text(self, data: DataRecipe) -> list[dict[str, Any]]:
        """Returns what identifies the text, wherever its files lie."""
        key = (data.text_column, *data.sources)
        if key not in self.texts:
            self.texts[key] = identities(data.readable())
        return self.texts[key]


def cells_of(plan: Plan, root: Path) -> Iterator[tuple[Cell, CellFiles]]:
    """Yields the cells with their files, each before those that start from it."""
    for cell in plan.cells.values():
        yield cell, CellFiles(root, cell.name)


def at_another_precision(plan: Plan, root: Path) -> str | None:
    """Returns a line on the first cell that another machine left at another precision, with what shares it; or None."""
    left_open = fields_at("auto", plan.cells.values())
    for cell in plan.cells.values():
        content = copy.deepcopy(cell.content)
        field, resolved = precision_of(cell, content["recipe"])
        here, there = ("bf16", "fp32") if resolved["precision"] == "bf16" else ("fp32", "bf16")
        resolved["precision"] = there
        if field in left_open and CellFiles(root, dataclasses.replace(cell, content=content).name).order.is_file():
            fields = " ".join(f"{each}={there}" for each in left_open)
            return (
                f"precision auto is {here} on this machine, and {root} has {cell.title!r} at {there}, which is not "
                f"shared; to go on with it: {fields}"
            )
    return None


def emulated_precision(plan: Plan, root: Path) -> str | None:
    """Returns one line on unfinished cells that ask for bf16 where it is emulated in float32; else None."""
    left = [cell for cell, files in cells_of(plan, root) if not files.finished(cell.seeds)]
    fields = fields_at("bf16", left)
    if not fields or fast_dtype() != "float32":
        return None
    return (
        f"{' and '.join(fields)}: bf16, for which this machine has no instructions; fp32, or auto, is several times as "
        "fast here (a cell in fp32 is another cell)"
    )


def fields_at(precision: str, cells: Iterable[Cell]) -> list[str]:
    """Returns the fields that ask for a precision in these cells, each once."""
    asked = (precision_of(cell, cell.order["recipe"]) for cell in cells)
    return list(dict.fromkeys(field for field, recipe in asked if recipe["precision"] == precision))


def precision_of(cell: Cell, recipe: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the field that sets a cell's precision, and the section of its recipe that holds it."""
    if cell.kind == "pretraining":
        return "pretrain.training.precision", recipe["training"]
    if cell.kind == "conversion":
        return "convert.recipe.precision", recipe
    return "finetune.precision", recipe
