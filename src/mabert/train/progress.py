"""A progress bar for a training run: steps done, rate, time left, and the last logged figures."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback

from mabert.machine.progress import Lines

SHOWN = {
    "loss": "loss {:.3f}",
    "parts": "of it {}",
    "eval_loss": "held-out {:.3f}",
    "eval_accuracy": "accuracy {:.1%}",
    "learning_rate": "lr {:.1e}",
}

WIDTH_OF_THE_REST = 68
"""Terminal columns for bar, steps, rate and times, including spaces."""


class TokenRate(ProgressColumn):
    """Tokens a second."""

    def render(self, task: Any) -> Text:
        return Text(f"{task.speed or 0:,.0f} tokens/s")


class TrainingBar(TrainerCallback):
    """Draws a bar in a terminal; elsewhere writes an occasional line.

    The time left is estimated from tokens: if later steps have longer texts, the last tenth can be half of the work.

    Args:
        title: What is being trained.
        tokens: Cumulative tokens after each step.
    """

    def __init__(self, title: str, tokens: Sequence[int]) -> None:
        self.console, self.title, self.tokens = Console(stderr=True), title, [0, *tokens]
        self.figures: dict[str, float | str] = {}
        self.bar: Progress | None = None
        self.lines: Lines | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Opens the bar."""
        done, step = self.tokens[state.global_step], state.global_step
        if not state.is_world_process_zero:
            return
        if not self.console.is_terminal:
            self.lines = Lines(self.title, begun=done, amount=self._steps, rate="{:,.0f} tokens/s".format)
            return
        self.bar = Progress(
            TextColumn(self.title),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[steps]}/" + str(state.max_steps)),
            TokenRate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
        )
        self.bar.start()
        self.task = self.bar.add_task(self.title, total=self.tokens[-1], completed=done, steps=step, figures="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves the bar on."""
        if self.bar is not None:
            self.bar.update(self.task, completed=self.tokens[state.global_step], steps=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Shows the newest figures."""
        self.figures |= {name: value for name, value in (logs or {}).items() if name in SHOWN}
        shown = [form.format(self.figures[name]) for name, form in SHOWN.items() if name in self.figures]
        if self.bar is not None:
            # A narrow terminal shows steps, rate and time left, and only as many figures as fit.
            while shown and len("  ".join(shown)) > self.console.width - WIDTH_OF_THE_REST - len(self.title):
                shown.pop()
            self.bar.update(self.task, figures="  ".join(shown))
        elif self.lines is not None:
            self.lines.update(self.tokens[state.global_step], self.tokens[-1], "  ".join(shown))

    def close(self) -> None:
        """Closes the bar, also after a failure."""
        if self.bar is not None:
            self.bar.stop()

    def _steps(self, tokens: float) -> str:
        return f"{bisect_left(self.tokens, tokens):,}"
