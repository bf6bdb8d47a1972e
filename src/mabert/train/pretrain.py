"""Pretraining by masked language modelling, from raw text to a model folder."""

import dataclasses
import logging
import math
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import rotate_checkpoints

from mabert.baselines.registry import family_named, family_of
from mabert.baselines.uses import class_for, compile_layers
from mabert.data.build import build_cache
from mabert.data.cache import IDS
from mabert.data.mlm import MlmMasking, PretrainingStream, ValidationSet
from mabert.data.tokenizer import fingerprint
from mabert.data.windows import Windows
from mabert.extras import EXTRAS, check_installed
from mabert.files.places import default_cache
from mabert.files.reading import digest
from mabert.files.writing import filling
from mabert.machine.memory import TRAINED, check_fits, naming_memory, parameters_of
from mabert.machine.precision import resolve_precision, warn_of_emulation
from mabert.model import MaBertConfig
from mabert.model.boundaries import ON_HOST
from mabert.model.heads import IGNORED
from mabert.opening.opened import open_model
from mabert.train.checkpoint import checkpoint_to_resume, drop_damaged
from mabert.train.objective import SCORED, at_places, held_out_sums, mean_over_scored, with_places
from mabert.train.recipe import PretrainRecipe, as_mapping
from mabert.train.run import LOGS, RunFolder
from mabert.train.start import bytes_of_batch, model_config, new_model, started_model, trained_by_mlm
from mabert.train.trainer import MaBertTrainer, TrainingDivergedError, collator_of, size_of, training_arguments
from mabert.train.vocabulary import find_tokenizer

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
    "training.compile",
    "data.cache",
    "resolved.processes",
)
"""Fields that a resumed run may change: they split the work and do not change what is learnt (except dropout draws)."""

BETWEEN = "between"
"""Marks a checkpoint that does not count towards `keep_checkpoints`."""

EXPLODED = 3.0
"""A loss above this multiple of a uniform guess's, ln(vocabulary), counts as divergence."""


class PretrainData(NamedTuple):
    """A run's data: all samples in order; held-out windows with fixed masks, at the length of the first stage; token
    counts for the record; and a digest of the tokens, by which a resumed run checks its text."""

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
        recipe: The recipe to run.
        output: Folder for checkpoints, the final model with its tokenizer, TensorBoard logs and `result.json`.
        resume: Whether to resume the run in `output`; it reaches the same weights as an uninterrupted run.
        resume_from: Name of the checkpoint to resume from if the newest is damaged; newer damaged ones are removed.
        trusted: Whether the caller knows that `output` holds this run, as a study does by a cell's name. Then the same
            text and tokenizer may lie at other paths.
        tokenizer: Replaces `recipe.tokenizer`.
        progress: Whether to show progress bars.
        callbacks: Additional transformers callbacks.

    Returns:
        The content of `result.json`; an empty dict in all processes but the first.

    Raises:
        ValueError: If the recipe cannot be run, the folder holds another run, the loss diverges, or a package of the
            extra `train` is missing.
        MemoryError: If a batch does not fit the memory; the message names the step and the batch's size.
        OSError: If a checkpoint cannot be written; earlier ones are kept.
        DamagedCheckpointError: If the checkpoint to resume from lacks a file or has a changed one.
        KeyboardInterrupt: After Ctrl-C, once the state is saved.
    """
    check_installed(*EXTRAS["train"])
    arguments = arguments_of(recipe, Path(output))
    folder, writes = RunFolder(output, FREE, trusted), arguments.should_save
    request, family = as_mapping(recipe), family_named(recipe.architecture)
    if writes:
        warn_of_emulation(recipe.training.precision)
        folder.check(request, resume)
    kept = checkpoint_to_resume(folder.path, resume_from) if resume and folder.result() is None else None
    start = None if recipe.start_from is None else open_model(recipe.start_from)
    if start is not None:
        recipe = dataclasses.replace(recipe, start_from=str(start.place))
    origin = "given by the caller"
    if tokenizer is None:
        tokenizer, origin = asked_tokenizer(recipe, folder.resolved().get("tokenizer") if resume else None)
    config = model_config(recipe, tokenizer, start)
    check_fits("model", parameters_of(class_for("masked_lm", config), config), TRAINED, bytes_of_batch(recipe, config))
    if (longest := family.longest(config)) is not None:
        # Saved with the model, so that `truncation=True` cuts at the model's limit.
        tokenizer.model_max_length = longest
    # Loaded first, so that missing weights fail before hours of tokenising.
    started = None if start is None else started_model(start.of(config))
    finishes = started is None or family.is_finished(started)
    data = prepare_data(recipe, tokenizer, progress)  # the process that tokenises shows it
    request["resolved"] = {
        "corpus": data.corpus,
        "tokenizer": origin,
        "vocabulary": fingerprint(tokenizer),
        "precision": resolve_precision(recipe.training.precision),
        "processes": arguments.world_size,
        **({} if start is None else {"weights": start.place.digest()}),
    }
    if writes:
        folder.claim(request, resume)
    if resume and (finished := folder.result()) is not None:
        return finished if writes else {}
    set_seed(recipe.training.seed)
    model = new_model(config) if started is None else trained_by_mlm(started)
    if recipe.training.compile:
        compile_layers(model)
    trainer = PretrainTrainer(
        recipe=recipe,
        data=data,
        model=model,
        args=arguments,
        processing_class=tokenizer,
        callbacks=callbacks or [],
        title="pretraining" if progress else None,
    )
    if resume_from is not None and kept is not None and writes:
        drop_damaged(folder.path, kept)
    trainer.train(kept)
    outcome = finish(trainer, folder.path, finishes) | data.counts
    return folder.write_result(outcome, trainer.stopwatch.seconds, seed=recipe.training.seed) if writes else {}


def asked_tokenizer(recipe: PretrainRecipe, before: str | None) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the recipe's tokenizer and its origin; `before` is the origin recorded when the run began."""
    family, cache = family_named(recipe.architecture), Path(recipe.data.cache or default_cache())
    return find_tokenizer(family, recipe.tokenizer or recipe.start_from, recipe.data.readable(), cache, before)


