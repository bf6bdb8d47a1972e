"""transformers' Trainer with what our runs need: whole checkpoints, a stop on divergence and on Ctrl-C."""

import atexit
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import rotate_checkpoints

from mabert.data.collate import Collator, FlatteningCollator
from mabert.files.reading import read_json
from mabert.files.writing import STAGING, naming_full_disk, saving, write_text
from mabert.machine.memory import naming_memory
from mabert.machine.precision import resolve_precision
from mabert.train import checkpoint
from mabert.train.callbacks import SaveOnInterrupt, Stopwatch
from mabert.train.optim import decay_parameter_names
from mabert.train.progress import TrainingBar
from mabert.train.recipe import Packing

if TYPE_CHECKING:
    from accelerate import PartialState

SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
"""What `accelerate launch` sets where its configuration asks for a model in parts."""

SAVE_SECONDS = 600.0
"""Between two checkpoints by the clock: what a kill may cost, and an evaluation."""


class TrainingDivergedError(ValueError):
    """The loss is no longer a sensible number."""


class MaBertTrainer(Trainer):
    """Trainer that keeps four promises.

    - A checkpoint has its name only when it is complete; a full disk or a kill leaves the one before.
    - Ctrl-C ends the step, saves and stops.
    - A loss that is not finite, or beyond `loss_limit`, stops the run, naming the step.
    - Running out of memory is an `OutOfMemoryError`.

    Attributes:
        smaller: What makes a batch smaller, in words for a person.

    Args:
        title: What the progress bar calls the run; None shows none.
        step_tokens: Tokens of each step, by which the bar tells the time left.
        batches: All batches of the run, as lists of places in the training set; default, Trainer's own.
        save_seconds: Seconds between two checkpoints by the clock; default, `SAVE_SECONDS`.
        decay_exempt: See `mabert.train.optim`.
        loss_limit: Largest loss that is not divergence; default, none.
        callbacks: transformers callbacks beside ours.
        arguments: As `Trainer` takes them.
    """

    smaller = "a smaller batch helps"

    def __init__(
        self,
        *,
        title: str | None = None,
        step_tokens: Iterable[int] = (),
        batches: Sampler[list[int]] | None = None,
        save_seconds: float | None = None,
        decay_exempt: str = "default",
        loss_limit: float = math.inf,
        callbacks: Sequence[TrainerCallback] = (),
        **arguments: Any,
    ) -> None:
        self.interrupt = SaveOnInterrupt(SAVE_SECONDS if save_seconds is None else save_seconds)
        self.stopwatch = Stopwatch()
        super().__init__(callbacks=[self.interrupt, self.stopwatch, *callbacks], **arguments)
        self.remove_callback(PrinterCallback)
        self.bar = None if title is None else TrainingBar(title, list(accumulate(step_tokens)))
        if self.bar is not None:
            self.add_callback(self.bar)
        self.batches = batches
        self.decay_exempt = decay_exempt
        self.loss_limit = loss_limit
        self.staging: Path | None = None
        self.at_once = "before its first batch"

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model, self.decay_exempt)

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.batches is None:
            return super().get_train_dataloader()
        how = {"collate_fn": self.data_collator, "pin_memory": self.args.dataloader_pin_memory}
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_sampler=self.batches, **how))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        self.at_once = f"with {rows_at_once(inputs)}"
        share = self.share_of_step(inputs, num_items_in_batch)
        loss = super().training_step(model, inputs, num_items_in_batch)
        own = float(loss) / share
        if self.is_diverged(own):
            raise TrainingDivergedError(
                f"the loss is {own:g} at step {self.state.global_step + 1}{self.whereabouts()}; "
                "a lower learning rate or a longer warm-up helps"
            )
        return loss

    def is_diverged(self, loss: float) -> bool:
        """Whether a loss is no longer a sensible number."""
        return not (math.isfinite(loss) and loss <= self.loss_limit)

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float:
        """What a micro-batch's own mean loss is multiplied by in the loss of a step."""
        return 1 / self.current_gradient_accumulation_steps

    def whereabouts(self) -> str:
        """Where a step is in the data, and what is kept, in words to go on with."""
        return ""

    def measure(self) -> dict[str, Any]:
        """What an evaluation finds, as `eval_...`."""
        raise NotImplementedError

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        metrics = self.measure()
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def train(self, resume_from_checkpoint: Path | None = None, **options: Any) -> Any:
        """Trains to the end, from a checkpoint if there is one.

        Raises:
            TrainingDivergedError: If the loss is no longer a sensible number.
            MemoryError: If a batch does not fit the memory; says at which step, and how large it is.
            CannotSaveError: If the disk is full.
            KeyboardInterrupt: After Ctrl-C, when the state is saved.
        """
        folder = Path(self.args.output_dir)
        if self.args.should_save:  # what a kill left
            shutil.rmtree(folder / STAGING, ignore_errors=True)
        try:
            with (
                self.interrupt.listening(),
                naming_memory(lambda: f"at step {self.state.global_step + 1}, {self.at_once}; {self.smaller}"),
                naming_full_disk(folder, lambda: self._kept(folder)),
            ):
                trained = super().train(resume_from_checkpoint and str(resume_from_checkpoint), **options)
        finally:
            if self.bar is not None:
                self.bar.close()
        if self.interrupt.interrupted:
            raise KeyboardInterrupt(f"saved {checkpoint.checkpoints(folder)[-1]}; go on with --resume")
        return trained

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # Trainer's own saves its arguments as well, as a pickle, which we neither read nor want others to.
        if self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, state_dict=state_dict)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(output_dir or self.args.output_dir)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self.staging is None else str(self.staging)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        self.staging = folder / STAGING
        name = f"checkpoint-{self.state.global_step}"
        try:
            with saving(folder / name, 3 * size_of(self.model), self._kept(folder)):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    checkpoint.seal(self.staging / name)
                    publish(self.staging / name, folder / name)
                    self.rotate_checkpoints(folder)
        finally:
            if self.args.should_save:
                shutil.rmtree(self.staging, ignore_errors=True)
            self.staging = None

    def _kept(self, folder: Path) -> str:
        """What is on the disk if the next checkpoint cannot be saved, in words to go on with."""
        kept = checkpoint.checkpoints(folder)
        last = f"the last whole checkpoint is {kept[-1]}" if kept else "there is no earlier checkpoint"
        return f"{last}; make room and go on by --resume"

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            checkpoint.save_optimizer(self.optimizer, Path(output_dir) / checkpoint.OPTIMIZER)
            write_text(Path(output_dir) / checkpoint.SCHEDULER, json.dumps(self.lr_scheduler.state_dict()) + "\n")

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        if folder is not None:
            checkpoint.load_optimizer(self.optimizer, Path(folder) / checkpoint.OPTIMIZER)
            self.lr_scheduler.load_state_dict(read_json(Path(folder) / checkpoint.SCHEDULER))

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)  # before the first process has made it
        checkpoint.save_generators(Path(output_dir) / checkpoint.generators_file(self.args.process_index))

    def _load_rng_state(self, folder: str | None) -> None:
        file = Path(folder or "") / checkpoint.generators_file(self.args.process_index)
        if folder is not None and file.exists():  # else it was saved by fewer processes
            checkpoint.load_generators(file)

    def rotate_checkpoints(self, folder: Path) -> None:
        """Removes the oldest of more checkpoints than are to be kept."""
        rotate_checkpoints(str(folder), self.args.save_total_limit, use_mtime=False)


