"""transformers' Trainer with whole checkpoints, and stops on divergence and on Ctrl-C."""

import atexit
import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import rotate_checkpoints

from mabert.data.collate import Collator, FlatteningCollator
from mabert.files.reading import finite, read_json
from mabert.files.writing import STAGING, naming_full_disk, saving, write_json, write_text
from mabert.machine.memory import naming_memory, size_of
from mabert.train import checkpoint
from mabert.train.callbacks import Events, SaveOnInterrupt, SmallProcess, Stopwatch, TrainingBar, end_reports, table
from mabert.train.objective import decay_parameter_names
from mabert.train.recipe import PackingChoice

if TYPE_CHECKING:
    from accelerate import PartialState

SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
"""Variables that `accelerate launch` sets if its configuration shards the model."""

TABLE_SECONDS = 10.0
"""Least seconds between two writes of the table: the whole log is written each time."""


Unread = tuple[int, Tensor, torch.cuda.Event | None]
"""A step, its loss on its way to the host, and what tells that it has come, on a GPU."""


class TrainingDivergedError(ValueError):
    """The loss is not finite or far too large."""


class RecordingTrainer(Trainer):
    """A Trainer whose log has None for numbers that are not finite, because checkpoints keep the log as JSON. Callbacks
    get the numbers themselves. `mabert.train.objective` says which weights decay."""

    decay_exempt = "default"

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model, self.decay_exempt)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history[-1] = finite(self.state.log_history[-1])


