"""Pretraining by masked language modelling, from raw text to a model folder."""

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from mabert.files.writing import filling
from mabert.machine.environment import EXTRAS, check_installed
from mabert.machine.memory import naming_memory, size_of
from mabert.schema import ON_HOST, SCORED
from mabert.train.folder import HISTORY, LOGS, MAKE_ROOM, RunFolder
from mabert.train.objective import at_places, held_out_sums, mean_over_scored, with_places
from mabert.train.pretrain_run import FREE, PretrainRun, resolve
from mabert.train.recipe import PretrainRecipe
from mabert.train.trainer import MaBertTrainer, collator_of

BETWEEN_STAGES = "between"
"""Marks a checkpoint that does not count towards `keep_checkpoints`."""

EXPLODED = 3.0
"""A loss above this multiple of a uniform guess's, ln(vocabulary), counts as divergence."""


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
        output: Folder for checkpoints, the final model with its tokenizer, curves and `result.json`.
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
    with RunFolder(output, resume, free=FREE, trusted=trusted) as folder:
        run = resolve(recipe, folder, resume_from=resume_from, tokenizer=tokenizer, progress=progress)
        writes = run.arguments.should_save
        if run.result is not None:
            return run.result if writes else {}
        trainer = PretrainTrainer(run, progress, callbacks or [])
        trainer.train(run.checkpoint)
        outcome = trainer.finish() | run.data.counts
        return folder.write_result(outcome, trainer.stopwatch.seconds, seed=recipe.training.seed) if writes else {}


class PretrainTrainer(MaBertTrainer):
    """Reads the stream in order, so that resuming means skipping; measures the loss on held-out text.

    For every model, logits are computed at masked positions only, and the loss is the mean over those of the whole
    step.
    """

    smaller = (
        "go on by --resume with a smaller training.micro_batch_size or training.gradient_checkpointing=true "
        "(in a study, by the same command with pretrain.training.micro_batch_size)"
    )

    def __init__(self, run: PretrainRun, progress: bool, callbacks: list[TrainerCallback]) -> None:
        training = run.recipe.training
        run.family.freeze_unreached(run.model)
        super().__init__(
            model=run.model,
            args=run.arguments,
            compute_loss_func=mean_over_scored,
            data_collator=partial(with_places, collator_of(training.packing, run.tokenizer)),
            train_dataset=run.data.stream,
            eval_dataset=run.data.validation,
            processing_class=run.tokenizer,
            title="pretraining" if progress else None,
            step_tokens=[training.batch_size * length for length, steps in run.stages for _ in range(steps)],
            table_file=run.folder.path / HISTORY,
            events=run.folder.path / LOGS,
            callbacks=callbacks,
        )
        self.family = run.family
        # Whether weights that the objective does not train are set from those that it does.
        self.finishes = run.recipe.start_from is None or run.family.is_finished(run.model)
        self.decay_exempt = training.decay_exempt
        self.loss_limit = EXPLODED * math.log(len(run.tokenizer))

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
        for earlier in folder.glob(f"checkpoint-*/{BETWEEN_STAGES}"):
            shutil.rmtree(earlier.parent, ignore_errors=True)
        state = self.state
        between = bool(state.global_step % state.save_steps) and state.global_step < state.max_steps
        if between:
            (folder / f"checkpoint-{state.global_step}" / BETWEEN_STAGES).touch()
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
        self.check_loss(loss / scored, f"on held-out text after step {step}")
        return {"eval_loss": loss / scored, "eval_accuracy": right / scored}

    def finish(self) -> dict[str, Any]:
        """Measures the trained model, saves it whole or not at all, and returns the run's results."""
        state, model = self.state, self.model
        held_out = next((entry for entry in reversed(state.log_history) if "eval_loss" in entry), None)
        if held_out is None or held_out["step"] != state.global_step:
            held_out = self.evaluate()
        if self.finishes:
            self.family.finish_pretraining(model)
        self.family.set_packing(model.config, "unpad")  # in use, however it was trained
        if self.args.should_save:
            with filling(self.args.output_dir, size_of(model), MAKE_ROOM) as staging:
                self.save_model(str(staging))
        return {
            "held_out_loss": held_out["eval_loss"],
            "held_out_accuracy": held_out["eval_accuracy"],
            "steps": state.global_step,
            "tokens": state.num_input_tokens_seen,
            "parameters": model.num_parameters(),
            "history": self.history,
        }
