"""Curves of a training: a table of its log, TensorBoard's events, and whatever else transformers reports to."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback

FIRST = ("step", "epoch", "loss", "learning_rate")
LAST = "seconds"

OF_ONE_START = "train_runtime"
"""Trainer's seconds since the newest start, in place of which `seconds` counts all starts."""


class Events(TensorBoardCallback):
    """Writes TensorBoard's events into one folder, where a resumed training replaces those of the steps it repeats.

    Args:
        folder: The training's folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.logging_dir = str(folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins a file of events; it tells TensorBoard to drop the steps after the checkpoint from earlier files."""
        if state.is_world_process_zero:
            self.tb_writer = self._SummaryWriter(self.logging_dir, purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)


def table(history: Sequence[Mapping[str, Any]]) -> str:
    """Returns a log as CSV, with one row per step.

    Args:
        history: Entries with their `step`; a step may have several, for its loss and for its evaluation.
    """
    rows: dict[int, dict[str, Any]] = {}
    for entry in history:
        rows.setdefault(entry["step"], {}).update(entry)
    names = sorted({name for row in rows.values() for name in row} - {*FIRST, LAST, OF_ONE_START})
    out = io.StringIO()
    writer = csv.DictWriter(out, [*FIRST, *names, LAST], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    return out.getvalue()


def end_reports(names: Sequence[str]) -> None:
    """Ends the run at Weights & Biases: transformers leaves it open, and would log the next training into it."""
    if "wandb" in names and (wandb := sys.modules.get("wandb")) is not None and wandb.run is not None:
        wandb.finish()
