"""Recipes: YAML files that describe runs; the command line can override every field."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mabert.data import WindowKind
from mabert.data.corpus import Source, parse_sources
from mabert.files.places import default_cache, expanded
from mabert.files.reading import shown
from mabert.machine import Precision
from mabert.schema import Masking, Pooling
from mabert.schema.check import Checked, check, check_configuration, is_number, unknown
from mabert.schema.ranges import (
    ONE_OR_MORE,
    BatchSize,
    Budget,
    Count,
    Fraction,
    LearningRate,
    Range,
    Rate,
    Seed,
    Seeds,
    Tokens,
    WeightDecay,
)
from mabert.train.folder import DIRECTORY, RunFolder, located, read_yaml

if TYPE_CHECKING:
    from mabert.baselines.family import Family

TENSORBOARD = "tensorboard"

Reporters = Annotated[list[str], ONE_OR_MORE]

PackingChoice = Literal["none", "pack", "unpad"]


@dataclass
class DataRecipe(Checked, where="data"):
    """Text to pretrain on.

    Attributes:
        sources: Files, folders or hub data sets, see `mabert.data.corpus`.
        text_column: The key or column with the text in JSONL and Parquet files; a hub data set names its own.
        cache: Folder of tokenised corpora; default, `~/.cache/mabert` or `$MABERT_CACHE`.
        windows: `packed`, documents joined and cut; or `document`, windows of any length that never cross documents.
        held_out: Share of the tokens kept for the held-out loss.
        max_tokens: Stop reading after this many tokens.
    """

    sources: Annotated[list[str], ONE_OR_MORE] = field(default_factory=list)
    text_column: str = "text"
    cache: str | None = None
    windows: WindowKind = "packed"
    held_out: Annotated[float, Range(0, 1, above=True, below=True)] = 0.005
    max_tokens: Annotated[int, Range(1, 10**15)] | None = None

    @property
    def folder(self) -> Path:
        """The folder of tokenised corpora."""
        return expanded(self.cache) if self.cache else default_cache()

    def readable(self) -> list[Source]:
        """Returns the parsed sources; raises what `parse_sources` does, and ValueError if there is none."""
        if not self.sources:
            raise ValueError("the recipe names no text; set data.sources= to files, folders or hub data sets")
        return parse_sources(self.sources, self.text_column)


@dataclass
class MaskingRecipe(Checked, where="masking"):
    """Masking (Table A1: 15 % of tokens, of which 80 % become [MASK], 10 % a random token, and 10 % stay)."""

    probability: Fraction = 0.15
    mask_share: Fraction = 0.8
    random_share: Fraction = 0.1
    whole_word: bool = False


@dataclass
class Stage(Checked, where="stages"):
    """A stage of the length schedule: windows of `length` tokens for `share` of the steps."""

    length: Annotated[int, Range(4, 2**24)]
    share: Fraction


@dataclass
class TrainingRecipe(Checked, where="training"):
    """Optimisation (defaults from Table A1).

    Attributes:
        steps: Optimizer steps of the whole budget.
        batch_size: Windows per step, over all processes and micro-batches.
        micro_batch_size: Windows per forward pass in one process; gradients accumulate up to `batch_size`.
        optimizer: `adamw`, or `adafactor` (Shazeer and Stern 2018), which keeps far less state.
        learning_rate: Peak, reached after `warmup_steps`.
        schedule: The rate after that: `linear` or `cosine` to zero, `constant`, or `wsd`, constant until a linear
            decay in the last tenth of the steps.
        warmup_steps: Steps of linear warm-up.
        adam_beta1: AdamW's β1.
        adam_beta2: AdamW's β2.
        adam_epsilon: AdamW's ε.
        weight_decay: Weight decay of matrices and embeddings.
        decay_exempt: `default`, no decay on biases, norms, A_log, D and Δ bias; or `nothing`, decay on all.
        max_grad_norm: Gradient clipping by global norm.
        precision: `fp32`; `bf16` by autocast; or `auto`, bf16 where the device has instructions for it.
        gradient_checkpointing: Recompute activations in the backward pass.
        seed: Seed of initialisation, dropout, order and masks.
        log_steps: Steps between logged losses; default, a twentieth of the run, at most 50.
        eval_steps: Steps between held-out evaluations; default, a twentieth of the run.
        eval_windows: Held-out windows that are scored.
        save_steps: Steps between checkpoints; default, a twentieth of the run. Another is saved every ten minutes in
            between and replaced by the next.
        keep_checkpoints: Checkpoints that stay on disk, besides the last of those in between.
        workers: Processes that make batches; 0 makes them in the training process.
        packing: How the model runs windows of different lengths: `unpad`, a padded batch whose padding the model
            removes; `pack`, windows concatenated in one row; `none`, padded and masked. With exact masking (the
            default) the results are the same up to rounding and dropout draws; otherwise `pack` is refused.
        compile: Whether each layer is compiled by `torch.compile`, so that a GPU starts fewer kernels.
        report_to: Where curves go, as transformers' `report_to` names it: `tensorboard`, `wandb`, `mlflow`, `trackio`
            and so on, `all` or `none`.
    """

    steps: Count = 1_000_000
    batch_size: BatchSize = 256
    micro_batch_size: BatchSize = 256
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    learning_rate: LearningRate = 6e-4
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    warmup_steps: Annotated[int, Range(0, 10**9)] = 24_000
    adam_beta1: Rate = 0.9
    adam_beta2: Rate = 0.98
    adam_epsilon: Fraction = 1e-6
    weight_decay: WeightDecay = 0.01
    decay_exempt: Literal["default", "nothing"] = "default"
    max_grad_norm: Annotated[float, Range(0, 10**9)] = 1.0
    precision: Precision = "auto"
    gradient_checkpointing: bool = False
    seed: Seed = 0
    log_steps: Count | None = None
    eval_steps: Count | None = None
    eval_windows: Count = 512
    save_steps: Count | None = None
    keep_checkpoints: Count = 2
    workers: Annotated[int, Range(0, 64)] = 0
    packing: PackingChoice = "unpad"
    compile: bool = False
    report_to: Reporters = field(default_factory=lambda: [TENSORBOARD])


@dataclass
class PretrainRecipe(Checked):
    """A whole pretraining run.

    Attributes:
        architecture: The family of the model, see `mabert.baselines.registry`.
        model: Fields of `MaBertConfig`; for a baseline, fields of its own configuration and those of
            `mabert.baselines.family.COMMON`, which set its sizes. The vocabulary size comes from the tokenizer.
        tokenizer: Folder, `vocab.txt`, `tokenizer.json` or hub name; default, that of the family's published model on
            the hub, or, if the hub is out of reach, a WordPiece trained on `data.sources`.
        stages: The length schedule.
        start_from: Model to start from instead of random weights, as `mabert.files.places.find` finds it. It sets
            architecture, sizes and tokenizer; of `model`, only dropout and masking may then be set.
    """

    architecture: str = "mabert"
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    data: DataRecipe = field(default_factory=DataRecipe)
    masking: MaskingRecipe = field(default_factory=MaskingRecipe)
    stages: Annotated[list[Stage], ONE_OR_MORE] = field(default_factory=lambda: [Stage(128, 0.9), Stage(512, 0.1)])
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    start_from: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_from == "":
            raise ValueError("start_from is ''; it must be a model's folder or name")
        # Checked before torch and transformers load, which takes seconds; numbers written as text are checked later.
        check_configuration({name: value for name, value in self.model.items() if is_number(value)}, {}, "model")
        family = self.family
        known = family.known_fields()
        for key in self.model:
            # These change neither the shape nor the use of trained weights.
            changeable = "dropout" in key or key == "padding_safe_masking"
            if self.start_from is not None and not changeable:
                raise ValueError(
                    f"model.{key} is that of {self.start_from}, which the run starts from; only dropout and "
                    "padding_safe_masking may be set"
                )
            if key not in known:
                raise ValueError(unknown(f"model.{key}", [f"model.{name}" for name in known]))
        self.model = check_configuration(self.model, family.declared(), "model", written=True)
        if self.start_from is None:
            family.config_of(self.model)  # may refuse, before a tokenizer is found or trained
        total = sum(stage.share for stage in self.stages)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of stages add up to {total:g}; they must add up to 1")

    @property
    def family(self) -> "Family":
        """The family of the model; ValueError if there is none of the architecture's name."""
        from mabert.baselines.registry import family_named  # loads torch and transformers

        return family_named(self.architecture)

    def steps_by_length(self) -> list[tuple[int, int]]:
        """Returns the tokens of a window and the steps of each stage; all steps add up to `training.steps`."""
        ends, passed = [0], 0.0
        for stage in self.stages:
            passed += stage.share
            ends.append(round(passed * self.training.steps))
        return [(stage.length, end - start) for stage, (start, end) in zip(self.stages, pairwise(ends), strict=True)]

    def at_budget(self, share: float) -> "PretrainRecipe":
        """Returns the same run at a share of its steps, with its own warm-up and decay (Table A1's step budgets)."""
        share = check(Budget, share, "budget")
        steps = max(1, round(self.training.steps * share))
        warmup = round(self.training.warmup_steps * share)
        return dataclasses.replace(self, training=dataclasses.replace(self.training, steps=steps, warmup_steps=warmup))


