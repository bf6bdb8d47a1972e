"""One classifier: the task's examples, the model with a new head, one training run."""

import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from mabert.baselines.load import build, class_for, load_config, with_new_head
from mabert.baselines.registry import family_of
from mabert.data.batches import ExampleSampler, SplitBatches, TokenBudgetSampler, batch_share, batches_by_length
from mabert.data.collate import Collator, FlatteningCollator
from mabert.data.encode import EncodedDataset
from mabert.data.glue import GlueTask
from mabert.data.metrics import compute
from mabert.data.task import Rows, Task, column
from mabert.memory import TRAINED, check_fits, naming_memory
from mabert.model import MaBertConfig
from mabert.model.config import make_config
from mabert.model.load import parameters_of
from mabert.precision import resolve_precision
from mabert.train.checkpoint import checkpoint_to_resume, checkpoints
from mabert.train.recipe import FinetuneRecipe, check_packing
from mabert.train.run import UNFINISHED
from mabert.train.trainer import (
    SAVE_SECONDS,
    MaBertTrainer,
    SaveOnInterrupt,
    Stopwatch,
    TrainingDivergedError,
    device_arguments,
    joined,
    orderly,
    rows_at_once,
)
from mabert.writing import CannotSaveError

logger = logging.getLogger(__name__)

SMALL_TASKS = ("cola", "mrpc", "rte")
"""Tasks of a few thousand examples, which get ten epochs rather than three."""

BEST = "best.safetensors"
"""The weights of the best epoch so far, in a checkpoint."""

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


@dataclass
class TaskData:
    """A task ready for one tokenizer.

    Attributes:
        task: What it is.
        splits: Encoded examples by split: `train`, one or two whose name starts with `validation`, `test...` if there.
        labels: Labels by validation split.
        indices: The `index` column by split.
    """

    task: Task
    splits: dict[str, EncodedDataset]
    labels: dict[str, np.ndarray]
    indices: dict[str, list[int]]

    @property
    def validations(self) -> list[str]:
        """Names of the validation splits."""
        return [name for name in self.splits if name.startswith("validation")]

    def digest(self) -> str:
        """What the examples are known by: a hash of every id and label of every split."""
        sha = hashlib.sha256()
        for name, examples in self.splits.items():
            sha.update(f"{name} {len(examples)}".encode())
            for index in range(len(examples)):
                sha.update(json.dumps(examples[index], sort_keys=True).encode())
        return sha.hexdigest()[:16]


def encode_task(
    task: Task, splits: Mapping[str, Rows], tokenizer: PreTrainedTokenizerFast, max_length: int, truncate: bool
) -> TaskData:
    """Encodes every split of a task.

    Raises:
        ValueError: If examples are longer than `max_length` and are not to be cut; says how many.
    """
    warn_of_nothing_to_learn(task, splits)
    return TaskData(
        task,
        {
            name: EncodedDataset(rows, tokenizer, max_length, truncate, f"{task.name} {name}")
            for name, rows in splits.items()
        },
        {name: np.asarray(column(rows, "label")) for name, rows in splits.items() if name.startswith("validation")},
        {name: column(rows, "index") for name, rows in splits.items()},
    )


def warn_of_nothing_to_learn(task: Task, splits: Mapping[str, Rows]) -> None:
    """Says so where no training text holds a word, or all scores of a regression are one number."""
    texts = (
        text for name in ("text_a", "text_b") if name in splits["train"][:1] for text in column(splits["train"], name)
    )
    if not any(text.strip() for text in texts):
        logger.warning("all training texts of %s are empty: there is nothing to learn from them", task.name)
    for name, rows in splits.items():
        labels = set(column(rows, "label")) if task.is_regression and "label" in rows[:1] else set()
        if len(labels) == 1:
            told = "nothing to learn from them" if name == "train" else "a correlation with them is not defined"
            logger.warning("all %s scores of %s are %g: %s", name, task.name, labels.pop(), told)


