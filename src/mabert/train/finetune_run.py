"""Resolves a fine-tuning into one value, which all its trainings share, before the first begins."""

import copy
import dataclasses
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import PreTrainedConfig, PreTrainedModel, TrainerCallback

from mabert.baselines.registry import family_of
from mabert.data.batches import ExampleSampler, TokenBudgetSampler, batches_by_length
from mabert.data.collate import Collator
from mabert.data.encode import EncodedExamples
from mabert.data.glue import GlueTask
from mabert.data.tasks import Rows, Task
from mabert.files.reading import read_json_if_there, to_json
from mabert.machine.environment import check_reporters, resolve_precision, warn_of_emulation
from mabert.machine.memory import TRAINING_BYTES, check_fits, naming_memory, parameters_of
from mabert.model import MaBertConfig
from mabert.model.config import make_config
from mabert.opening.opened import Model, Opened, open_model
from mabert.opening.uses import build, class_for, logits_in
from mabert.train.folder import RESULT, UNFINISHED, RunFolder, grid_file
from mabert.train.kinds import Kind, kind_of
from mabert.train.recipe import FinetuneRecipe, as_mapping, check_seeds
from mabert.train.trainer import TrainingDivergedError, join_processes, rows_at_once

logger = logging.getLogger(__name__)

FREE = ("report_to", "resolved.processes", "resolved.chosen_under")
"""Fields that a resumed run may change."""

SMALL_TASKS = ("cola", "mrpc", "rte")
"""Tasks of a few thousand examples, which get ten epochs rather than three."""

OF_MABERT = ("pooling", "padding_safe_masking")
"""Fields of MaBERT's configuration that fine-tuning may set."""

EXAMPLES_SEEN = 10_000
"""Rows of one's own that all epochs together show: 300 steps of 32. With 250 rows of SST-2, three epochs teach nothing
(benchmarks/LOG.md)."""

INPUTS = ("input_ids", "token_type_ids")
"""Model inputs among an example's columns; the rest are labels."""

SHORTER = "shorter examples help (--max-length; in a study finetune.max_length)"
SMALLER = f"a smaller batch helps (--batch-size, --batch-tokens; in a study finetune.batch_size), and {SHORTER}"


def rate_for(config: PreTrainedConfig) -> float:
    """Returns the default peak learning rate, to two digits: BERT's 2e-5 at width 768, higher for narrower models.

    Under Adam the best rate is about inversely proportional to a model's width (Yang et al. 2022, Tensor Programs V).
    """
    return float(f"{2e-5 * 768 / config.hidden_size:.1e}")


def epochs_of(recipe: FinetuneRecipe, task: Task, rows: int) -> int:
    """Returns the number of epochs for a task with so many rows to train on."""
    if recipe.epochs is not None:
        return recipe.epochs
    if isinstance(task, GlueTask):
        return 10 if task.name in SMALL_TASKS else 3
    return min(30, max(3, math.ceil(EXAMPLES_SEEN / rows)))


