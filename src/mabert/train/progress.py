"""One bar a training run: steps done, rate, time left, and the last figures logged."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mabert.progress import Lines

SHOWN = {
    "loss": "loss {:.3f}",
    "parts": "of it {}",
    "eval_loss": "held-out {:.3f}",
    "eval_accuracy": "accuracy {:.1%}",
    "learning_rate": "lr {:.1e}",
}

WIDTH_OF_THE_REST = 68
"""Columns that bar, steps, rate and times take, with the spaces between."""


class TrainingBar(TrainerCallback):
    """Draws a bar in a terminal; elsewhere writes a line now and then.

    The time left goes by tokens: where later steps have longer texts, the last tenth of them can be half of the work.

    Args:
        title: What is being trained.
        tokens: Of all steps up to and including each.
    """

    def __init__(self, title: str, tokens: Sequence[int]) -> None:
        self.console = Console(stderr=True)
        self.title = title
        self.tokens = [0, *tokens]
        self.figures: dict[str, float | str] = {}
        self.started = (0.0, 0)
        self.bar: Progress | None = None
        self.lines: Lines | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the bar."""
        self.started = (time.monotonic(), state.global_step)
        if not state.is_world_process_zero:
            return
        if not self.console.is_terminal:
            self.lines = Lines(
                self.title, begun=self.tokens[state.global_step], amount=self._steps, rate="{:,.0f} tokens/s".format
            )
            return
        self.bar = Progress(
            TextColumn(self.title),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[steps]}/" + str(state.max_steps)),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
        )
        self.bar.start()
        done = self.tokens[state.global_step]
        self.task = self.bar.add_task(
            self.title, total=self.tokens[-1], completed=done, steps=state.global_step, figures="", rate=""
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Moves the bar on."""
        if self.bar is not None:
            done, step = self.tokens[state.global_step], state.global_step
            self.bar.update(self.task, completed=done, steps=step, rate=f"{self._rate(state):,.0f} tokens/s")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Shows the newest figures."""
        self.figures |= {name: value for name, value in (logs or {}).items() if name in SHOWN}
        shown = [form.format(self.figures[name]) for name, form in SHOWN.items() if name in self.figures]
        if self.bar is not None:
            # A narrow terminal keeps steps, rate and time left, and as many figures as fit beside them.
            while shown and len("  ".join(shown)) > self.console.width - WIDTH_OF_THE_REST - len(self.title):
                shown.pop()
            self.bar.update(self.task, figures="  ".join(shown))
        elif self.lines is not None:
            self.lines.update(self.tokens[state.global_step], self.tokens[-1], "  ".join(shown))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes the bar."""
        self.close()

    def close(self) -> None:
        """Closes the bar, also after a failure."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _rate(self, state: TrainerState) -> float:
        began, step = self.started
        return (self.tokens[state.global_step] - self.tokens[step]) / max(time.monotonic() - began, 1e-9)

    def _steps(self, tokens: float) -> str:
        return f"{bisect_left(self.tokens, tokens):,}"