@dataclass
class FinetuneRecipe(Checked):
    """How a model is fine-tuned.

    Attributes:
        learning_rates: Peak learning rates; with several, the first seed tries each, and all seeds use the best on the
            validation data. Default, one chosen by the model's width (`rate_for`).
        epochs: Passes over the training data; default, for GLUE 10 (CoLA, MRPC, RTE) or 3; for rows
            of your own as many as it takes to see 10,000, at least 3 and at most 30.
        batch_size: Examples per step. To save memory, a step of more than 4,096 tokens is run in parts; the result is
            the same up to rounding and dropout draws.
        batch_tokens: Maximum tokens per step, instead of `batch_size`: every step costs about the same and is run at
            once. Padding counts if the model computes it.
        batches: `length`, batches of examples of similar length, with little padding; or `random`, unsorted batches
            with more padding, and evaluation in the order of the examples.
        packing: `unpad`, padded batches whose padding the model removes; `pack`, examples concatenated in one row;
            `none`, padded and masked. With exact masking the results are the same up to rounding and dropout draws;
            otherwise `pack` is refused.
        warmup_share: Share of the steps with rising learning rate; then linear to zero.
        weight_decay: AdamW's, with the exemptions of `mabert.train.objective`.
        dropout: Dropout probability of embeddings, sub-layers, attention and classifier.
        max_length: Maximum tokens of an example; default, the model's.
        truncate: Whether to truncate longer examples; otherwise a classifier reads single texts, and a reader contexts,
            in windows, and longer pairs and tagged texts are an error.
        precision: `fp32`; `bf16` by autocast; or `auto`, bf16 where the device has instructions for it.
        select: `last`, the weights after the last epoch; or `best`, those of the epoch with the best main metric on the
            validation data.
        from_scratch: Whether to use random weights instead of the pretrained ones.
        pooling: Pooling; default, the model's.
        padding_safe_masking: Masking; default, the model's. With any but `exact`, batches are run with their padding.
        report_to: Where curves go, as in `TrainingRecipe`.
    """

    learning_rates: Annotated[list[LearningRate], ONE_OR_MORE] | None = None
    epochs: Count | None = None
    batch_size: BatchSize = 32
    batch_tokens: Tokens | None = None
    batches: Literal["length", "random"] = "length"
    packing: PackingChoice = "unpad"
    warmup_share: Rate = 0.06
    weight_decay: WeightDecay = 0.01
    dropout: Rate = 0.1
    max_length: Tokens | None = None
    truncate: bool = False
    precision: Precision = "auto"
    select: Literal["last", "best"] = "last"
    from_scratch: bool = False
    pooling: Pooling | None = None
    padding_safe_masking: Masking | None = None
    report_to: Reporters = field(default_factory=lambda: [TENSORBOARD])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rates == []:
            raise ValueError("learning_rates are []; at least one is needed")