@dataclass(frozen=True)
class FinetuneRun:
    """What all trainings of one fine-tuning share; its folder is claimed."""

    model: Opened
    kind: Kind
    splits: Mapping[str, Rows]  # `train`, one or two splits named `validation...`, and `test...` if there
    recipe: FinetuneRecipe  # learning rates and epochs are decided
    precision: str  # fp32 or bf16
    max_length: int  # most tokens of an example
    folder: RunFolder
    processes: PartialState
    chooser: int  # the seed under which learning rates are tried
    tried: Mapping[float, dict[str, Any] | None]  # records of earlier starts by learning rate; None for those to try
    done: Mapping[int, dict[str, Any] | None]  # results of earlier starts by seed; None for those to train
    progress: bool
    callbacks: Sequence[TrainerCallback]

    @cached_property
    def examples(self) -> dict[str, EncodedExamples]:
        """The encoded examples of each split."""
        how = (self.model.tokenizer, self.max_length, self.recipe.truncate)
        return {split: self.kind.encoded(rows, *how, split) for split, rows in self.splits.items()}

    @cached_property
    def labels(self) -> dict[str, Any]:
        """The labels of each validation split."""
        return {split: self.kind.labels(rows) for split, rows in self.splits.items() if split.startswith("validation")}

    def digest(self) -> str:
        """Returns a hash of all ids and labels of all splits, which identifies the data."""
        sha = hashlib.sha256()
        for name, examples in self.examples.items():
            sha.update(f"{name} {len(examples)}".encode())
            for index in range(len(examples)):
                sha.update(to_json(examples[index], sort_keys=True).encode())
        return sha.hexdigest()[:16]

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The pretrained model's configuration with the task's and the recipe's fields, checked."""
        recipe, pools = self.recipe, self.kind.use == "classifier"
        if recipe.pooling is not None and not pools:
            raise ValueError(f"pooling is {recipe.pooling!r}; that is a classifier's, and this is a {self.kind.use}")
        fields = {**self.kind.config_fields(), **self.model.family.classifier_dropout(recipe.dropout)}
        config = tuned_config(self.model.config, recipe, fields, pools)
        parameters = parameters_of(class_for(self.kind.use, config), config)
        check_fits(f"the {self.kind.use}", parameters, TRAINING_BYTES["adamw"], device=self.processes.device)
        return config

    def new_model(self) -> PreTrainedModel:
        """Returns the pretrained (or a random) encoder with a new head and its own copy of the configuration."""
        config = copy.deepcopy(self.config)
        use = self.kind.use
        return build(use, config) if self.recipe.from_scratch else self.model.with_config(config).with_new_head(use)

    def batches(self, seed: int) -> ExampleSampler | TokenBudgetSampler:
        """Returns the run's batches over all processes, of `batch_tokens` tokens or `batch_size` examples."""
        recipe, config, lengths = self.recipe, self.config, self.examples["train"].lengths
        how: dict[str, Any] = {"epochs": recipe.epochs, "seed": seed, "grouped": recipe.batches == "length"}
        if recipe.batch_tokens is None:
            return ExampleSampler(lengths, recipe.batch_size, **how)
        unpads = isinstance(config, MaBertConfig) and config.unpad != "never" and config.padding_safe_masking == "exact"
        return TokenBudgetSampler(lengths, recipe.batch_tokens, padded=not unpads, **how)

    def predictions(self, model: PreTrainedModel, split: str) -> Any:
        """Returns a model's predictions on one split, one per row. Raises TrainingDivergedError if an output is not
        finite, which means that the last step was too large."""
        recipe, examples, kind = self.recipe, self.examples[split], self.kind
        rows = recipe.batch_size if recipe.batches == "random" else None
        pad_id = self.model.tokenizer.pad_token_id
        logits = logits_of(model, examples, pad_id, self.precision == "bf16", rows, kind.per_token)
        if not np.isfinite(logits).all():
            raise TrainingDivergedError(f"the outputs on {split} are not finite; a lower learning rate helps")
        return kind.predictions(examples.by_row(logits), examples)

    def scores(self, model: PreTrainedModel) -> Mapping[str, float | None]:
        """Computes the task's metrics on its first validation split."""
        split = next(iter(self.labels))
        return self.kind.scores(self.predictions(model, split), self.labels[split])

    def log_long_texts(self) -> None:
        """Logs how many texts of each split were truncated or read in windows, if any."""
        cut, windowed = [], []
        for split, found in self.examples.items():
            texts = f"of {len(self.splits[split]):,} of {split}"
            if found.cut:
                cut.append(f"{found.cut:,} {texts}")
            if found.windowed:
                windowed.append(f"{found.windowed:,} {texts}, which has {len(found):,} windows")
        for what, some in (("cut to", cut), ("read in windows of", windowed)):
            if some:
                logger.info("texts that were %s %d tokens: %s", what, self.max_length, ", ".join(some))

    def checkpoints(self, rate: float, seed: int) -> Path:
        """Returns the folder for a training's checkpoints."""
        return self.folder.path / UNFINISHED / self.name_of(rate, seed)

    def name_of(self, rate: float, seed: int) -> str:
        """Returns the name of a training among those of the fine-tuning."""
        return f"seed-{seed}-lr-{rate:g}"


def resolve(
    model: Model,
    task: Task,
    splits: Mapping[str, Rows],
    folder: RunFolder,
    recipe: FinetuneRecipe,
    seeds: Sequence[int],
    *,
    source: dict[str, Any] | None,
    progress: bool,
    callbacks: Sequence[TrainerCallback],
) -> FinetuneRun:
    """Resolves a fine-tuning and claims its folder; errors and other arguments are those of `mabert.train.finetune`."""
    seeds = check_seeds(seeds)
    check_reporters(recipe.report_to)
    warn_of_emulation(recipe.precision)
    processes, precision = join_processes(), resolve_precision(recipe.precision)
    if recipe.batch_tokens is None and recipe.batch_size % processes.num_processes:
        raise ValueError(f"batch_size is {recipe.batch_size}, not a multiple of {processes.num_processes} processes")
    opened = open_model(model)
    rates = recipe.learning_rates or [rate_for(opened.config)]
    recipe = dataclasses.replace(recipe, learning_rates=rates, epochs=epochs_of(recipe, task, len(splits["train"])))
    longest = opened.family.finite_limit(opened.config, recipe.max_length)
    if opened.longest is not None:  # saved with the model, as in pretraining
        opened.tokenizer.model_max_length = opened.longest
    request: dict[str, Any] = {"model": str(opened.place), "task": task.name, "source": source}
    request |= as_mapping(recipe)
    if processes.is_main_process:
        folder.check(request)
    # Seeds that are added to a run are trained at the learning rate of its first ones.
    chooser = folder.resolved().get("chosen_under", seeds[0])
    # All processes must agree on what is finished, so all read before the first one writes.
    tried = {rate: kept_record(grid_file(folder.path, rate), "score") for rate in rates}
    done = {seed: kept_record(folder.path / f"seed-{seed}" / RESULT, "metrics") for seed in seeds}
    kind = kind_of(task)
    run = FinetuneRun(
        opened, kind, splits, recipe, precision, longest, folder, processes, chooser, tried, done, progress, callbacks
    )
    kind.warn_of_examples(splits)
    request["resolved"] = {
        "weights": opened.place.digest(),
        "examples": {name: len(examples) for name, examples in run.examples.items()},
        "data": run.digest(),
        "precision": precision,
        "processes": processes.num_processes,
        **({"chosen_under": chooser} if len(rates) > 1 else {}),
    }
    run.new_model()  # may refuse, so before anything is written
    if processes.is_main_process:
        run.log_long_texts()
        folder.claim(request)
    processes.wait_for_everyone()
    return run