class MaBertTrainer(RecordingTrainer):
    """Trainer that keeps four promises.

    - A checkpoint gets its name only once it is complete; a full disk or a kill leaves the previous one.
    - Ctrl-C ends the step, saves and stops.
    - A loss that is not finite, or beyond `loss_limit`, stops the run, naming the step, before anything is saved or
      measured. It is read while the next micro-batch runs, so that a GPU need not wait for the host.
    - Running out of memory is an `OutOfMemoryError`.

    `smaller` is advice on making a batch smaller, for messages. `save_seconds` pass between two checkpoints by the
    clock: a kill loses at most this and an evaluation.

    Args:
        title: Title of the progress bar; None shows no bar.
        step_tokens: Tokens of each step, from which the bar estimates the time left.
        batches: All batches of the run, as lists of indices into the training set; default, Trainer's own.
        table_file: CSV file for the log; default, none.
        events: Folder for TensorBoard's events, if `report_to` names it.
        callbacks: Additional transformers callbacks.
        arguments: As `Trainer` takes them.
    """

    smaller = "a smaller batch helps"
    loss_limit = math.inf
    save_seconds = 600.0

    def __init__(
        self,
        *,
        title: str | None = None,
        step_tokens: Iterable[int] = (),
        batches: Sampler[list[int]] | None = None,
        table_file: Path | None = None,
        events: Path | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        **arguments: Any,
    ) -> None:
        self.interrupt = SaveOnInterrupt(self.save_seconds)
        self.stopwatch = Stopwatch()
        super().__init__(callbacks=[self.interrupt, self.stopwatch, SmallProcess(), *callbacks], **arguments)
        self.remove_callback(PrinterCallback)
        if events is not None and self.pop_callback(TensorBoardCallback) is not None:
            self.add_callback(Events(events))
        self.bar = None if title is None else TrainingBar(title, list(accumulate(step_tokens)))
        if self.bar is not None:
            self.add_callback(self.bar)
        self.batches = batches
        self.table_file, self.table_written = table_file, -math.inf
        self.staging: Path | None = None
        self.at_once = "before its first batch"
        self.unread: Unread | None = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.batches is None:
            return super().get_train_dataloader()
        how = {"collate_fn": self.data_collator, "pin_memory": self.args.dataloader_pin_memory}
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_sampler=self.batches, **how))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        self.at_once = f"with {rows_at_once(inputs)}"
        share = self.share_of_step(inputs, num_items_in_batch)
        loss = super().training_step(model, inputs, num_items_in_batch)
        newest, copied = (loss / share).detach().to("cpu", non_blocking=True), None
        if loss.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        self.check_last_loss((self.state.global_step + 1, newest, copied))
        return loss

    def check_last_loss(self, newest: Unread | None = None) -> None:
        """Checks the loss that was not read yet, before anything is built on its step; the newest may wait instead."""
        last, self.unread = self.unread, newest
        if last is not None:
            step, loss, copied = last
            if copied is not None:
                copied.synchronize()
            self.check_loss(float(loss), f"at step {step}{self.whereabouts(step)}")

    def check_loss(self, loss: float, where: str) -> None:
        """Raises TrainingDivergedError if a loss is not finite or above `loss_limit`."""
        if not (math.isfinite(loss) and loss <= self.loss_limit):
            raise TrainingDivergedError(
                f"the loss is {loss:g} {where}; a lower learning rate or a longer warm-up helps"
            )

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        self.check_last_loss()  # what is logged was waited for
        super().log(logs, start_time)
        self.state.log_history[-1]["seconds"] = round(self.stopwatch.seconds, 1)
        if time.monotonic() - self.table_written > TABLE_SECONDS:
            self.write_table()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The log: losses and evaluations with their steps and the seconds of training up to them."""
        return [entry for entry in self.state.log_history if "train_loss" not in entry]  # of the whole training

    def write_table(self) -> None:
        """Writes the log as a table."""
        # A training that failed before its first step leaves the table of an earlier start.
        if self.table_file is None or not self.args.should_save or not self.history:
            return
        with contextlib.suppress(OSError):  # a table is no reason to end a training
            self.table_file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.table_file, table(self.history), lasting=False)
        self.table_written = time.monotonic()

    def share_of_step(self, inputs: dict[str, Any], num_items_in_batch: Any) -> float | Tensor:
        """Returns the weight of a micro-batch's mean loss in the loss of the step."""
        return 1 / self.current_gradient_accumulation_steps

    def whereabouts(self, step: int) -> str:
        """Describes where a step is in the data and what is kept, to end a message."""
        return ""

    def measure(self) -> dict[str, Any]:
        """Evaluates the model; returns metrics named `eval_...`."""
        raise NotImplementedError

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        self.check_last_loss()
        metrics = self.measure()
        self.log(metrics)
        self.write_table()
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def train(self, resume_from_checkpoint: Path | None = None, **options: Any) -> Any:
        """Trains to the end, from a checkpoint if there is one.

        Raises:
            TrainingDivergedError: If the loss is not finite or above `loss_limit`.
            MemoryError: If a batch does not fit the memory; the message names the step and the batch's size.
            CannotSaveError: If the disk is full.
            KeyboardInterrupt: After Ctrl-C, once the state is saved.
        """
        folder = Path(self.args.output_dir)
        if self.args.should_save:  # left by a kill
            shutil.rmtree(folder / STAGING, ignore_errors=True)
        try:
            with (
                self.interrupt.listening(),
                naming_memory(lambda: f"at step {self.state.global_step + 1}, {self.at_once}; {self.smaller}"),
                naming_full_disk(folder, self._kept),
            ):
                trained = super().train(resume_from_checkpoint and str(resume_from_checkpoint), **options)
                self.check_last_loss()
        finally:
            self.write_table()
            end_reports(self.args.report_to)
            if self.bar is not None:
                self.bar.close()
        if self.interrupt.interrupted:
            kept = checkpoint.checkpoints(folder)  # none after the last epoch of a short training
            raise KeyboardInterrupt(f"saved {kept[-1]}; go on with --resume" if kept else "")
        return trained

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # Trainer's own also pickles its arguments; nobody should read a pickle.
        if self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, state_dict=state_dict)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(output_dir or self.args.output_dir)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self.staging is None else str(self.staging)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.check_last_loss()
        folder = Path(self.args.output_dir)
        self.staging = folder / STAGING
        name = f"checkpoint-{self.state.global_step}"
        try:
            with saving(folder / name, 3 * size_of(self.model), self._kept()):
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

    def _kept(self) -> str:
        """Says what remains on the disk if the next checkpoint cannot be saved, to end a message."""
        kept = checkpoint.checkpoints(Path(self.args.output_dir))
        last = f"the last whole checkpoint is {kept[-1]}" if kept else "there is no earlier checkpoint"
        return f"{last}; make room and go on by --resume"

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            checkpoint.save_optimizer(self.optimizer, Path(output_dir) / checkpoint.OPTIMIZER)
            write_json(Path(output_dir) / checkpoint.SCHEDULER, self.lr_scheduler.state_dict())

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        if folder is not None:
            checkpoint.load_optimizer(self.optimizer, Path(folder) / checkpoint.OPTIMIZER)
            self.lr_scheduler.load_state_dict(read_json(Path(folder) / checkpoint.SCHEDULER))

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)  # the first process may not have made it yet
        checkpoint.save_generators(Path(output_dir), self.args.process_index)

    def _load_rng_state(self, folder: str | None) -> None:
        if folder is not None:
            checkpoint.load_generators(Path(folder), self.args.process_index)

    def rotate_checkpoints(self, folder: Path) -> None:
        """Removes the oldest checkpoints beyond the number to keep."""
        rotate_checkpoints(str(folder), self.args.save_total_limit, use_mtime=False)