def check_seeds(seeds: Iterable[int]) -> list[int]:
    """Returns seeds, of a list, an array or a tensor, as Python's numbers; refuses repeated ones and those that a
    random generator does not take, by a ValueError that names them."""
    found = [getattr(seed, "item", lambda seed=seed: seed)() for seed in seeds]
    return check(Seeds, found, "seeds")


def load_recipe(path: str | Path, overrides: list[str] | None = None) -> PretrainRecipe:
    """Reads a recipe: a YAML file, or a packaged one by its name (`demo`, `mini`, `small-gpu`, `paper`). Overrides are
    `section.field=value`, the value in YAML: `model.hidden_size=256`, `data.sources=[a.txt,b.txt]`. If they name a
    model to start from, it replaces the file's own model.

    Raises ValueError for an unknown field (names the nearest one) or a value of the wrong type, and FileNotFoundError
    if there is no such file.
    """
    content = read_yaml(find_recipe(path))
    if with_overrides({}, overrides).get("start_from") is not None:
        content = {name: value for name, value in content.items() if name not in ("architecture", "model", "tokenizer")}
    content = with_overrides(content, overrides)
    if content.get("start_from") is not None:
        start = check(str, content["start_from"], "start_from")
        if start:
            from mabert.opening.opened import open_model

            content.setdefault("architecture", open_model(start).family.name)
    return check(PretrainRecipe, content)


