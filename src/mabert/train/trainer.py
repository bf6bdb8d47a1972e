"""transformers' Trainer with what our runs need: whole checkpoints, a stop on divergence and on Ctrl-C."""

import atexit
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.trainer_utils import rotate_checkpoints

from mabert.memory import naming_memory
from mabert.precision import resolve_precision
from mabert.processes import handling
from mabert.reading import read_json
from mabert.train import checkpoint
from mabert.train.optim import decay_parameter_names
from mabert.train.progress import TrainingBar
from mabert.writing import STAGING, naming_full_disk, saving, write_text

logger = logging.getLogger(__name__)

SAVE_SECONDS = 600.0
"""Between two checkpoints by the clock: what a kill may cost, and an evaluation."""


class TrainingDivergedError(ValueError):
    """The loss is no longer a sensible number."""


class MaBertTrainer(Trainer):
    """Trainer that keeps three promises.

    - A checkpoint has its name only when it is complete; a full disk or a kill leaves the one before.
    - A loss that is not finite, or beyond `loss_limit`, stops the run, naming the step.
    - Running out of memory is an `OutOfMemoryError`.

    Attributes:
        smaller: What makes a batch smaller, in words for a person.

    Args:
        title: What the progress bar calls the run; None shows none.
        step_tokens: Tokens of each step, by which the bar tells the time left.
        decay_exempt: See `mabert.train.optim`.
        loss_limit: Largest loss that is not divergence; default, none.
        arguments: As `Trainer` takes them.
    """

    smaller = "a smaller batch helps"

    def __init__(
        self,
        *,
        title: str | None = None,
        step_tokens: Iterable[int] = (),
        decay_exempt: str = "default",
        loss_limit: float = math.inf,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)
        self.bar = None if title is None else TrainingBar(title, list(accumulate(step_tokens)))
        if self.bar is not None:
            self.add_callback(self.bar)
        self.decay_exempt = decay_exempt
        self.loss_limit = loss_limit
        self.staging: Path | None = None
        self.at_once = "before its first batch"

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model, self.decay_exempt)

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

    def train(self, *arguments: Any, **options: Any) -> Any:
        folder = Path(self.args.output_dir)
        if self.args.should_save:  # what a kill left
            shutil.rmtree(folder / STAGING, ignore_errors=True)
        try:
            with (
                naming_memory(lambda: f"at step {self.state.global_step + 1}, {self.at_once}; {self.smaller}"),
                naming_full_disk(folder, lambda: self._kept(folder)),
            ):
                return super().train(*arguments, **options)
        finally:
            if self.bar is not None:
                self.bar.close()

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
        if folder is None:
            return
        checkpoint.load_optimizer(self.optimizer, Path(folder) / checkpoint.OPTIMIZER)
        self.lr_scheduler.load_state_dict(read_json(Path(folder) / checkpoint.SCHEDULER))

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)  # before the first process has made it
        checkpoint.save_generators(Path(output_dir) / checkpoint.generators_file(self.args.process_index))

    def _load_rng_state(self, folder: str | None) -> None:
        if folder is None:
            return
        file = Path(folder) / checkpoint.generators_file(self.args.process_index)
        if file.exists():  # else it was saved by fewer processes
            checkpoint.load_generators(file)

    def rotate_checkpoints(self, folder: Path) -> None:
        """Removes the oldest of more checkpoints than are to be kept."""
        rotate_checkpoints(str(folder), self.args.save_total_limit, use_mtime=False)


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


class SaveOnInterrupt(TrainerCallback):
    """Ctrl-C finishes the step, saves and stops; a second one stops at once.

    Args:
        every: Seconds after which it saves anyhow; a training that took as long is saved at its end, too, for what
            comes after it.

    Attributes:
        interrupted: Whether it happened.
    """

    def __init__(self, every: float = math.inf) -> None:
        self.interrupted, self.every = False, every
        self.began = self.saved = time.monotonic()
        self.saved_step: int | None = None

    def listening(self) -> AbstractContextManager[None]:
        """Handles SIGINT while training runs; only possible in the main thread."""
        return handling(signal.SIGINT, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        if os.environ.get("RANK", "0") == "0":
            with contextlib.suppress(OSError):  # nobody may read it any more, or the disk of a log be full
                # Not by `print`: a signal may come while that is in use.
                os.write(2, b"\nmabert: ends this step, saves and stops; Ctrl-C again stops at once, without saving\n")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Asks for a checkpoint and the end, in all processes at the same step."""
        return self._answer(args, control, self.saved)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Likewise, for an interrupt that came while the last step was evaluated."""
        return control if self.saved_step == state.global_step else self._answer(args, control, self.began)

    def _answer(self, args: TrainingArguments, control: TrainerControl, since: float) -> TrainerControl:
        # Read once: a signal may come at any time, and one that comes later is answered at the next step.
        stop, due = self.interrupted, time.monotonic() - since >= self.every
        if torch.distributed.is_initialized():
            asked = torch.tensor([int(stop), int(due)], device=args.device)
            torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
            stop, due = map(bool, asked.tolist())
            self.interrupted = self.interrupted or stop
        control.should_save = control.should_save or stop or due
        control.should_training_stop = control.should_training_stop or stop
        return control

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clocks."""
        self.began = self.saved = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Starts one of them again."""
        self.saved, self.saved_step = time.monotonic(), state.global_step


class StepsAsAsked(TrainerCallback):
    """Lets a resumed run log, evaluate and save as often as it now is asked to, not as the checkpoint remembers."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts anew."""
        state.compute_steps(args, state.max_steps)


class Stopwatch(TrainerCallback, ExportableState):
    """Seconds of training that went into the weights: over all starts of a run, without what a kill threw away."""

    def __init__(self) -> None:
        self.before = 0.0
        self.since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds up to now."""
        return self.before + (0.0 if self.since is None else time.monotonic() - self.since)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"args": {}, "attributes": {"before": self.seconds}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts, from where the checkpoint left off."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, dict):
            self.before = kept["attributes"]["before"]
        self.since = time.monotonic()


def orderly(arguments: TrainingArguments) -> TrainingArguments:
    """Keeps one process to one GPU, several being for torchrun, and has connected processes part before they end."""
    if arguments.n_gpu > 1:  # Trainer would split each batch over all of them.
        arguments._n_gpu = 1
    if torch.distributed.is_initialized():
        atexit.unregister(leave_group)
        atexit.register(leave_group)
    return arguments


def leave_group() -> None:
    """Ends the threads of communication: one that wants the interpreter's lock after its end aborts the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def joined(precision: str) -> PartialState:
    """This process among those that torchrun began, connected with them; alone without it."""
    arguments = orderly(TrainingArguments(report_to=[], **device_arguments(precision)))
    assert arguments.distributed_state is not None
    return arguments.distributed_state


def device_arguments(precision: str) -> dict[str, Any]:
    """What TrainingArguments needs to know of the device."""
    cuda = torch.cuda.is_available()
    return {
        "use_cpu": not cuda,
        # accelerate takes a named backend for the wish to have several processes.
        "ddp_backend": "gloo" if "WORLD_SIZE" in os.environ and not cuda else None,
        "bf16": resolve_precision(precision) == "bf16",
        "dataloader_pin_memory": cuda,
        "disable_tqdm": True,
    }
