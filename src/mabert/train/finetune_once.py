"""One fine-tuned model: the task's examples, the model with a new head, one training run."""

import copy
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback, set_seed

from mabert.baselines.load import build, class_for, load_config, logits_in, with_new_head
from mabert.baselines.registry import family_of
from mabert.data.batches import ExampleSampler, SplitBatches, TokenBudgetSampler, batch_share, batches_by_length
from mabert.data.collate import Collator
from mabert.data.encode import Examples
from mabert.data.glue import GlueTask
from mabert.data.task import Rows, Task
from mabert.files.writing import CannotSaveError
from mabert.machine.memory import TRAINED, check_fits, naming_memory
from mabert.machine.precision import resolve_precision
from mabert.model import MaBertConfig
from mabert.model.config import make_config
from mabert.model.load import parameters_of
from mabert.train.checkpoint import checkpoint_to_resume
from mabert.train.kinds import Kind
from mabert.train.recipe import FinetuneRecipe, check_packing, unpad_of
from mabert.train.run import UNFINISHED
from mabert.train.trainer import MaBertTrainer, TrainingDivergedError, collator_of, rows_at_once, training_arguments

logger = logging.getLogger(__name__)

SMALL_TASKS = ("cola", "mrpc", "rte")
"""Tasks of a few thousand examples, which get ten epochs rather than three."""

BEST = "best.safetensors"
"""The weights of the best epoch so far, in a checkpoint."""

AT_ONCE = 4096
"""Padded tokens of a step that are run at once, unless `batch_tokens` says how many a step has, or one row has more:
the default batch of 32 rows of 128 tokens. An encoder of 22 M parameters takes 3.7 GiB for them in rows of 512."""

INPUTS = ("input_ids", "token_type_ids")
"""What a model reads of an example; the rest are labels."""

SHORTER = "shorter examples help (--max-length with --truncate; in a study finetune.max_length and so on)"
SMALLER = f"a smaller batch helps (--batch-size, --batch-tokens; in a study finetune.batch_size), and {SHORTER}"


def rate_for(config: PreTrainedConfig) -> float:
    """The peak learning rate that is tried unless another is asked for: BERT's 2e-5 at width 768, and more for less.

    Under Adam the best rate is about inversely proportional to a model's width (Yang et al. 2022, Tensor Programs V).

    Args:
        config: Of the model.

    Returns:
        The rate, to two digits.
    """
    return float(f"{2e-5 * 768 / config.hidden_size:.1e}")


def epochs_of(recipe: FinetuneRecipe, task: Task) -> int:
    """Passes over a task's training data."""
    if recipe.epochs is not None:
        return recipe.epochs
    return 10 if isinstance(task, GlueTask) and task.name in SMALL_TASKS else 3


