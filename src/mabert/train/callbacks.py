"""Trainer callbacks: save on Ctrl-C and by the clock, and measure the time."""

import contextlib
import math
import os
import signal
import time
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl
from transformers.trainer_callback import ExportableState

from mabert.machine.processes import FreedMemory, handling


class SaveOnInterrupt(TrainerCallback):
    """Finishes the step, saves and stops on Ctrl-C; a second Ctrl-C stops at once.

    Args:
        every: Seconds between saves by the clock. A training that took longer is also saved at its end, since what
            follows may fail.

    Attributes:
        interrupted: Whether Ctrl-C was pressed.
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
            with contextlib.suppress(OSError):  # the reader may be gone, or the disk of a log full
                # Not `print`, which the signal may have interrupted.
                os.write(2, b"\nmabert: ends this step, saves and stops; Ctrl-C again stops at once, without saving\n")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> TrainerControl:
        """Requests a checkpoint and the end, in all processes at the same step."""
        return self._answer(args, control, self.saved)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> TrainerControl:
        """Does the same for an interrupt during the evaluation of the last step."""
        return control if self.saved_step == state.global_step else self._answer(args, control, self.began)

    def _answer(self, args: Any, control: TrainerControl, since: float) -> TrainerControl:
        # Read only once, because a signal may come at any time; a later one counts at the next step.
        stop, due = self.interrupted, time.monotonic() - since >= self.every
        if torch.distributed.is_initialized():
            asked = torch.tensor([int(stop), int(due)], device=args.device)
            torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
            stop, due = map(bool, asked.tolist())
            self.interrupted = self.interrupted or stop
        control.should_save = control.should_save or stop or due
        control.should_training_stop = control.should_training_stop or stop
        return control

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clocks. A resumed run saves at the interval it is given now, not at the checkpoint's."""
        state.compute_steps(args, state.max_steps)
        self.began = self.saved = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restarts the clock of saves."""
        self.saved, self.saved_step = time.monotonic(), state.global_step


class SmallProcess(TrainerCallback):
    """Keeps a training on a CPU from growing, see `FreedMemory`."""

    def __init__(self) -> None:
        self.freed = FreedMemory()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks at the process's size."""
        self.freed.after_step()


class Stopwatch(TrainerCallback, ExportableState):
    """Counts the seconds of training behind the weights: over all starts of a run, without steps lost to a kill."""

    def __init__(self) -> None:
        self.before = 0.0
        self.since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds up to now."""
        return self.before + (0.0 if self.since is None else time.monotonic() - self.since)

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"args": {}, "attributes": {"before": self.seconds}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the watch at the checkpoint's time."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, dict):
            self.before = kept["attributes"]["before"]
        self.since = time.monotonic()