@dataclass(frozen=True)
class Job:
    """What all runs of one fine-tuning share.

    Attributes:
        model: Folder or hub name of the pretrained model.
        tokenizer: Its tokenizer.
        data: The task's examples.
        recipe: How to train.
        progress: Whether to show progress.
        callbacks: transformers callbacks beside ours.
    """

    model: str | Path
    tokenizer: PreTrainedTokenizerFast
    data: TaskData
    recipe: FinetuneRecipe
    progress: bool = True
    callbacks: Sequence[TrainerCallback] = ()

    @property
    def epochs(self) -> int:
        """Passes over the training data."""
        return epochs_of(self.recipe, self.data.task)

    def batches(self, seed: int) -> ExampleSampler | TokenBudgetSampler:
        """The batches of a whole run, all processes together: of `batch_tokens`, or of `batch_size` examples."""
        recipe, lengths = self.recipe, self.data.splits["train"].lengths
        grouped = recipe.batches == "length"
        if recipe.batch_tokens is None:
            return ExampleSampler(lengths, recipe.batch_size, epochs=self.epochs, seed=seed, grouped=grouped)
        return TokenBudgetSampler(
            lengths,
            recipe.batch_tokens,
            epochs=self.epochs,
            seed=seed,
            grouped=grouped,
            padded=recipe.packing == "none" or not runs_unpadded(classifier_config(self)),
        )

    def logits(self, classifier: PreTrainedModel, split: str) -> np.ndarray:
        """A classifier's outputs for one split, float32 (examples, labels).

        Raises:
            TrainingDivergedError: If they are no numbers: the last step was too large.
        """
        examples, recipe = self.data.splits[split], self.recipe
        rows = recipe.batch_size if recipe.batches == "random" else None
        logits = logits_of(classifier, examples, self.tokenizer.pad_token_id, recipe.precision, rows)
        if not np.isfinite(logits).all():
            raise TrainingDivergedError(f"the outputs on {split} are not finite; a lower learning rate helps")
        return logits

    def scores(self, classifier: PreTrainedModel) -> dict[str, float | None]:
        """The task's metrics on its first validation split."""
        split = self.data.validations[0]
        return compute(self.data.task, self.logits(classifier, split), self.data.labels[split])


def epochs_of(recipe: FinetuneRecipe, task: Task) -> int:
    """Passes over a task's training data."""
    if recipe.epochs is not None:
        return recipe.epochs
    return 10 if isinstance(task, GlueTask) and task.name in SMALL_TASKS else 3


@dataclass(frozen=True)
class Trained:
    """What came out of one training run.

    Attributes:
        classifier: The model.
        history: What was logged on the way.
        before: Seconds that earlier starts of the run spent on it.
    """

    classifier: PreTrainedModel
    history: list[dict[str, Any]]
    before: float


def checkpoints_of(folder: Path, rate: float, seed: int) -> Path:
    """Where a training run of a fine-tuning in `folder` leaves its checkpoints."""
    return folder / UNFINISHED / f"seed-{seed}-lr-{rate:g}"


