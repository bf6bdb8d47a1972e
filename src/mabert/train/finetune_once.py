"""Fine-tunes one model: the task's examples, the model with a new head, one training run."""

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
"""File in a checkpoint with the weights of the best epoch so far."""

AT_ONCE = 4096
"""Maximum padded tokens per forward pass in training, unless `batch_tokens` is set or one row is longer: the default
batch of 32 rows of 128 tokens. With 32 rows of 512 tokens, fine-tuning an encoder of 22 M parameters in fp32 needs
4.4 GiB, and 12.6 at once."""

INPUTS = ("input_ids", "token_type_ids")
"""Model inputs among an example's columns; the rest are labels."""

SHORTER = "shorter examples help (--max-length with --truncate; in a study finetune.max_length and so on)"
SMALLER = f"a smaller batch helps (--batch-size, --batch-tokens; in a study finetune.batch_size), and {SHORTER}"


def rate_for(config: PreTrainedConfig) -> float:
    """Returns the default peak learning rate: BERT's 2e-5 at width 768, higher for narrower models.

    Under Adam the best rate is about inversely proportional to a model's width (Yang et al. 2022, Tensor Programs V).

    Args:
        config: The model's configuration.

    Returns:
        The rate, to two digits.
    """
    return float(f"{2e-5 * 768 / config.hidden_size:.1e}")


def epochs_of(recipe: FinetuneRecipe, task: Task) -> int:
    """Returns the number of epochs for a task."""
    if recipe.epochs is not None:
        return recipe.epochs
    return 10 if isinstance(task, GlueTask) and task.name in SMALL_TASKS else 3


@dataclass(frozen=True)
class Job:
    """State shared by all training runs of one fine-tuning.

    Attributes:
        model: Folder or hub name of the pretrained model.
        tokenizer: Its tokenizer.
        kind: The task's kind.
        splits: The task's rows: `train`, one or two splits named `validation...`, and `test...` if there.
        recipe: How to train.
        max_length: Maximum tokens of an example.
        folder: Output folder of the fine-tuning.
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
        """The encoded examples of each split."""
        how = (self.tokenizer, self.max_length, self.recipe.truncate)
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
                sha.update(json.dumps(examples[index], sort_keys=True).encode())
        return sha.hexdigest()[:16]

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The pretrained model's configuration with the task's and the recipe's fields, checked."""
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
        """Returns the pretrained (or a random) encoder with a new head and its own copy of the configuration."""
        config = copy.deepcopy(self.config)
        use = self.kind.use
        return build(use, config) if self.recipe.from_scratch else with_new_head(self.model, config, use)

    def batches(self, seed: int) -> ExampleSampler | TokenBudgetSampler:
        """Returns the run's batches over all processes, of `batch_tokens` tokens or `batch_size` examples."""
        recipe, config, lengths = self.recipe, self.config, self.examples["train"].lengths
        how: dict[str, Any] = {"epochs": epochs_of(recipe, self.kind.task), "seed": seed}
        how["grouped"] = recipe.batches == "length"
        if recipe.batch_tokens is None:
            return ExampleSampler(lengths, recipe.batch_size, **how)
        unpads = isinstance(config, MaBertConfig) and config.unpad != "never" and config.padding_safe_masking == "exact"
        return TokenBudgetSampler(lengths, recipe.batch_tokens, padded=not unpads, **how)

    def answers(self, model: PreTrainedModel, split: str) -> Any:
        """Returns a model's answers on one split, one per example. Raises TrainingDivergedError if an output is not
        finite, which means that the last step was too large."""
        recipe, examples, kind = self.recipe, self.examples[split], self.kind
        rows = recipe.batch_size if recipe.batches == "random" else None
        how: dict[str, Any] = {"precision": recipe.precision, "rows": rows, "a_token": kind.a_token}
        logits = logits_of(model, examples, self.tokenizer.pad_token_id, **how)
        if not np.isfinite(logits).all():
            raise TrainingDivergedError(f"the outputs on {split} are not finite; a lower learning rate helps")
        return kind.answers(logits, examples)

    def scores(self, model: PreTrainedModel) -> Mapping[str, float | None]:
        """Computes the task's metrics on its first validation split."""
        split = next(iter(self.labels))
        return self.kind.scores(self.answers(model, split), self.labels[split])

    def checkpoints(self, rate: float, seed: int) -> Path:
        """Returns the folder for a training's checkpoints."""
        return self.folder / UNFINISHED / f"seed-{seed}-lr-{rate:g}"