def finish(trainer: "PretrainTrainer", folder: Path, finishes: bool) -> dict[str, Any]:
    """Measures the final model, saves it whole or not at all, and returns the run's results.

    `finishes` says whether weights that the objective does not train are set from those that it does.
    """
    state, model = trainer.state, trainer.model
    held_out = next((entry for entry in reversed(state.log_history) if "eval_loss" in entry), None)
    if held_out is None or held_out["step"] != state.global_step:
        held_out = trainer.evaluate()
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
        ValueError: If the recipe does not fit the text, or the held-out part has no token to mask.
    """
    about, training = recipe.data, recipe.training
    masking = MlmMasking(tokenizer, **dataclasses.asdict(recipe.masking))  # may refuse, so before tokenising
    folder = about.cache or default_cache()
    cache = build_cache(about.readable(), tokenizer, folder, max_tokens=about.max_tokens, progress=progress)
    learnt, held_out = cache.split(about.held_out, seed=0)
    stages = [
        (Windows(learnt, stage.length, about.windows), steps * training.batch_size)
        for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True)
    ]
    windows = Windows(held_out, recipe.stages[0].length, about.windows)
    validation = ValidationSet(windows, masking, seed=0, limit=training.eval_windows)
    if not any((validation[index]["labels"] != IGNORED).any() for index in range(len(validation))):
        raise ValueError("nothing in the held-out text can be hidden: the tokenizer knows none of its words")
    return PretrainData(
        PretrainingStream(stages, masking, training.seed),
        validation,
        {"corpus_tokens": learnt.tokens, "held_out_tokens": held_out.tokens},
        digest(cache.folder / IDS)[:16],
    )


def arguments_of(recipe: PretrainRecipe, folder: Path) -> TrainingArguments:
    """Converts the recipe to TrainingArguments; warns if the learning rate never reaches its peak.

    Raises:
        ValueError: If there is no text, or whole micro-batches over all processes do not add up to the batch.
    """
    training = recipe.training
    if not recipe.data.sources:
        raise ValueError("the recipe names no text; set data.sources= to files, folders or hub data sets")
    if training.warmup_steps >= training.steps:
        told = "training.warmup_steps is %d, training.steps %d: the learning rate never reaches its peak"
        logger.warning(told, training.warmup_steps, training.steps)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation, rest = divmod(training.batch_size, training.micro_batch_size * processes)
    if rest or not accumulation:
        raise ValueError(
            f"training.batch_size {training.batch_size} is not a multiple of training.micro_batch_size "
            f"{training.micro_batch_size} times {processes} process(es)"
        )
    twentieth = max(1, training.steps // 20)
    # Trainer reads TensorBoard's folder only from the environment.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / LOGS)
    same = ("learning_rate", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "seed")
    return training_arguments(
        folder,
        training.precision,
        **{name: getattr(training, name) for name in (*same, "max_grad_norm")},
        max_steps=training.steps,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=training.micro_batch_size,
        per_device_eval_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        activation_checkpointing=training.gradient_checkpointing,
        logging_steps=training.log_steps,
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=training.eval_steps or twentieth,
        save_strategy="steps",
        save_steps=training.save_steps or twentieth,
        save_total_limit=training.keep_checkpoints,
        dataloader_num_workers=training.workers,
        report_to=["tensorboard"],
        ddp_find_unused_parameters=False,
        include_num_input_tokens_seen="non_padding",
    )


class PretrainTrainer(MaBertTrainer):
    """Reads the stream in order, so that resuming means skipping; measures the loss on held-out text.

    For every model, logits are computed at masked positions only, and the loss is the mean over those of the whole
    step.

    Args:
        recipe: The recipe to run.
        data: The run's data.
        processing_class: The tokenizer.
        arguments: As `MaBertTrainer` takes them.
    """

    smaller = (
        "go on by --resume with a smaller training.micro_batch_size or training.gradient_checkpointing=true "
        "(in a study, by the same command with pretrain.training.micro_batch_size)"
    )

    def __init__(
        self, *, recipe: PretrainRecipe, data: PretrainData, processing_class: PreTrainedTokenizerFast, **arguments: Any
    ) -> None:
        training, stages = recipe.training, zip(recipe.stages, recipe.stage_steps(), strict=True)
        super().__init__(
            compute_loss_func=mean_over_scored,
            data_collator=partial(with_places, collator_of(training.packing, processing_class)),
            train_dataset=data.stream,
            eval_dataset=data.validation,
            step_tokens=[training.batch_size * stage.length for stage, steps in stages for _ in range(steps)],
            decay_exempt=training.decay_exempt,
            loss_limit=EXPLODED * math.log(len(processing_class)),
            processing_class=processing_class,
            **arguments,
        )
        self.family = family_of(self.model.config)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        places = inputs.pop(SCORED)
        inputs["labels"] = inputs["labels"].flatten().index_select(0, places)
        with at_places(getattr(self.model, self.family.head), places):
            return super().compute_loss(model, inputs, *arguments, **options)

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float | Tensor:
        scored = len(inputs[SCORED])
        return max(1, scored) * self.args.world_size / torch.as_tensor(num_items_in_batch).clamp(min=1)

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        # Where the host knows the number, and needs no other process's, a GPU is not waited for.
        if ON_HOST in inputs and self.args.world_size == 1:
            self.state.num_input_tokens_seen += inputs[ON_HOST][-1]
        else:
            super()._track_num_input_tokens(inputs)

    def whereabouts(self, step: int) -> str:
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        first = (step - 1) * rows
        return f", in the batch of samples {first} to {first + rows - 1}; checkpoints up to here are kept"

    def rotate_checkpoints(self, folder: Path) -> None:
        """Removes the oldest checkpoints. One by the clock or Ctrl-C does not count and stays until the next save."""
        for earlier in folder.glob(f"checkpoint-*/{BETWEEN}"):
            shutil.rmtree(earlier.parent, ignore_errors=True)
        state = self.state
        between = bool(state.global_step % state.save_steps) and state.global_step < state.max_steps
        if between:
            (folder / f"checkpoint-{state.global_step}" / BETWEEN).touch()
        rotate_checkpoints(str(folder), self.args.save_total_limit + between, use_mtime=False)

    def measure(self) -> dict[str, Any]:
        """Measures held-out loss (mean over scored positions) and accuracy, on fixed windows and masks."""
        step, rows = self.state.global_step, self.args.per_device_eval_batch_size
        with (
            naming_memory(lambda: f"in the evaluation after step {step}, with {rows:,} rows at once; {self.smaller}"),
            self.accelerator.autocast(),
        ):
            sums = held_out_sums(self.model, self.family, self.get_eval_dataloader())
        loss, right, scored = self.accelerator.reduce(sums.to(self.args.device)).tolist()
        if self.is_diverged(loss / scored):
            raise TrainingDivergedError(
                f"the loss is {loss / scored:g} on held-out text after step {step}; "
                "a lower learning rate or a longer warm-up helps"
            )
        return {"eval_loss": loss / scored, "eval_accuracy": right / scored}