def collator_of(packing: Packing, tokenizer: PreTrainedTokenizerFast) -> Collator | FlatteningCollator:
    """What makes a batch of examples."""
    return FlatteningCollator() if packing == "pack" else Collator(tokenizer.pad_token_id)


def rows_at_once(batch: Mapping[str, Any]) -> str:
    """How much a batch holds, in words."""
    ids, bounds = batch["input_ids"], batch.get("cu_seq_lens_q")
    rows = len(ids) if bounds is None else len(bounds) - 1
    return f"{rows:,} row{'s' if rows > 1 else ''} at once ({ids.numel():,} tokens, padding included)"


def size_of(model: nn.Module) -> int:
    """Bytes of a model's weights."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def publish(written: Path, place: Path) -> None:
    """Gives a finished folder its name; what has that name already is replaced."""
    if place.exists():
        shutil.rmtree(place)
    written.rename(place)


def training_arguments(folder: Path, precision: str, **own: Any) -> TrainingArguments:
    """transformers' arguments with those that all our runs share.

    Args:
        folder: For checkpoints.
        precision: `fp32`, `bf16` or `auto`.
        own: Those of a run.
    """
    shared = {
        "lr_scheduler_type": "linear",
        "report_to": [],
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        # Filling up the last batch would count some texts twice.
        "accelerator_config": {"even_batches": False},
        **device_arguments(precision),
    }
    return orderly(TrainingArguments(output_dir=str(folder), **{**shared, **own}))


def orderly(arguments: TrainingArguments) -> TrainingArguments:
    """Keeps one process to one GPU, several being for torchrun, and the precision to the one that the run's record has;
    has connected processes part before they end."""
    if arguments.n_gpu > 1:  # Trainer would split each batch over all of them.
        arguments._n_gpu = 1
    arguments.mixed_precision = "bf16" if arguments.bf16 else "no"  # accelerate's own file may say another
    if torch.distributed.is_initialized():
        atexit.unregister(leave_group)
        atexit.register(leave_group)
    return arguments


def leave_group() -> None:
    """Ends the threads of communication: one that wants the interpreter's lock after its end aborts the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def joined(precision: str) -> "PartialState":
    """This process among those that torchrun began, connected with them; alone without it."""
    arguments = orderly(TrainingArguments(report_to=[], **device_arguments(precision)))
    assert arguments.distributed_state is not None
    return arguments.distributed_state


def device_arguments(precision: str) -> dict[str, Any]:
    """What TrainingArguments needs to know of the device.

    Raises:
        ValueError: If accelerate is to cut the model up over the processes.
    """
    if cut := [name for name in SHARDING if os.environ.get(name, "").lower() in ("true", "1")]:
        raise ValueError(
            f"{cut[0]} is set, which asks accelerate to shard the model; here each process trains a whole one: launch "
            "without it, or shard under transformers' Trainer (docs/many-machines.md)"
        )
    cuda = torch.cuda.is_available()
    return {
        "use_cpu": not cuda,
        # accelerate takes a named backend for the wish to have several processes.
        "ddp_backend": "gloo" if "WORLD_SIZE" in os.environ and not cuda else None,
        "bf16": resolve_precision(precision) == "bf16",
        "dataloader_pin_memory": cuda,
        "disable_tqdm": True,
    }