def finetune_once(job: Job, rate: float, seed: int) -> "FinetuneTrainer":
    """Runs one training, from its last checkpoint if there is one, and returns the trainer with the model. Errors are
    those of `MaBertTrainer.train`."""
    set_seed(seed)
    model = job.new_model()
    job.processes.wait_for_everyone()  # the first may be removing old checkpoints
    checkpoint = checkpoint_to_resume(job.checkpoints(rate, seed))
    trainer = FinetuneTrainer(model, job, rate, seed)
    trainer.train(checkpoint)
    if trainer.best_weights is not None:
        model.load_state_dict(trainer.best_weights)
    if isinstance(model.config, MaBertConfig):
        model.config.unpad = "auto"
    return trainer


class FinetuneTrainer(MaBertTrainer):
    """Trains on the batches of the whole run as Trainer's single epoch, and evaluates after every real epoch."""

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
        # Every family's loss is the mean over the loss terms of its input, see `own_part`. Trainer would take the loss
        # of models whose forward has keyword arguments for a sum over the tokens of a step.
        self.model_accepts_loss_kwargs = False
        self.job = job
        self.rows = slice(None)
        self.add_callback(EvaluateAt(self.whole.epoch_ends()))
        self.best_weights: dict[str, torch.Tensor] | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The training log, with the task's epochs in place of Trainer's."""
        ends = [0, *self.whole.epoch_ends()]
        return [
            {**entry, "epoch": round(float(np.interp(entry["step"], ends, range(len(ends)))), 4)}
            for entry in self.state.log_history
            if "train_runtime" not in entry
        ]

    @cached_property
    def scored(self) -> list[list[int]]:
        """Number of loss terms of each example, for each step, over all processes."""
        scored = self.job.examples["train"].scored
        return [[scored[example] for example in batch] for batch in self.whole]

    @property
    def own_part(self) -> float:
        """Weight of the mean loss over this process's current rows in the mean of the whole step; processes are
        averaged."""
        scored = self.scored[self.state.global_step]
        return batch_share(scored, self.args.process_index, self.args.world_size, self.rows)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Runs a large batch in parts whose gradients add up to those of the whole batch."""
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
        """Scores the first validation split, and keeps the best weights if `select` is `best`."""
        scores = self.job.scores(self.model)
        main, best = scores[self.job.kind.task.main_metric], self.state.best_metric
        if self.job.recipe.select == "best" and main is not None and (best is None or main > best):
            self.state.best_metric = main  # saved in checkpoints
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
            # A full disk need not end the training itself; but with several processes the others would wait.
            if self.args.world_size > 1 or self.interrupt.interrupted:
                raise
            logger.warning("%s; training goes on", error.found)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        kept = Path(resume_from_checkpoint) / BEST
        if kept.is_file():
            self.best_weights = load_file(kept)


class EvaluateAt(TrainerCallback):
    """Requests an evaluation after certain steps."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Requests the evaluation."""
        control.should_evaluate = state.global_step in self.steps
        return control


def in_evaluation(filled: Mapping[str, Any], helps: str) -> str:
    """Says where memory ran out, and what helps."""
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
    """Returns a model's outputs in the order of the examples: float32 (examples, labels), or with an output per token
    (`a_token`) the concatenation (tokens, labels).

    Batches are grouped by length, or hold `rows` examples in their order. Texts run one by one if a model's outputs
    depend on the rest of the batch, except for a MaBERT with `rows`. All processes must call this; each runs a part of
    the batches and all get the whole result.
    """
    training, helps, device = model.training, SHORTER if rows is None else SMALLER, model.device
    model.eval()
    collate = Collator(pad_id)
    ends = np.cumsum(examples.lengths) if a_token else range(1, len(examples) + 1)
    out = np.zeros((int(ends[-1]) if len(examples) else 0, model.config.num_labels), np.float32)
    asked = rows is not None and isinstance(model.config, MaBertConfig)  # for studies of the effect of padding
    if not asked and family_of(model.config).depends_on_batch(model.config, examples.lengths, not a_token):
        rows = 1
    order = range(len(examples))
    batches = (
        batches_by_length(examples.lengths) if rows is None else [list(order[at : at + rows]) for at in order[::rows]]
    )
    processes = PartialState()
    # Once around all batches, because autocast drops its cast weights when it ends.
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
    if processes.num_processes > 1:  # exact: each row is zero in all processes but one
        out = reduce(torch.from_numpy(out).to(device), "sum").cpu().numpy()
    return out
