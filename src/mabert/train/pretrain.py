"""Pretraining by masked language modelling, from raw text to a model folder."""

import dataclasses
import logging
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import rotate_checkpoints

from mabert.baselines.load import build, class_for, load_config, weights_digest
from mabert.baselines.registry import family_named, family_of
from mabert.data.build import build_cache
from mabert.data.cache import IDS
from mabert.data.collate import Collator, FlatteningCollator
from mabert.data.mlm import MlmMasking, PretrainingStream, ValidationSet
from mabert.data.tokenizer import fingerprint
from mabert.data.windows import Windows
from mabert.memory import TRAINED, check_fits, naming_memory
from mabert.model import MaBertConfig
from mabert.model.heads import IGNORED
from mabert.model.load import parameters_of
from mabert.places import default_cache
from mabert.precision import resolve_precision, warn_of_emulation
from mabert.reading import digest
from mabert.train.checkpoint import checkpoint_to_resume, checkpoints, drop_damaged
from mabert.train.objective import at_scored_positions, held_out_sums, mean_over_scored
from mabert.train.recipe import Packing, PretrainRecipe, as_mapping, check_packing
from mabert.train.run import LOGS, RunFolder
from mabert.train.start import started_config, started_model
from mabert.train.trainer import (
    SAVE_SECONDS,
    MaBertTrainer,
    SaveOnInterrupt,
    StepsAsAsked,
    Stopwatch,
    TrainingDivergedError,
    device_arguments,
    orderly,
    size_of,
)
from mabert.train.vocabulary import find_tokenizer
from mabert.writing import filling

logger = logging.getLogger(__name__)

FREE = (
    "training.micro_batch_size",
    "training.workers",
    "training.log_steps",
    "training.eval_steps",
    "training.eval_windows",
    "training.save_steps",
    "training.keep_checkpoints",
    "training.gradient_checkpointing",
    "training.packing",
    "data.cache",
    "resolved.processes",
)
"""What a resumed run may change: how the work is cut, not what is learnt (dropout draws follow the cut, though)."""

BETWEEN = "between"
"""Marks a checkpoint that does not count among those to be kept."""

EXPLODED = 3.0
"""A loss of so many times that of a uniform guess, ln(vocabulary), counts as divergence."""


@dataclass
class PretrainData:
    """What a run reads.

    Attributes:
        stream: Every sample of the run, in order.
        validation: Held-out windows under fixed masks, at the length of the first stage.
        counts: Tokens, for the record.
        corpus: A digest of the tokens, by which a resumed run knows its text.
    """

    stream: PretrainingStream
    validation: ValidationSet
    counts: dict[str, int]
    corpus: str


