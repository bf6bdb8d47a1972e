"""One training of a fine-tuning: its batches in parts, an evaluation after each epoch, the best weights so far."""

import logging
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, set_seed

from mabert.baselines.registry import family_of
from mabert.data.batches import SplitBatches, batch_share
from mabert.files.writing import CannotSaveError
from mabert.train.callbacks import EvaluateAt
from mabert.train.checkpoint import checkpoint_to_resume
from mabert.train.finetune_run import SMALLER, FinetuneRun
from mabert.train.folder import HISTORIES, LOGS
from mabert.train.trainer import MaBertTrainer, collator_of, training_arguments

logger = logging.getLogger(__name__)

BEST = "best.safetensors"
"""File in a checkpoint with the weights of the best epoch so far."""

AT_ONCE = 4096
"""Maximum padded tokens per forward pass in training, unless `batch_tokens` is set or one row is longer: the default
batch of 32 rows of 128 tokens. With 32 rows of 512 tokens, fine-tuning an encoder of 22 M parameters in fp32 needs
4.4 GiB, and 12.6 at once."""


def finetune_once(run: FinetuneRun, rate: float, seed: int) -> "FinetuneTrainer":
    """Runs one training, from its last checkpoint if there is one, and returns the trainer with the model. Errors are
    those of `MaBertTrainer.train`."""
    set_seed(seed)
    model = run.new_model()
    run.processes.wait_for_everyone()  # the first may be removing old checkpoints
    checkpoint = checkpoint_to_resume(run.checkpoints(rate, seed))
    trainer = FinetuneTrainer(model, run, rate, seed)
    trainer.train(checkpoint)
    if trainer.best_weights is not None:
        model.load_state_dict(trainer.best_weights)
    family_of(model.config).set_packing(model.config, "unpad")  # in use, however it was trained
    return trainer


class FinetuneTrainer(MaBertTrainer):
    """Trains on the batches of the whole run as Trainer's single epoch, and evaluates after every real epoch."""

    smaller = SMALLER

    def __init__(self, model: PreTrainedModel, run: FinetuneRun, rate: float, seed: int) -> None:
        recipe, processes, self.whole = run.recipe, run.processes.num_processes, run.batches(seed)
        steps, name = len(self.whole), run.name_of(rate, seed)
        super().__init__(
            model=model,
            args=training_arguments(
                run.checkpoints(rate, seed),
                run.precision == "bf16",
                num_train_epochs=1,
                per_device_train_batch_size=max(1, recipe.batch_size // processes),
                learning_rate=rate,
                warmup_steps=round(recipe.warmup_share * steps),
                weight_decay=recipe.weight_decay,
                seed=seed,
                logging_steps=max(1, min(50, steps // 20)),
                report_to=recipe.report_to,
                run_name=f"{run.folder.path.resolve().name}/{name}",
            ),
            data_collator=collator_of(recipe.packing, run.model.tokenizer),
            train_dataset=run.examples["train"],
            eval_dataset=run.examples[next(iter(run.labels))],
            batches=self.whole if processes == 1 else SplitBatches(self.whole, processes),
            title=f"{run.kind.task.name} seed {seed} lr {rate:g}" if run.progress else None,
            step_tokens=[sum(map(self.whole.lengths.__getitem__, batch)) for batch in self.whole],
            table_file=run.folder.path / HISTORIES / f"{name}.csv",
            events=run.folder.path / LOGS / name,
            callbacks=run.callbacks,
        )
        # Every family's loss is the mean over the loss terms of its input, see `own_part`. Trainer would take the loss
        # of models whose forward has keyword arguments for a sum over the tokens of a step.
        self.model_accepts_loss_kwargs = False
        self.run = run
        self.rows = slice(None)
        self.add_callback(EvaluateAt(self.whole.epoch_ends()))
        self.best_weights: dict[str, torch.Tensor] | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The training log, with the task's epochs in place of Trainer's."""
        ends = [0, *self.whole.epoch_ends()]
        return [
            {**entry, "epoch": round(float(np.interp(entry["step"], ends, range(len(ends)))), 4)}
            for entry in super().history
        ]

    @cached_property
    def scored(self) -> list[list[int]]:
        """Number of loss terms of each example, for each step, over all processes."""
        scored = self.run.examples["train"].scored
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
        if self.run.recipe.batch_tokens is None and count > size:
            rows = [slice(first, first + size) for first in range(0, count, size)]
            batches = [{name: value[some] for name, value in inputs.items()} for some in rows]
        loss = torch.zeros((), device=self.args.device)
        for number, (self.rows, batch) in enumerate(zip(rows, batches, strict=True), 1):
            with nullcontext() if number == len(rows) else self.accelerator.no_sync(model):
                loss += super().training_step(model, batch, num_items_in_batch)
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        return super().compute_loss(model, inputs, *arguments, **options) * self.own_part

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float | Tensor:
        return super().share_of_step(inputs, num_items_in_batch) * (self.own_part or 1.0)

    def measure(self) -> dict[str, Any]:
        """Scores the first validation split, and keeps the best weights if `select` is `best`."""
        scores = self.run.scores(self.model)
        main, best = scores[self.run.kind.task.main_metric], self.state.best_metric
        if self.run.recipe.select == "best" and main is not None and (best is None or main > best):
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