def collator_of(packing: PackingChoice, tokenizer: PreTrainedTokenizerFast) -> Collator | FlatteningCollator:
    """Returns the collator for a way of packing."""
    return FlatteningCollator() if packing == "pack" else Collator(tokenizer.pad_token_id)


def rows_at_once(batch: Mapping[str, Any]) -> str:
    """Describes the size of a batch."""
    ids, bounds = batch["input_ids"], batch.get("cu_seq_lens_q")
    rows = len(ids) if bounds is None else len(bounds) - 1
    return f"{rows:,} row{'s' if rows > 1 else ''} at once ({ids.numel():,} tokens, padding included)"


def publish(written: Path, place: Path) -> None:
    """Gives a finished folder its name, replacing what has that name already."""
    if place.exists():
        shutil.rmtree(place)
    written.rename(place)


def training_arguments(folder: Path, bf16: bool, **own: Any) -> TrainingArguments:
    """Makes TrainingArguments with the defaults that all our runs share, those of the device, and the run's own.

    Raises:
        ValueError: If accelerate is to shard the model over the processes.
    """
    if cut := [name for name in SHARDING if os.environ.get(name, "").lower() in ("true", "1")]:
        raise ValueError(
            f"{cut[0]} is set, which asks accelerate to shard the model; here each process trains a whole one: launch "
            "without it, or shard under transformers' Trainer (docs/many-machines.md)"
        )
    cuda = torch.cuda.is_available()
    shared = {
        "save_strategy": "no",  # by the clock
        "save_total_limit": 1,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        # Padding the last batch with repeats would count some texts twice.
        "accelerator_config": {"even_batches": False, "non_blocking": cuda},
        "use_cpu": not cuda,
        # accelerate takes a named backend as a request for several processes.
        "ddp_backend": "gloo" if "WORLD_SIZE" in os.environ and not cuda else None,
        "bf16": bf16,
        "dataloader_pin_memory": cuda,
        "disable_tqdm": True,
    }
    return orderly(TrainingArguments(output_dir=str(folder), **{**shared, **own}))


def orderly(arguments: TrainingArguments) -> TrainingArguments:
    """Limits a process to one GPU (torchrun is for several), fixes the recorded precision, and makes connected
    processes disconnect before they end."""
    if arguments.n_gpu > 1:  # Trainer would split each batch over all of them.
        arguments._n_gpu = 1
    arguments.mixed_precision = "bf16" if arguments.bf16 else "no"  # accelerate's own file may set another
    if torch.distributed.is_initialized():
        atexit.unregister(leave_group)
        atexit.register(leave_group)
    return arguments


def leave_group() -> None:
    """Ends the communication threads: one that takes the interpreter's lock after shutdown aborts the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def join_processes() -> "PartialState":
    """Connects this process with the others that torchrun started; without torchrun it is alone."""
    state = training_arguments(Path(), bf16=False).distributed_state
    assert state is not None
    return state