def pretrain(
    recipe: PretrainRecipe,
    output: str | Path,
    *,
    resume: bool = False,
    resume_from: str | None = None,
    trusted: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
    progress: bool = True,
    callbacks: list[TrainerCallback] | None = None,
) -> dict[str, Any]:
    """Runs a recipe.

    Args:
        recipe: What to do.
        output: Folder for checkpoints, the final model with its tokenizer, TensorBoard logs and `result.json`.
        resume: Whether to go on with the run in `output`; the weights end as those of an uninterrupted run do.
        resume_from: Name of the checkpoint to go on from, in place of the newest, where that is damaged; damaged ones
            that are newer are removed.
        trusted: Whether the caller knows the run in `output` to be this one, as a study does by a cell's name; text
            and tokenizer may lie elsewhere then, holding the same.
        tokenizer: In place of `recipe.tokenizer`.
        progress: Whether to show progress bars.
        callbacks: transformers callbacks beside ours.

    Returns:
        The content of `result.json`.

    Raises:
        ValueError: If the recipe cannot be run, the folder holds another run, or the loss diverges.
        MemoryError: If a batch does not fit the memory; says at which step, and how large it is.
        OSError: If a checkpoint cannot be written; earlier ones are kept.
        DamagedCheckpointError: If the checkpoint to go on from lacks a file, or one is not as it was written.
        KeyboardInterrupt: After Ctrl-C, when the state is saved.
    """
    check_recipe(recipe)
    folder = RunFolder(output, FREE, trusted)
    request, family = as_mapping(recipe), family_named(recipe.architecture)
    arguments = training_arguments(recipe, folder.path)
    if arguments.should_save:
        warn_of_emulation(recipe.training.precision)
        folder.check(request, resume)
    kept = checkpoint_to_resume(folder.path, resume_from) if resume and folder.result() is None else None
    origin = "given by the caller"
    if recipe.start_from is not None:
        load_config(recipe.start_from)  # tells what is wrong with the folder better than the tokenizer's absence does
    if tokenizer is None:
        before = folder.resolved().get("tokenizer") if resume else None
        cache, asked = Path(recipe.data.cache or default_cache()), recipe.tokenizer or recipe.start_from
        tokenizer, origin = find_tokenizer(family, asked, recipe.data.readable(), cache, before)
    config = model_config(recipe, tokenizer)
    check_fits("model", parameters_of(class_for("masked_lm", config), config), TRAINED, bytes_of_batch(recipe, config))
    if (longest := family.longest(config)) is not None:
        # Saved with the model, so that `truncation=True` cuts where the model ends.
        tokenizer.model_max_length = longest
    # Weights that cannot be had show before hours of tokenising.
    start = None if recipe.start_from is None else started_model(recipe.start_from, config)
    finishes = start is None or family.is_finished(start)
    data = prepare_data(recipe, tokenizer, progress)  # shown by the process that does it
    request["resolved"] = {
        "corpus": data.corpus,
        "tokenizer": origin,
        "vocabulary": fingerprint(tokenizer),
        "precision": resolve_precision(recipe.training.precision),
        "processes": arguments.world_size,
        **({} if recipe.start_from is None else {"weights": weights_digest(recipe.start_from)}),
    }
    if arguments.should_save:
        folder.claim(request, resume)
    if resume and (finished := folder.result()) is not None:
        return finished if arguments.should_save else {}
    set_seed(recipe.training.seed)
    interrupt, stopwatch = SaveOnInterrupt(SAVE_SECONDS), Stopwatch()
    trainer = PretrainTrainer(
        model=new_model(config) if start is None else trained_by_mlm(start),
        args=arguments,
        processing_class=tokenizer,
        callbacks=[StepsAsAsked(), interrupt, stopwatch, *(callbacks or [])],
        title="pretraining" if progress else None,
        **learning(recipe, tokenizer, data),
    )
    if resume_from is not None and kept is not None and arguments.should_save:
        drop_damaged(folder.path, kept)
    with interrupt.listening():
        trainer.train(resume_from_checkpoint=kept and str(kept))
    if interrupt.interrupted:
        raise KeyboardInterrupt(f"saved {checkpoints(folder.path)[-1]}; go on with --resume")
    outcome = finish(trainer, folder.path, finishes) | data.counts
    saved = arguments.should_save
    return folder.write_result(outcome, stopwatch.seconds, seed=recipe.training.seed) if saved else {}


def check_recipe(recipe: PretrainRecipe) -> None:
    """Refuses a recipe without text; warns of a learning rate that never reaches its peak.

    Raises:
        ValueError: If there is no text.
    """
    if not recipe.data.sources:
        raise ValueError("the recipe names no text; set data.sources= to files, folders or hub data sets")
    if recipe.training.warmup_steps >= recipe.training.steps:
        logger.warning(
            "training.warmup_steps is %d, training.steps %d: the learning rate never reaches its peak",
            recipe.training.warmup_steps,
            recipe.training.steps,
        )


def learning(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, data: Any) -> dict[str, Any]:
    """What `PretrainTrainer` is given of a recipe and its data."""
    training = recipe.training
    return {
        "data_collator": collator_of(training.packing, tokenizer),
        "train_dataset": data.stream,
        "eval_dataset": data.validation,
        "step_tokens": [
            training.batch_size * stage.length
            for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True)
            for _ in range(steps)
        ],
        "decay_exempt": training.decay_exempt,
        "loss_limit": EXPLODED * math.log(len(tokenizer)),
    }


def finish(trainer: "PretrainTrainer", folder: Path, finishes: bool) -> dict[str, Any]:
    """Measures the final model and saves it, whole or not at all.

    Args:
        trainer: That trained it.
        folder: Of the run.
        finishes: Whether weights that the objective does not reach follow those that it does.

    Returns:
        What came out of the run.
    """
    state = trainer.state
    held_out = next((entry for entry in reversed(state.log_history) if "eval_loss" in entry), None)
    if held_out is None or held_out["step"] != state.global_step:
        held_out = trainer.evaluate()
    model = trainer.model
    if finishes:
        trainer.family.finish_pretraining(model)
    if isinstance(model.config, MaBertConfig):
        model.config.unpad = "auto"
    if trainer.args.should_save:
        advice = "the last checkpoint is whole; make room and go on by --resume"
        with filling(folder, size_of(model), advice) as staging:
            trainer.save_model(str(staging))
    return {
        "held_out_loss": held_out["eval_loss"],
        "held_out_accuracy": held_out["eval_accuracy"],
        "steps": state.global_step,
        "tokens": state.num_input_tokens_seen,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "history": [entry for entry in state.log_history if "loss" in entry or "eval_loss" in entry],
    }