def kept_record(file: Path, *fields: str) -> dict[str, Any] | None:
    """Reads an earlier start's record of a training; None if there is none, ValueError if it is damaged."""
    record = read_json_if_there(file)
    missing = [name for name in ("seed", "learning_rate", *fields) if record is not None and name not in record]
    if missing:
        raise ValueError(f"{file}: damaged: it lacks {', '.join(missing)}; remove it, and --resume makes it anew")
    return record


def tuned_config(
    config: PreTrainedConfig, recipe: FinetuneRecipe, fields: Mapping[str, Any], pools: bool
) -> PreTrainedConfig:
    """Returns a pretrained model's configuration with the task's fields and those that the recipe sets; `pools` tells
    whether the task's head pools token vectors. Raises a ValueError that names the field that the model does not
    support: pooling, masking or packing."""
    own = {name: value for name in OF_MABERT if (value := getattr(recipe, name)) is not None}
    fields = {**config.to_dict(), **fields}
    if isinstance(config, MaBertConfig):
        config = make_config(**{**fields, **own})
    elif own:
        name, value = next(iter(own.items()))
        raise ValueError(f"{name} is {value!r}; that is MaBERT's, and this is a {config.model_type} model")
    else:
        config = type(config)(**fields)
    family_of(config).set_packing(config, recipe.packing, pools)
    return config


@torch.no_grad()
def logits_of(
    model: PreTrainedModel,
    examples: EncodedExamples,
    pad_id: int,
    bf16: bool = False,
    rows: int | None = None,
    per_token: bool = False,
) -> np.ndarray:
    """Returns a model's outputs in the order of the examples: float32 (examples, labels), or with an output per token
    (`per_token`) the concatenation (tokens, labels).

    Batches are grouped by length, or hold `rows` examples in their order. Texts run one by one if a model's outputs
    depend on the rest of the batch, except for a MaBERT with `rows`. All processes must call this; each runs a part of
    the batches and all get the whole result.
    """
    training, helps, device = model.training, SHORTER if rows is None else SMALLER, model.device
    model.eval()
    collate = Collator(pad_id)
    ends = np.cumsum(examples.lengths) if per_token else range(1, len(examples) + 1)
    out = np.zeros((int(ends[-1]) if len(examples) else 0, model.config.num_labels), np.float32)
    asked = rows is not None and isinstance(model.config, MaBertConfig)  # for studies of the effect of padding
    if not asked and family_of(model.config).depends_on_batch(model.config, examples.lengths, not per_token):
        rows = 1
    order = range(len(examples))
    batches = (
        batches_by_length(examples.lengths) if rows is None else [list(order[at : at + rows]) for at in order[::rows]]
    )
    processes = PartialState()

    def where() -> str:
        return f"in evaluation, with {rows_at_once(filled)}; {helps}"

    # Once around all batches, because autocast drops its cast weights when it ends.
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for batch in batches[processes.process_index :: processes.num_processes]:
            filled = collate([{k: v for k, v in examples[index].items() if k in INPUTS} for index in batch])
            with naming_memory(where):
                inputs = {name: value.to(device) for name, value in filled.items()}
                logits = logits_in(model(**inputs)).float().cpu().numpy()
            for index, found in zip(batch, logits, strict=True):
                size = examples.lengths[index] if per_token else 1
                out[ends[index] - size : ends[index]] = found[:size] if per_token else found
    model.train(training)
    if processes.num_processes > 1:  # exact: each row is zero in all processes but one
        out = reduce(torch.from_numpy(out).to(device), "sum").cpu().numpy()
    return out
