"""Studies (which arms are compared, at which budgets) and scales (sizes of models, runs and tasks).

A study is a YAML file with the fields of `Study`, a scale one with those of `Scale`. The package's own are in
`recipes/studies` and `recipes/scales`.
"""

import logging
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from mabert.files.reading import key_of
from mabert.files.tables import check_can_read_twice
from mabert.schema.check import Checked, check, check_part
from mabert.schema.ranges import ONE_OR_MORE, Budgets, Range, Seeds
from mabert.train.folder import read_yaml
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe, as_mapping, find_recipe, recipe_folders, with_overrides
from mabert_lab.study.tasks import StudyTask

logger = logging.getLogger(__name__)

Packaged = Literal["pattern", "components", "pooling", "budget", "baselines"]
STUDIES: tuple[str, ...] = typing.get_args(Packaged)
CONVERTED = {name: f"convert-{name}" for name in ("pattern", "components", "pooling")}  # their names for conversions

SCALES = ("tiny", "mini", "small", "paper")
CONVERT_SCALES = ("convert-tiny", "convert")
PACKAGED = (*STUDIES, *CONVERTED.values())
WORDS = ("title", "note", "learnt_below")  # fields of a study that change none of its runs


@dataclass
class Arm(Checked):
    """A variant that a study compares."""

    paper: str | None = None  # key of its row in the paper's table; None if the paper has none
    # Fields of the pretraining recipe, nested or by dotted name (`model.layer_pattern`), that override the scale's.
    pretrain: dict[str, Any] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)  # fields that override the scale's and the task's
    # Fields of `ConversionRecipe` that override the scale's, if the arm is a conversion of the scale's teacher instead
    # of a pretraining. A pattern of only Ts is the unchanged teacher.
    convert: dict[str, Any] | None = None


@dataclass
class Study(Checked):
    """A set of arms to compare."""

    title: str
    arms: dict[str, Arm]  # in the order of the tables
    reference: str  # the arm that the others are compared with
    label: str | None = None  # of the paper's table of the same question, to compare with; None if there is none
    note: str = ""  # for readers of the numbers
    # Held-out loss in nats a masked token; an arm whose pretraining does not end below it decides no claim. None for
    # the one in `mabert_lab/report/claims.yaml`, which is of a vocabulary of 30,522.
    learnt_below: Annotated[float, Range(0, 100, above=True)] | None = None
    budgets: Budgets = field(default_factory=lambda: [1.0])  # shares of the scale's steps, each a pretraining
    finetune: dict[str, Any] = field(default_factory=dict)  # of all arms, over the scale's and the task's

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.arms:
            raise ValueError("arms is empty; a study compares at least one")
        check_part(FinetuneRecipe, self.finetune, "finetune")
        for name, arm in self.arms.items():
            # A model's fields depend on the architecture, which only the scale may set.
            whole = {key: value for key, value in nested(arm.pretrain).items() if key != "model"}
            check_part(PretrainRecipe, whole, f"arms.{name}.pretrain")
            check_part(FinetuneRecipe, arm.finetune, f"arms.{name}.finetune")
            check_conversion(arm.convert, f"arms.{name}.convert")
            if (arm.convert is None) == self.converts or (arm.convert is not None and arm.pretrain):
                raise ValueError(f"arms.{name}: the arms of a study have all convert and no pretrain, or none convert")
            arm.finetune = {**self.finetune, **arm.finetune}
        if self.reference not in self.arms:
            raise ValueError(f"reference is {self.reference!r}; the arms are {', '.join(self.arms)}")
        if self.converts and self.budgets != [1.0]:
            raise ValueError("budgets are shares of a pretraining's steps; the arms of this study are conversions")

    @property
    def converts(self) -> bool:
        """Whether its arms are conversions of one teacher."""
        return any(arm.convert is not None for arm in self.arms.values())


@dataclass
class ConvertSettings(Checked, where="convert"):
    """The source and settings of all conversions."""

    teacher: str | None = None  # as in `mabert convert`
    texts: Annotated[list[str], ONE_OR_MORE] = field(default_factory=list)  # files, folders or hub data sets
    text_column: str = "text"  # of tables
    seeds: Seeds = field(default_factory=lambda: [0])  # of the conversions of each arm
    recipe: dict[str, Any] = field(default_factory=dict)  # fields of `ConversionRecipe`

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conversion(self.recipe, "convert.recipe")


