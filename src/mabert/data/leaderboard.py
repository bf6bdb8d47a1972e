"""Predictions in the format of the GLUE leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mabert.data import rows
from mabert.data.glue import GlueTask
from mabert.writing import write_text


def write_leaderboard(
    task: GlueTask, predictions: np.ndarray, folder: str | Path, *, split: str = "test", index: Sequence[int]
) -> Path:
    """Writes one submission file: a header line `index`, `prediction`, then a row an example.

    Classes are written as the leaderboard wants them: names for MNLI, QNLI and RTE, 0 and 1 elsewhere; scores of STS-B
    are clipped to 0-5. The file appears complete or not at all.

    Args:
        task: a task.
        predictions: class ids or scores `(examples,)`.
        folder: where the file gets its official name (`CoLA.tsv`, `MNLI-m.tsv`, ...).
        split: the test split (`test_matched`, `test_mismatched` of MNLI).
        index: the examples' `index` column.

    Returns:
        The file.

    Raises:
        ValueError: the numbers of predictions and indices differ, or there is no such test split.
    """
    if split not in task.submissions:
        raise ValueError(f"{task.name}: name the test split: {', '.join(task.submissions)}")
    if task.is_regression:
        written = [f"{score:.3f}" for score in np.clip(predictions, 0, 5)]
    else:
        written = [task.spelled[int(value)] for value in predictions]
    path = Path(folder) / task.submissions[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = map(rows.tsv_line, [("index", "prediction"), *zip(index, written, strict=True)])
    write_text(path, "\n".join(lines) + "\n")
    return path
