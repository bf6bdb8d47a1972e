"""Callbacks of a training: the progress bar, Ctrl-C, the clock, TensorBoard's events; and the table of its log."""

import contextlib
import csv
import io
import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ExportableState

from mabert.machine.processes import FreedMemory, handling
from mabert.machine.progress import Bar


class SaveOnInterrupt(TrainerCallback):
    """Finishes the step, saves and stops on Ctrl-C; a second Ctrl-C stops at once.

    It also saves once `every` seconds have passed since the last save. A training that took longer than that is saved
    at its end too, since what follows may fail.
    """

    def __init__(self, every: float) -> None:
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
        self.saved, self.saved_step = time.monotonic(), state.global_step


class EvaluateAt(TrainerCallback):
    """Requests an evaluation after certain steps, beside those that the arguments ask for."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> TrainerControl:
        control.should_evaluate = control.should_evaluate or state.global_step in self.steps
        return control


class SmallProcess(TrainerCallback):
    """Keeps a training on a CPU from growing, see `FreedMemory`."""

    def __init__(self) -> None:
        self.freed = FreedMemory()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.freed.after_step()


class Stopwatch(TrainerCallback, ExportableState):
    """Counts the seconds of training behind the weights: over all starts of a run, without steps lost to a kill."""

    def __init__(self) -> None:
        self.before = 0.0
        self.since: float | None = None

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self.since is None else time.monotonic() - self.since)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"before": self.seconds}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the watch at the checkpoint's time."""
        kept = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(kept, dict):
            self.before = kept["attributes"]["before"]
        self.since = time.monotonic()


MEASURED = {"eval_loss": "held-out {:.3f}", "eval_accuracy": "accuracy {:.1%}"}
"""Figures of an evaluation, shown together with its step until the next one."""

SHOWN = {"loss": "loss {:.3f}", "parts": "of it {}", "measured": "{}", "learning_rate": "lr {:.1e}"}

WIDTH_OF_THE_REST = 68
"""Terminal columns for bar, steps, rate and times, including spaces."""


class TrainingBar(TrainerCallback):
    """Draws a bar in a terminal; elsewhere writes an occasional line.

    The time left is estimated from the cumulative `tokens` after each step: if later steps have longer texts, the last
    tenth can be half of the work.
    """

    def __init__(self, title: str, tokens: Sequence[int]) -> None:
        self.title, self.tokens = title, [0, *tokens]
        self.figures: dict[str, float | str] = {}
        self.bar: Bar | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            done, rate = self.tokens[state.global_step], "{:,.0f} tokens/s".format
            self.bar = Bar(self.title, self.tokens[-1], begun=done, amount=self._steps, rate=rate)
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves the bar on; lines are written with figures alone."""
        if self.bar is not None and not self.bar.disable:
            self.bar.advance_to(self.tokens[state.global_step])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Shows the newest figures."""
        logs = dict(logs or {})
        if measured := [form.format(logs[name]) for name, form in MEASURED.items() if name in logs]:
            logs["measured"] = f"{', '.join(measured)} at step {state.global_step:,}"
        self.figures |= {name: value for name, value in logs.items() if name in SHOWN}
        shown = [form.format(self.figures[name]) for name, form in SHOWN.items() if name in self.figures]
        if self.bar is not None:
            # A narrow terminal shows steps, rate and time left, and only as many figures as fit.
            room = self.bar.console.width - WIDTH_OF_THE_REST - len(self.title)
            while not self.bar.disable and shown and len("  ".join(shown)) > room:
                shown.pop()
            self.bar.advance_to(self.tokens[state.global_step], "  ".join(shown))

    def close(self) -> None:
        """Closes the bar, also after a failure."""
        if self.bar is not None:
            self.bar.stop()

    def _steps(self, tokens: float) -> str:
        return f"{bisect_left(self.tokens, tokens):,}"


class Events(TensorBoardCallback):
    """Writes TensorBoard's events into one folder, where a resumed training replaces those of the steps it repeats."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.logging_dir = str(folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins a file of events; it tells TensorBoard to drop the steps after the checkpoint from earlier files."""
        if state.is_world_process_zero:
            self.tb_writer = self._SummaryWriter(self.logging_dir, purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)


def table(history: Sequence[Mapping[str, Any]]) -> str:
    """Returns a log as CSV, with one row per step. A step may have several entries in it, for its loss and for its
    evaluation."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in history:
        rows.setdefault(entry["step"], {}).update(entry)
    first, last = ("step", "epoch", "loss", "learning_rate"), "seconds"
    # Trainer's own seconds are those since the newest start, and ours of all starts.
    names = sorted({name for row in rows.values() for name in row} - {*first, last, "train_runtime"})
    out = io.StringIO()
    writer = csv.DictWriter(out, [*first, *names, last], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    return out.getvalue()


def end_reports(names: Sequence[str]) -> None:
    """Ends the run at Weights & Biases: transformers leaves it open, and would log the next training into it."""
    if "wandb" in names and (wandb := sys.modules.get("wandb")) is not None and wandb.run is not None:
        wandb.finish()
