"""What watches a training: Ctrl-C and the clock, by which it is saved, and a stopwatch."""

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

from mabert.machine.processes import handling


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

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> TrainerControl:
        """Asks for a checkpoint and the end, in all processes at the same step."""
        return self._answer(args, control, self.saved)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> TrainerControl:
        """Likewise, for an interrupt that came while the last step was evaluated."""
        return control if self.saved_step == state.global_step else self._answer(args, control, self.began)

    def _answer(self, args: Any, control: TrainerControl, since: float) -> TrainerControl:
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clocks; a resumed run saves as often as it now is asked to, not as the checkpoint remembers."""
        state.compute_steps(args, state.max_steps)
        self.began = self.saved = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts one of them again."""
        self.saved, self.saved_step = time.monotonic(), state.global_step


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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts, from where the checkpoint left off."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, dict):
            self.before = kept["attributes"]["before"]
        self.since = time.monotonic()
