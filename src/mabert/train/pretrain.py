"""Pretraining by masked language modelling, from raw text to a model folder."""

import dataclasses
import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedTokenizerFast, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from mabert.data.build import build_cache
from mabert.data.collate import Collator
from mabert.data.mlm import MlmMasking, PretrainingStream, ValidationSet
from mabert.data.tokenizer import load_tokenizer
from mabert.data.windows import make_windows
from mabert.model import MaBertConfig, MaBertForMaskedLM
from mabert.train.recipe import PretrainRecipe, as_mapping
from mabert.train.run import RunFolder
from mabert.train.trainer import MaBertTrainer, SaveOnInterrupt, device_arguments

logger = logging.getLogger(__name__)

EXPLODED = 3.0
"""A loss of so many times that of a uniform guess, ln(vocabulary), counts as divergence."""


@dataclass
class PretrainData:
    """What a run reads.

    Attributes:
        stream: Every sample of the run, in order.
        validation: Held-out windows under fixed masks, at the length of the first stage.
        counts: Tokens and documents, for the record.
    """

    stream: PretrainingStream
    validation: ValidationSet
    counts: dict[str, int]


def pretrain(
    recipe: PretrainRecipe,
    output: str | Path,
    *,
    resume: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
    progress: bool = True,
    callbacks: list[TrainerCallback] | None = None,
) -> dict[str, Any]:
    """Runs a recipe.

    Args:
        recipe: What to do.
        output: Folder for checkpoints, the final model with its tokenizer, TensorBoard logs and `result.json`.
        resume: Whether to go on with the run in `output`; the weights end as those of an uninterrupted run do.
        tokenizer: In place of `recipe.tokenizer`.
        progress: Whether to show progress bars.
        callbacks: transformers callbacks beside ours.

    Returns:
        The content of `result.json`.

    Raises:
        ValueError: If the recipe cannot be run, the folder holds another run, or the loss diverges.
        OSError: If a checkpoint cannot be written; earlier ones are kept.
        KeyboardInterrupt: After Ctrl-C, when the state is saved.
    """
    if recipe.tokenizer is None and tokenizer is None:
        raise ValueError(
            "the recipe names no tokenizer; set tokenizer= to a folder, a vocab.txt, a tokenizer.json or a hub name"
        )
    if not recipe.data.sources:
        raise ValueError("the recipe names no text; set data.sources= to files, folders or hub data sets")
    tokenizer = tokenizer or load_tokenizer(recipe.tokenizer)
    folder = RunFolder(output)
    arguments = training_arguments(recipe, folder.path)
    config = model_config(recipe, tokenizer)
    if arguments.should_save:
        folder.check(as_mapping(recipe), resume)
    with arguments.main_process_first(desc="tokenising"):
        data = prepare_data(recipe, tokenizer, progress and arguments.should_save)
    if arguments.should_save:
        folder.claim(as_mapping(recipe), resume)
    set_seed(recipe.training.seed)
    model = MaBertForMaskedLM(config)
    interrupt = SaveOnInterrupt()
    trainer = PretrainTrainer(
        model=model,
        args=arguments,
        data_collator=Collator(tokenizer.pad_token_id),
        train_dataset=data.stream,
        eval_dataset=data.validation,
        processing_class=tokenizer,
        callbacks=[interrupt, *(callbacks or [])],
        title="pretraining" if progress else None,
        decay_exempt=recipe.training.decay_exempt,
        loss_limit=EXPLODED * math.log(len(tokenizer)),
    )
    checkpoint = get_last_checkpoint(str(folder.path)) if resume else None
    with interrupt.listening():
        trainer.train(resume_from_checkpoint=checkpoint)
    if interrupt.interrupted:
        raise KeyboardInterrupt(f"saved {get_last_checkpoint(str(folder.path))}; go on with --resume")
    return finish(trainer, folder, data, recipe)


def finish(trainer: "PretrainTrainer", folder: RunFolder, data: PretrainData, recipe: PretrainRecipe) -> dict[str, Any]:
    """Measures the final model, saves it and the record of the run."""
    outcome = trainer.evaluate()
    model = trainer.model
    model.config.sparse_prediction = False
    trainer.save_model(str(folder.path))
    history = [entry for entry in trainer.state.log_history if "loss" in entry or "eval_loss" in entry]
    if not trainer.args.should_save:
        return {}
    return folder.write_result(
        {
            "held_out_loss": outcome["eval_loss"],
            "held_out_accuracy": outcome["eval_accuracy"],
            "steps": trainer.state.global_step,
            "tokens": trainer.tokens_in(trainer.state.global_step),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **data.counts,
            "history": history,
        },
        seed=recipe.training.seed,
    )