def train_classifier(job: Job, folder: Path, rate: float, seed: int) -> Trained:
    """One training run, from its last checkpoint if there is one.

    Args:
        job: What to train on, and how.
        folder: Of the fine-tuning.
        rate: Peak learning rate.
        seed: Of head, order and dropout.

    Raises:
        TrainingDivergedError: If the loss is no longer a sensible number.
        MemoryError: If a batch does not fit the memory; says at which step, and how large it is.
        KeyboardInterrupt: After Ctrl-C, when the state is saved.
    """
    set_seed(seed)
    classifier = new_classifier(job)
    batches = job.batches(seed)
    place = checkpoints_of(folder, rate, seed)
    joined(job.recipe.precision).wait_for_everyone()  # the first may be removing some of before
    checkpoint = checkpoint_to_resume(place)
    interrupt, stopwatch = SaveOnInterrupt(SAVE_SECONDS), Stopwatch()
    trainer = ClassifierTrainer(
        model=classifier,
        args=training_arguments(job.recipe, place, rate, seed, len(batches)),
        data_collator=FlatteningCollator() if job.recipe.packing == "pack" else Collator(job.tokenizer.pad_token_id),
        train_dataset=job.data.splits["train"],
        eval_dataset=job.data.splits[job.data.validations[0]],
        title=f"{job.data.task.name} seed {seed} lr {rate:g}" if job.progress else None,
        step_tokens=[sum(map(batches.lengths.__getitem__, batch)) for batch in batches],
        job=job,
        batches=batches,
        callbacks=[interrupt, stopwatch, *job.callbacks],
    )
    with interrupt.listening():
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    if interrupt.interrupted:
        raise KeyboardInterrupt(f"saved {checkpoints(place)[-1]}; go on with --resume")
    if trainer.best_weights is not None:
        classifier.load_state_dict(trainer.best_weights)
    if isinstance(classifier.config, MaBertConfig):
        classifier.config.unpad = "auto"
    ends = [0, *batches.epoch_ends()]
    history = [
        {**entry, "epoch": round(float(np.interp(entry["step"], ends, range(len(ends)))), 4)}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    return Trained(classifier, history, stopwatch.before)


def training_arguments(recipe: FinetuneRecipe, place: Path, rate: float, seed: int, steps: int) -> TrainingArguments:
    """A run in transformers' words."""
    return orderly(
        TrainingArguments(
            output_dir=str(place),
            num_train_epochs=1,  # as long as the run
            per_device_train_batch_size=max(1, recipe.batch_size // joined(recipe.precision).num_processes),
            learning_rate=rate,
            warmup_steps=round(recipe.warmup_share * steps),
            weight_decay=recipe.weight_decay,
            lr_scheduler_type="linear",
            seed=seed,
            logging_steps=max(1, min(50, steps // 20)),
            save_strategy="no",
            save_total_limit=1,
            report_to=[],
            remove_unused_columns=False,
            logging_nan_inf_filter=False,
            accelerator_config={"even_batches": False},
            **device_arguments(recipe.precision),
        )
    )


def new_classifier(job: Job) -> PreTrainedModel:
    """The pretrained encoder (or one at random) under a new head."""
    config = classifier_config(job)
    check_packing(job.recipe.packing, config, pools=True)
    check_fits("the classifier", parameters_of(class_for("classifier", config), config), TRAINED)
    return build("classifier", config) if job.recipe.from_scratch else with_new_head(job.model, config)


def classifier_config(job: Job) -> PreTrainedConfig:
    """The pretrained model's configuration with what the task and the recipe say."""
    task, recipe = job.data.task, job.recipe
    config = load_config(job.model)
    own = {name: getattr(recipe, name) for name in ("pooling", "padding_safe_masking")}
    fields = {
        "num_labels": task.num_labels,
        "id2label": dict(enumerate(task.label_names)) or None,
        "label2id": {name: index for index, name in enumerate(task.label_names)} or None,
        "problem_type": "regression" if task.is_regression else "single_label_classification",
        **family_of(config).classifier_dropout(recipe.dropout),
    }
    if isinstance(config, MaBertConfig):
        fields["unpad"] = "never" if recipe.packing == "none" else "auto"
        fields |= {name: value for name, value in own.items() if value is not None}
        return make_config(**{**config.to_dict(), **fields})
    for name, value in own.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}; that is MaBERT's, {job.model} is a {config.model_type} model")
    return type(config)(**{**config.to_dict(), **fields})


def runs_unpadded(config: PreTrainedConfig) -> bool:
    """Whether a model leaves the padding of a batch out."""
    return isinstance(config, MaBertConfig) and config.unpad != "never" and config.padding_safe_masking == "exact"


class ClassifierTrainer(MaBertTrainer):
    """A whole run's batches; the task's metrics on the validation data after every epoch.

    Args:
        job: What to train on, and how.
        batches: All of the run, which Trainer takes to be one epoch.
        arguments: As `MaBertTrainer` takes them.
    """

    smaller = SMALLER

    def __init__(self, *, job: Job, batches: ExampleSampler | TokenBudgetSampler, **arguments: Any) -> None:
        super().__init__(**arguments)
        # Every family's loss is the mean over its process's examples, which several processes average; Trainer would
        # take those whose forward has keyword arguments for sums over the tokens of a step.
        self.model_accepts_loss_kwargs = False
        self.job, self.batches = job, batches
        self.add_callback(EvaluateAt(batches.epoch_ends()))
        self.best_weights: dict[str, torch.Tensor] | None = None

    def get_train_dataloader(self) -> DataLoader:
        examples, processes = self.job.data.splits["train"], self.args.world_size
        parts: Sampler[list[int]] = SplitBatches(self.batches, processes) if processes > 1 else self.batches
        pinned = self.args.dataloader_pin_memory
        loader = DataLoader(examples, batch_sampler=parts, collate_fn=self.data_collator, pin_memory=pinned)
        return self.accelerator.prepare(loader)

    @cached_property
    def sizes(self) -> list[int]:
        """Examples of each step, all processes together."""
        return [len(batch) for batch in self.batches]

    @property
    def own_part(self) -> float:
        """What this process's mean counts in that of the present step's batch, of which the processes' means are
        averaged."""
        if self.args.world_size == 1:
            return 1.0
        return batch_share(self.sizes[self.state.global_step], self.args.process_index, self.args.world_size)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        loss = super().compute_loss(model, inputs, *arguments, **options)
        return loss if self.args.world_size == 1 else loss * self.own_part

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float:
        return super().share_of_step(inputs, num_items_in_batch) * (self.own_part or 1.0)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Scores the first validation split, and keeps the best weights if they are wanted."""
        scores = self.job.scores(self.model)
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        main, best = scores[self.job.data.task.main_metric], self.state.best_metric
        if self.job.recipe.select == "best" and main is not None and (best is None or main > best):
            self.state.best_metric = main  # which a checkpoint keeps
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.best_weights is not None and self.args.should_save:
            save_file(self.best_weights, Path(output_dir or self.args.output_dir) / BEST)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except CannotSaveError as error:
            # Training needs no disk, so one that is full need not end it; several processes would wait for this one.
            listeners = (each for each in self.callback_handler.callbacks if isinstance(each, SaveOnInterrupt))
            if self.args.world_size > 1 or any(each.interrupted for each in listeners):
                raise
            logger.warning("%s; training goes on", error.found)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        kept = Path(resume_from_checkpoint) / BEST
        if kept.is_file():
            self.best_weights = load_file(kept)


class EvaluateAt(TrainerCallback):
    """Asks for an evaluation after certain steps.

    Args:
        steps: After which.
    """

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Asks for one."""
        control.should_evaluate = state.global_step in self.steps
        return control


def in_evaluation(filled: Mapping[str, Any], helps: str) -> str:
    """Where memory ran out, and what helps."""
    return f"in evaluation, with {rows_at_once(filled)}; {helps}"


@torch.no_grad()
def logits_of(
    model: PreTrainedModel, examples: EncodedDataset, pad_id: int, precision: str = "fp32", rows: int | None = None
) -> np.ndarray:
    """A classifier's outputs, float32 (examples, labels), in the order of the examples.

    Of several processes, all of which must call this, each runs a part of the batches, and all get the whole.

    Args:
        model: The classifier.
        examples: What to classify.
        pad_id: Of padding.
        precision: As in `FinetuneRecipe`.
        rows: Of a batch, which are then taken in the order of the examples; default, batches of like length. Each text
            alone where what it gives depends on those beside it, but for a MaBERT that is asked for in such batches.

    Raises:
        MemoryError: If a batch does not fit the memory; says how large it is.
    """
    training, helps = model.training, SHORTER if rows is None else SMALLER
    model.eval()
    device = model.device
    collate = Collator(pad_id)
    out = np.zeros((len(examples), model.config.num_labels), np.float32)
    order = range(len(examples))
    asked = rows is not None and isinstance(model.config, MaBertConfig)  # a study of what padding does
    if not asked and family_of(model.config).depends_on_batch(model.config, examples.lengths):
        rows = 1
    batches = (
        batches_by_length(examples.lengths) if rows is None else [list(order[at : at + rows]) for at in order[::rows]]
    )
    processes = PartialState()
    # Once around all batches: at its end autocast forgets the weights that it has cast.
    with torch.autocast(device.type, torch.bfloat16, enabled=resolve_precision(precision) == "bf16"):
        for batch in batches[processes.process_index :: processes.num_processes]:
            filled = collate([{k: v for k, v in examples[index].items() if k != "labels"} for index in batch])
            with naming_memory(partial(in_evaluation, filled, helps)):
                inputs = {name: value.to(device) for name, value in filled.items()}
                out[batch] = model(**inputs).logits.float().cpu().numpy()
    model.train(training)
    if processes.num_processes > 1:  # a row is another process's, and zero here, or none of theirs: the sum is exact
        out = reduce(torch.from_numpy(out).to(device), "sum").cpu().numpy()
    return out