def prepare_data(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, progress: bool) -> PretrainData:
    """Tokenises the text (or reuses the cache) and lays out the stages.

    Raises:
        ValueError: If the recipe does not fit the text, or nothing in its held-out part can be hidden.
    """
    masking = MlmMasking(tokenizer, **dataclasses.asdict(recipe.masking))  # which may refuse
    cache = build_cache(
        recipe.data.readable(),
        tokenizer,
        recipe.data.cache or default_cache(),
        max_tokens=recipe.data.max_tokens,
        progress=progress,
    )
    training, held_out = cache.split(recipe.data.held_out, seed=0)
    stages = [
        (Windows(training, stage.length, recipe.data.windows), steps * recipe.training.batch_size)
        for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True)
    ]
    windows = Windows(held_out, recipe.stages[0].length, recipe.data.windows)
    validation = ValidationSet(windows, masking, seed=0, limit=recipe.training.eval_windows)
    if not any((validation[index]["labels"] != IGNORED).any() for index in range(len(validation))):
        raise ValueError("nothing in the held-out text can be hidden: the tokenizer knows none of its words")
    return PretrainData(
        PretrainingStream(stages, masking, recipe.training.seed),
        validation,
        {"corpus_tokens": training.tokens, "held_out_tokens": held_out.tokens},
        digest(cache.folder / IDS)[:16],
    )


def collator_of(packing: Packing, tokenizer: PreTrainedTokenizerFast) -> Collator | FlatteningCollator:
    """What makes a batch of windows."""
    return FlatteningCollator() if packing == "pack" else Collator(tokenizer.pad_token_id)