@dataclass
class Scale(Checked):
    """The sizes of a study's models, runs and tasks."""

    recipe: str | None = None  # name or file of a pretraining recipe, whose steps are the full budget
    pretrain: dict[str, Any] = field(default_factory=dict)  # nested fields that override the recipe's
    finetune: dict[str, Any] = field(default_factory=dict)  # fields of `FinetuneRecipe`
    tasks: dict[str, Any] = field(default_factory=dict)  # by name, see `StudyTask`; GLUE's need only the name
    seeds: Seeds = field(default_factory=lambda: [0, 1, 2, 3, 4])  # of fine-tuning
    # Budgets by study that override its own, for scales at which a tenth of the steps teaches nothing.
    budgets: dict[Packaged, Budgets] = field(default_factory=dict)
    # Tokenizers by family that override its own: folder, `vocab.txt`, `tokenizer.json` or hub name.
    tokenizers: dict[str, str | None] = field(default_factory=dict)
    convert: ConvertSettings | None = None  # if arms are conversions; recipe, pretrain and budgets have no effect then

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe is not None:
            self.pretrain = merged(read_yaml(find_recipe(self.recipe)), self.pretrain)
            self.recipe = None
        check(PretrainRecipe, self.pretrain, "pretrain")
        check(FinetuneRecipe, self.finetune, "finetune")
        self.tasks = {name: StudyTask.of(name, content) for name, content in self.tasks.items()}
        if not self.tasks:
            raise ValueError("tasks is empty; a study measures on at least one")
        if self.tokenizers:
            from mabert.baselines.registry import family_named  # loads torch and transformers
        for family in self.tokenizers:
            try:
                family_named(family)
            except ValueError as error:
                raise ValueError(f"tokenizers: {error}") from error

    def pretraining(self, arm: Arm, budget: float) -> PretrainRecipe:
        content = as_mapping(check(PretrainRecipe, self.pretrain, "pretrain"))
        return check(PretrainRecipe, merged(content, nested(arm.pretrain))).at_budget(budget)

    def finetuning(self, arm: Arm, task: StudyTask) -> FinetuneRecipe:
        # One learning rate for all arms, whatever their width, unless scale, task or arm names others.
        # Curves of hundreds of short trainings are not worth their time, unless somebody asks.
        fields = {"learning_rates": [2e-5], "report_to": ["none"], **self.finetune, **task.finetune, **arm.finetune}
        return check(FinetuneRecipe, fields, "finetune")


def load_study(name: str | Path) -> Study:
    """Reads one of the studies in `PACKAGED`, or a YAML file; raises what `load_scale` does."""
    return check(Study, read_yaml(find(name, "studies", PACKAGED)))


def load_scale(name: str | Path, overrides: list[str] | None = None) -> Scale:
    """Reads one of the `SCALES` or `CONVERT_SCALES`, or a YAML file, with overrides such as `seeds=[0,1]`.
    FileNotFoundError if there is none; ValueError for an unknown field or a value of the wrong type."""
    return check(Scale, with_overrides(read_yaml(find_scale(name)), overrides))


def find_scale(name: str | Path) -> Path:
    return find(name, "scales", SCALES + CONVERT_SCALES)


def check_conversion(fields: dict[str, Any] | None, where: str) -> None:
    """Refuses fields that `ConversionRecipe` does not have; the message names the place."""
    if not fields:
        return
    from mabert.conversion.recipe import ConversionRecipe  # loads torch and transformers

    check_part(ConversionRecipe, fields, where)
    if "seed" in fields:
        raise ValueError(f"{where}.seed is {fields['seed']!r}; the seeds of conversion are the scale's convert.seeds")


def check_reach(study: Study, scale: Scale, overrides: list[str]) -> None:
    """Refuses overrides of the whole scale's fine-tuning that every task or arm would override in turn; the message
    says where to set the field. Warns of tasks that keep their own if others do not."""
    given = with_overrides({}, overrides).get("finetune")
    for name in given if isinstance(given, dict) else ():
        keep = [task for task, about in scale.tasks.items() if name in about.finetune]
        fields = ", ".join(f"tasks.{task}.finetune.{name}" for task in keep)
        if all(name in arm.finetune for arm in study.arms.values()):
            raise ValueError(f"finetune.{name} would change nothing: every arm of the study has its own")
        if len(keep) == len(scale.tasks):
            raise ValueError(f"finetune.{name} would change nothing: every task of the scale has its own; set {fields}")
        if keep:
            logger.warning("finetune.%s does not change the tasks that have their own: %s", name, fields)


def label_of(study: str | Path) -> str:
    """Returns a study's name in tables and files; the user's own has digits of a hash of all but the `WORDS`."""
    path = find(study, "studies", PACKAGED)
    if path != Path(study):
        return str(study)
    compared = {name: value for name, value in read_yaml(path).items() if name not in WORDS}
    return f"{path.stem}-{key_of(compared, 4, default=str)}"


def find(name: str | Path, folder: str, known: tuple[str, ...]) -> Path:
    """Finds a file by its path, or one of the package's by its name."""
    if Path(name).exists() and not Path(name).is_dir():
        check_can_read_twice(Path(name))
        return Path(name)
    if str(name) in known:
        places = [place / folder / f"{name}.yaml" for place in recipe_folders()]
        return next(place for place in places if place.is_file())
    raise FileNotFoundError(f"no file {str(name)!r}, nor one of {', '.join(known)}")


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Converts fields with dotted names to nested sections."""
    content: dict[str, Any] = {}
    for name, value in fields.items():
        for key in reversed(name.split(".")):
            value = {key: value}
        content = merged(content, value)
    return content


def merged(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = dict(content)
    for name, value in changes.items():
        old = both.get(name)
        both[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both