def prepare_data(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, progress: bool) -> PretrainData:
    """Tokenises the text (or reuses the cache) and lays out the stages."""
    cache = build_cache(
        recipe.data.sources,
        tokenizer,
        recipe.data.cache or default_cache(),
        max_tokens=recipe.data.max_tokens,
        progress=progress,
    )
    training, held_out = cache.split(recipe.data.held_out, seed=0)
    masking = MlmMasking(tokenizer, **dataclasses.asdict(recipe.masking))
    stages = [
        (make_windows(training, stage.length, recipe.data.windows), steps * recipe.training.batch_size)
        for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True)
    ]
    windows = make_windows(held_out, recipe.stages[0].length, recipe.data.windows)
    return PretrainData(
        PretrainingStream(stages, masking, recipe.training.seed),
        ValidationSet(windows, masking, seed=0, limit=recipe.training.eval_windows),
        {"corpus_tokens": training.tokens, "held_out_tokens": held_out.tokens},
    )


def default_cache() -> Path:
    """Where tokenised corpora are kept unless the recipe says otherwise."""
    return Path(os.environ.get("MABERT_CACHE") or Path.home() / ".cache" / "mabert")


def model_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast) -> MaBertConfig:
    """The recipe's model for that vocabulary.

    Raises:
        ValueError: If a stage is longer than the positions, or the vocabulary is larger than asked for.
    """
    asked = dict(recipe.model)
    size = asked.pop("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise ValueError(f"model.vocab_size is {size}, the tokenizer has {len(tokenizer)} entries")
    config = MaBertConfig(**asked, vocab_size=size, pad_token_id=tokenizer.pad_token_id, sparse_prediction=True)
    longest = max(stage.length for stage in recipe.stages)
    if config.position_embedding == "learned" and longest > config.max_position_embeddings:
        raise ValueError(
            f"a stage has windows of {longest} tokens, "
            f"model.max_position_embeddings is {config.max_position_embeddings}"
        )
    return config


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
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
    return TrainingArguments(
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
        **device_arguments(training.precision),
    )


class PretrainTrainer(MaBertTrainer):
    """Reads the stream front to back, so that resuming is skipping; measures tokens per second and held-out text."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.clock: tuple[float, int] | None = None

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def tokens_in(self, step: int) -> int:
        """Tokens in the first `step` steps."""
        left = step * self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        total = 0
        for windows, samples in self.train_dataset.stages:
            total += min(left, samples) * windows.length
            left = max(0, left - samples)
        return total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        now = (time.perf_counter(), self.tokens_in(self.state.global_step))
        if "loss" in logs:
            if self.clock is not None and now[1] > self.clock[1]:
                logs["tokens_per_second"] = round((now[1] - self.clock[1]) / (now[0] - self.clock[0]), 1)
            self.clock = now
        super().log(logs, start_time)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """Held-out loss (mean over scored positions) and accuracy; the same windows and masks every time."""
        started = time.perf_counter()
        loss, right, scored = held_out_sums(self.model, self.get_eval_dataloader()).tolist()
        sums = self.accelerator.reduce(torch.tensor([loss, right, scored], device=self.args.device))
        loss, right, scored = sums.tolist()
        metrics = {"eval_loss": loss / scored, "eval_accuracy": right / scored}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.clock is not None:
            self.clock = (self.clock[0] + time.perf_counter() - started, self.clock[1])
        return metrics


@torch.no_grad()
def held_out_sums(model: MaBertForMaskedLM, loader: DataLoader) -> Tensor:
    """Summed cross-entropy, right guesses and scored positions, float64 (3,), of this process's windows."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in loader:
        labels = batch.pop("labels")
        scored = labels != -100
        hidden = model.mabert(**batch).last_hidden_state[scored]
        logits = model.decoder(model.transform(hidden)).float()
        truth = labels[scored]
        sums[0] += torch.nn.functional.cross_entropy(logits, truth, reduction="sum").cpu()
        sums[1] += (logits.argmax(-1) == truth).sum().cpu()
        sums[2] += len(truth)
    return sums