def model_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """The recipe's model for that vocabulary, or the one that it starts from.

    Raises:
        ValueError: If a stage is longer than the positions, or the vocabulary is larger than asked for or another than
            that of the model that the run starts from.
    """
    family, asked = family_named(recipe.architecture), dict(recipe.model)
    if recipe.start_from is not None:
        config = started_config(recipe, tokenizer)
        check_stages(recipe, config)
        return config
    size = asked.pop("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise ValueError(f"model.vocab_size is {size}, the tokenizer has {len(tokenizer)} entries")
    if "unpad" in asked:
        raise ValueError("model.unpad is set by the run; training.packing says how padding is dealt with")
    of_run: dict[str, Any] = family.special_ids(tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    for name, value in of_run.items():
        if asked.get(name, value) != value:
            raise ValueError(f"model.{name} is {asked[name]}; it must be the tokenizer's, {value}")
    if family.name == "mabert":
        of_run["unpad"] = recipe.training.unpad
    config = family.config_of(asked, vocab_size=size, **of_run)
    check_packing(recipe.training.packing, config)
    with torch.device("meta"):
        # What a configuration cannot know by itself shows before hours of tokenising, not after.
        try:
            model = build("masked_lm", config)
            getattr(model, family.head)
        except (AssertionError, AttributeError) as error:
            raise ValueError(f"model: these fields make no {family.title}: {error}") from error
    check_stages(recipe, config)
    return config


def bytes_of_batch(recipe: PretrainRecipe, config: PreTrainedConfig) -> int:
    """Bytes that the backward pass of one micro-batch needs at least.

    Each layer keeps its input and that of each sub-layer, queries, keys and values or their like, what they give, and
    the feed-forward network's inner activations twice; with checkpointing its input alone. Windows of single documents
    may be of any length.
    """
    training = recipe.training
    length = max(stage.length for stage in recipe.stages) if recipe.data.windows == "packed" else 1
    kept = (
        config.hidden_size if training.gradient_checkpointing else 6 * config.hidden_size + 2 * config.intermediate_size
    )
    each = 2 if resolve_precision(training.precision) == "bf16" else 4
    return training.micro_batch_size * length * config.num_hidden_layers * kept * each


def check_stages(recipe: PretrainRecipe, config: PreTrainedConfig) -> None:
    """Raises ValueError for a stage that is longer than the model's positions."""
    longest, limit = max(stage.length for stage in recipe.stages), family_of(config).longest(config)
    if limit is not None and longest > limit:
        more = f"; `mabert extend {recipe.start_from}` gives it more" if recipe.start_from is not None else ""
        raise ValueError(f"a stage has windows of {longest} tokens, model.max_position_embeddings is {limit}{more}")


def new_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The model with random weights, ready for training."""
    return trained_by_mlm(build("masked_lm", config))


def trained_by_mlm(model: PreTrainedModel) -> PreTrainedModel:
    """The model, its weights that the objective does not reach left out of training."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(part in name for part in family_of(model.config).unreached))
    return model


def training_arguments(recipe: PretrainRecipe, folder: Path) -> TrainingArguments:
    """The recipe in transformers' words.

    Raises:
        ValueError: If the batch cannot be made of whole micro-batches over all processes.
    """
    training = recipe.training
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation, rest = divmod(training.batch_size, training.micro_batch_size * processes)
    if rest or not accumulation:
        raise ValueError(
            f"training.batch_size {training.batch_size} is not a multiple of training.micro_batch_size "
            f"{training.micro_batch_size} times {processes} process(es)"
        )
    twentieth = max(1, training.steps // 20)
    # Trainer takes the folder of TensorBoard's files from the environment alone.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / LOGS)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=training.steps,
        per_device_train_batch_size=training.micro_batch_size,
        per_device_eval_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_scheduler_type="linear",
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        adam_epsilon=training.adam_epsilon,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        activation_checkpointing=training.gradient_checkpointing,
        seed=training.seed,
        logging_steps=training.log_steps,
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=training.eval_steps or twentieth,
        save_strategy="steps",
        save_steps=training.save_steps or twentieth,
        save_total_limit=training.keep_checkpoints,
        dataloader_num_workers=training.workers,
        remove_unused_columns=False,
        report_to=["tensorboard"],
        ddp_find_unused_parameters=False,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="non_padding",
        # Filling up the last batch would count held-out windows twice; the training samples divide anyway.
        accelerator_config={"even_batches": False},
        **device_arguments(training.precision),
    )
    return orderly(arguments)


class PretrainTrainer(MaBertTrainer):
    """Reads the stream front to back, so that resuming is skipping; measures tokens per second and held-out text.

    Whatever the model, the vocabulary is scored at hidden positions only, and the loss is the mean over those of the
    whole step.
    """

    smaller = (
        "go on by --resume with a smaller training.micro_batch_size or training.gradient_checkpointing=true "
        "(in a study, by the same command with pretrain.training.micro_batch_size)"
    )

    def __init__(self, **arguments: Any) -> None:
        super().__init__(compute_loss_func=mean_over_scored, **arguments)
        self.clock: tuple[float, int] | None = None
        self.family = family_of(self.model.config)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        with at_scored_positions(getattr(self.model, self.family.head), inputs["labels"]):
            return super().compute_loss(model, inputs, *arguments, **options)

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float:
        if num_items_in_batch is None:
            return super().share_of_step(inputs, num_items_in_batch)
        scored = int((inputs["labels"] != IGNORED).sum())
        return max(1, scored) * self.args.world_size / max(1, int(num_items_in_batch))

    def whereabouts(self) -> str:
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        first = self.state.global_step * rows
        return f", in the batch of samples {first} to {first + rows - 1}; checkpoints up to here are kept"

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def rotate_checkpoints(self, folder: Path) -> None:
        """Likewise; one between those of `save_steps`, by the clock or Ctrl-C, does not count and stays to the next."""
        for earlier in folder.glob(f"checkpoint-*/{BETWEEN}"):
            shutil.rmtree(earlier.parent, ignore_errors=True)
        state = self.state
        between = bool(state.global_step % state.save_steps) and state.global_step < state.max_steps
        if between:
            (folder / f"checkpoint-{state.global_step}" / BETWEEN).touch()
        rotate_checkpoints(str(folder), self.args.save_total_limit + between, use_mtime=False)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        now = (time.perf_counter(), self.state.num_input_tokens_seen)
        if "loss" in logs:
            if self.clock is not None and now[1] > self.clock[1]:
                logs["tokens_per_second"] = round((now[1] - self.clock[1]) / (now[0] - self.clock[0]), 1)
            self.clock = now
        super().log(logs, start_time)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """Held-out loss (mean over scored positions) and accuracy; the same windows and masks every time.

        Raises:
            TrainingDivergedError: If the loss is no longer a sensible number.
            MemoryError: If a batch does not fit the memory.
        """
        started = time.perf_counter()
        step, rows = self.state.global_step, self.args.per_device_eval_batch_size
        with (
            naming_memory(lambda: f"in the evaluation after step {step}, with {rows:,} rows at once; {self.smaller}"),
            self.accelerator.autocast(),
        ):
            sums = held_out_sums(self.model, self.family, self.get_eval_dataloader())
        loss, right, scored = self.accelerator.reduce(sums.to(self.args.device)).tolist()
        metrics = {"eval_loss": loss / scored, "eval_accuracy": right / scored}
        if self.is_diverged(metrics["eval_loss"]):
            raise TrainingDivergedError(
                f"the loss is {metrics['eval_loss']:g} on held-out text after step {step}; "
                "a lower learning rate or a longer warm-up helps"
            )
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.clock is not None:
            self.clock = (self.clock[0] + time.perf_counter() - started, self.clock[1])
        return metrics