def with_overrides(content: dict[str, Any], overrides: list[str] | None) -> dict[str, Any]:
    """Sets `section.field=value` for each override, in place."""
    from mabert.files.yaml import parse_yaml

    for override in overrides or []:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ValueError(f"{shown(override)} is not of the form name=value, such as training.steps=100")
        set_field(content, key.split("."), parse_yaml(value, f"the value in {f'{key[:80]}={value[:40]}'!r}"))
    return content


def set_field(content: dict[str, Any], keys: list[str], value: Any) -> None:
    """Sets a nested field, creating missing sections."""
    for key in keys[:-1]:
        if content.get(key) is None:
            content[key] = {}
        content = content[key]
        if not isinstance(content, dict):
            raise ValueError(f"{'.'.join(keys)} cannot be set: {key} is not a section")
    content[keys[-1]] = value


def recipe_of_run(folder: str | Path, overrides: list[str] | None = None) -> PretrainRecipe:
    """Reads the recipe of a run from its folder, so that resuming needs no option again; takes overrides as
    `load_recipe` does. Raises ValueError if the folder holds no pretraining run."""
    run = RunFolder(folder, resume=True)
    run.check({})
    return check(PretrainRecipe, with_overrides(located(run.request()), overrides))


def as_begun(recipe: PretrainRecipe, folder: str | Path) -> PretrainRecipe:
    """Returns the recipe with its files named as when the run in a folder began."""
    began = RunFolder(folder).request().get(DIRECTORY)
    return check(PretrainRecipe, located({**as_mapping(recipe), DIRECTORY: began}))


def find_recipe(path: str | Path) -> Path:
    """Finds a recipe by its path, or a packaged one by its name."""
    given = Path(path)
    if given.exists() and not given.is_dir():  # a pipe, too
        return given
    folders = recipe_folders()
    packaged = given.suffix in ("", ".yaml") and given.parent in (Path(), Path("recipes"))
    for folder in folders:
        if packaged and (folder / f"{given.stem}.yaml").is_file():
            return folder / f"{given.stem}.yaml"
    names = sorted(file.stem for folder in folders if folder.is_dir() for file in folder.glob("*.yaml"))
    raise FileNotFoundError(f"no recipe {str(path)!r}; give a YAML file or one of {names}")


def recipe_folders() -> tuple[Path, Path]:
    """Returns the folders of the package's own recipes: in an installed package, and in a checkout."""
    return Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes"


def as_mapping(recipe: PretrainRecipe | FinetuneRecipe) -> dict[str, Any]:
    """Returns the recipe as nested plain values, as `load_recipe` reads them.

    Fields of `LATER` are included only if they differ from their defaults, so that runs and cells identified by these
    values keep their names.
    """
    content, default = dataclasses.asdict(recipe), dataclasses.asdict(type(recipe)())
    for fields, usual in ((content, default), (content.get("training", {}), default.get("training", {}))):
        for name in LATER & fields.keys():
            if fields[name] == usual[name]:
                del fields[name]
    return content


LATER = {"start_from", "compile", "optimizer", "schedule", "report_to"}
"""Fields that the first recipes did not have."""