@dataclass(frozen=True)
class Job:
    """What all trainings of one fine-tuning share.

    Attributes:
        model: Folder or hub name of the pretrained model.
        tokenizer: Its tokenizer.
        kind: Of the task, for it.
        splits: The task's rows: `train`, one or two whose name starts with `validation`, `test...` if there.
        recipe: How to train.
        max_length: Tokens of an example at most.
        folder: Of the fine-tuning.
        processes: This process among those that train together.
        progress: Whether to show progress.
        callbacks: transformers callbacks beside ours.
    """

    model: str | Path
    tokenizer: PreTrainedTokenizerFast
    kind: Kind
    splits: Mapping[str, Rows]
    recipe: FinetuneRecipe
    max_length: int
    folder: Path
    processes: PartialState
    progress: bool = True
    callbacks: Sequence[TrainerCallback] = ()

    @cached_property
    def examples(self) -> dict[str, Examples]:
        """The examples of each split, ready for the model."""
        how = (self.tokenizer, self.max_length, self.recipe.truncate)
        return {split: self.kind.encoded(rows, *how, split) for split, rows in self.splits.items()}

    @cached_property
    def labels(self) -> dict[str, Any]:
        """The truth about each validation split."""
        return {split: self.kind.labels(rows) for split, rows in self.splits.items() if split.startswith("validation")}

    def digest(self) -> str:
        """What the examples are known by: a hash of every id and label of every split."""
        sha = hashlib.sha256()
        for name, examples in self.examples.items():
            sha.update(f"{name} {len(examples)}".encode())
            for index in range(len(examples)):
                sha.update(json.dumps(examples[index], sort_keys=True).encode())
        return sha.hexdigest()[:16]

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The pretrained model's configuration with what the task and the recipe say, checked."""
        recipe, config = self.recipe, load_config(self.model)
        own = {name: getattr(recipe, name) for name in ("pooling", "padding_safe_masking")}
        own = {name: value for name, value in own.items() if value is not None}
        fields = {**self.kind.config_fields(), **family_of(config).classifier_dropout(recipe.dropout)}
        if isinstance(config, MaBertConfig):
            config = make_config(**{**config.to_dict(), **fields, "unpad": unpad_of(recipe.packing), **own})
        elif own:
            name, value = next(iter(own.items()))
            raise ValueError(f"{name} is {value!r}; that is MaBERT's, {self.model} is a {config.model_type} model")
        else:
            config = type(config)(**{**config.to_dict(), **fields})
        pools = self.kind.use == "classifier"
        if recipe.pooling is not None and not pools:
            raise ValueError(f"pooling is {recipe.pooling!r}; that is a classifier's, and this is a {self.kind.use}")
        check_packing(recipe.packing, config, pools)
        check_fits(f"the {self.kind.use}", parameters_of(class_for(self.kind.use, config), config), TRAINED)
        return config

    def new_model(self) -> PreTrainedModel:
        """The pretrained encoder (or one at random) under a new head, with a configuration of its own."""
        config = copy.deepcopy(self.config)
        use = self.kind.use
        return build(use, config) if self.recipe.from_scratch else with_new_head(self.model, config, use)

    def batches(self, seed: int) -> ExampleSampler | TokenBudgetSampler:
        """The batches of a whole run, all processes together: of `batch_tokens`, or of `batch_size` examples."""
        recipe, config, lengths = self.recipe, self.config, self.examples["train"].lengths
        how: dict[str, Any] = {"epochs": epochs_of(recipe, self.kind.task), "seed": seed}
        how["grouped"] = recipe.batches == "length"
        if recipe.batch_tokens is None:
            return ExampleSampler(lengths, recipe.batch_size, **how)
        unpads = isinstance(config, MaBertConfig) and config.unpad != "never" and config.padding_safe_masking == "exact"
        return TokenBudgetSampler(lengths, recipe.batch_tokens, padded=not unpads, **how)

    def answers(self, model: PreTrainedModel, split: str) -> Any:
        """What a model says of one split, an answer an example. If its outputs are no numbers, the last step was too
        large, and this is a TrainingDivergedError."""
        recipe, examples, kind = self.recipe, self.examples[split], self.kind
        rows = recipe.batch_size if recipe.batches == "random" else None
        how: dict[str, Any] = {"precision": recipe.precision, "rows": rows, "a_token": kind.a_token}
        logits = logits_of(model, examples, self.tokenizer.pad_token_id, **how)
        if not np.isfinite(logits).all():
            raise TrainingDivergedError(f"the outputs on {split} are not finite; a lower learning rate helps")
        return kind.answers(logits, examples)

    def scores(self, model: PreTrainedModel) -> Mapping[str, float | None]:
        """The task's metrics on its first validation split."""
        split = next(iter(self.labels))
        return self.kind.scores(self.answers(model, split), self.labels[split])

    def checkpoints(self, rate: float, seed: int) -> Path:
        """Where a training leaves its checkpoints."""
        return self.folder / UNFINISHED / f"seed-{seed}-lr-{rate:g}"


def finetune_once(job: Job, rate: float, seed: int) -> "FinetuneTrainer":
    """One training run, from its last checkpoint if there is one; returns the trainer, with the model. Errors are those
    of `MaBertTrainer.train`."""
    set_seed(seed)
    model = job.new_model()
    job.processes.wait_for_everyone()  # the first may be removing checkpoints of before
    checkpoint = checkpoint_to_resume(job.checkpoints(rate, seed))
    trainer = FinetuneTrainer(model, job, rate, seed)
    trainer.train(checkpoint)
    if trainer.best_weights is not None:
        model.load_state_dict(trainer.best_weights)
    if isinstance(model.config, MaBertConfig):
        model.config.unpad = "auto"
    return trainer


class FinetuneTrainer(MaBertTrainer):
    """A whole run's batches, which Trainer takes to be one epoch; the task's metrics after every real one."""

    smaller = SMALLER

    def __init__(self, model: PreTrainedModel, job: Job, rate: float, seed: int) -> None:
        recipe, processes, self.whole = job.recipe, job.processes.num_processes, job.batches(seed)
        steps = len(self.whole)
        super().__init__(
            model=model,
            args=training_arguments(
                job.checkpoints(rate, seed),
                recipe.precision,
                num_train_epochs=1,
                per_device_train_batch_size=max(1, recipe.batch_size // processes),
                learning_rate=rate,
                warmup_steps=round(recipe.warmup_share * steps),
                weight_decay=recipe.weight_decay,
                seed=seed,
                logging_steps=max(1, min(50, steps // 20)),
                save_strategy="no",
                save_total_limit=1,
            ),
            data_collator=collator_of(recipe.packing, job.tokenizer),
            train_dataset=job.examples["train"],
            eval_dataset=job.examples[next(iter(job.labels))],
            batches=self.whole if processes == 1 else SplitBatches(self.whole, processes),
            title=f"{job.kind.task.name} seed {seed} lr {rate:g}" if job.progress else None,
            step_tokens=[sum(map(self.whole.lengths.__getitem__, batch)) for batch in self.whole],
            callbacks=job.callbacks,
        )
        # Every family's loss is the mean over what the examples at hand are scored by, see `own_part`; Trainer would
        # take those whose forward has keyword arguments for sums over the tokens of a step.
        self.model_accepts_loss_kwargs = False
        self.job = job
        self.rows = slice(None)
        self.add_callback(EvaluateAt(self.whole.epoch_ends()))
        self.best_weights: dict[str, torch.Tensor] | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was logged on the way, with the task's epochs in place of Trainer's."""
        ends = [0, *self.whole.epoch_ends()]
        return [
            {**entry, "epoch": round(float(np.interp(entry["step"], ends, range(len(ends)))), 4)}
            for entry in self.state.log_history
            if "train_runtime" not in entry
        ]

    @cached_property
    def scored(self) -> list[list[int]]:
        """For each step, all processes together, how many terms of the loss each example has."""
        scored = self.job.examples["train"].scored
        return [[scored[example] for example in batch] for batch in self.whole]

    @property
    def own_part(self) -> float:
        """What the mean over the present rows of this process counts in that of the whole step, of which the sums of
        the processes are averaged."""
        scored = self.scored[self.state.global_step]
        return batch_share(scored, self.args.process_index, self.args.world_size, self.rows)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Runs a batch of very many tokens in parts, whose gradients add up to those of the whole."""
        count, length = inputs["input_ids"].shape
        size = max(1, AT_ONCE // length)
        rows, batches = [slice(None)], [inputs]
        if self.job.recipe.batch_tokens is None and count > size:
            rows = [slice(first, first + size) for first in range(0, count, size)]
            batches = [{name: value[some] for name, value in inputs.items()} for some in rows]
        loss = torch.zeros((), device=self.args.device)
        for number, (self.rows, batch) in enumerate(zip(rows, batches, strict=True), 1):
            with nullcontext() if number == len(rows) else self.accelerator.no_sync(model):
                loss += super().training_step(model, batch, num_items_in_batch)
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        return super().compute_loss(model, inputs, *arguments, **options) * self.own_part

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float:
        return super().share_of_step(inputs, num_items_in_batch) * (self.own_part or 1.0)

    def measure(self) -> dict[str, Any]:
        """Scores the first validation split, and keeps the best weights if they are wanted."""
        scores = self.job.scores(self.model)
        main, best = scores[self.job.kind.task.main_metric], self.state.best_metric
        if self.job.recipe.select == "best" and main is not None and (best is None or main > best):
            self.state.best_metric = main  # which a checkpoint keeps
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {f"eval_{name}": value for name, value in scores.items()}

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.best_weights is not None and self.args.should_save:
            save_file(self.best_weights, Path(output_dir or self.args.output_dir) / BEST)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except CannotSaveError as error:
            # Training needs no disk, so one that is full need not end it; several processes would wait for this one.
            if self.args.world_size > 1 or self.interrupt.interrupted:
                raise
            logger.warning("%s; training goes on", error.found)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        kept = Path(resume_from_checkpoint) / BEST
        if kept.is_file():
            self.best_weights = load_file(kept)


class EvaluateAt(TrainerCallback):
    """Asks for an evaluation after certain steps."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Asks for one."""
        control.should_evaluate = state.global_step in self.steps
        return control


def in_evaluation(filled: Mapping[str, Any], helps: str) -> str:
    """Where memory ran out, and what helps."""
    return f"in evaluation, with {rows_at_once(filled)}; {helps}"


@torch.no_grad()
def logits_of(
    model: PreTrainedModel,
    examples: Examples,
    pad_id: int,
    precision: str = "fp32",
    rows: int | None = None,
    a_token: bool = False,
) -> np.ndarray:
    """A model's outputs in the order of the examples: float32 (examples, labels) of a classifier, and (tokens, labels),
    those of all examples one behind the other, where there is an output `a_token`.

    Batches are of like length, or of so many `rows` in the order of the examples. Each text is alone where what it
    gives depends on those beside it, but for a MaBERT that is asked for in such batches. Of several processes, all of
    which must call this, each runs a part of the batches, and all get the whole.
    """
    training, helps, device = model.training, SHORTER if rows is None else SMALLER, model.device
    model.eval()
    collate = Collator(pad_id)
    ends = np.cumsum(examples.lengths) if a_token else range(1, len(examples) + 1)
    out = np.zeros((int(ends[-1]) if len(examples) else 0, model.config.num_labels), np.float32)
    asked = rows is not None and isinstance(model.config, MaBertConfig)  # a study of what padding does
    if not asked and family_of(model.config).depends_on_batch(model.config, examples.lengths, not a_token):
        rows = 1
    order = range(len(examples))
    batches = (
        batches_by_length(examples.lengths) if rows is None else [list(order[at : at + rows]) for at in order[::rows]]
    )
    processes = PartialState()
    # Once around all batches: at its end autocast forgets the weights that it has cast.
    with torch.autocast(device.type, torch.bfloat16, enabled=resolve_precision(precision) == "bf16"):
        for batch in batches[processes.process_index :: processes.num_processes]:
            filled = collate([{k: v for k, v in examples[index].items() if k in INPUTS} for index in batch])
            with naming_memory(partial(in_evaluation, filled, helps)):
                inputs = {name: value.to(device) for name, value in filled.items()}
                logits = logits_in(model(**inputs)).float().cpu().numpy()
            for index, found in zip(batch, logits, strict=True):
                size = examples.lengths[index] if a_token else 1
                out[ends[index] - size : ends[index]] = found[:size] if a_token else found
    model.train(training)
    if processes.num_processes > 1:  # a row is another process's, and zero here, or none of theirs: the sum is exact
        out = reduce(torch.from_numpy(out).to(device), "sum").cpu().numpy()
    return out
