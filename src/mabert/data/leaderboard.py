"""Predictions in the format of the GLUE leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mabert.data import rows
from mabert.data.glue import GlueTask
from mabert.data.task import Task
from mabert.writing import write_text


def write_leaderboard(
    task: Task, predictions: np.ndarray, folder: str | Path, *, split: str = "test", index: Sequence[int]
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
        ValueError: the numbers of predictions and indices differ, a class is out of range, a score is not finite, or
            there is no such test split.
    """
    predictions = np.asarray(predictions)
    if len(index) != len(predictions):
        raise ValueError(f"{task.name}: {len(predictions)} predictions for {len(index)} examples")
    written = _written(task, predictions)
    files = task.submissions if isinstance(task, GlueTask) else {"test": f"{task.name}.tsv"}
    if split not in files:
        raise ValueError(f"{task.name}: name the test split: {', '.join(files)}")
    path = Path(folder) / files[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = map(rows.tsv_line, [("index", "prediction"), *zip(index, written, strict=True)])
    write_text(path, "\n".join(lines) + "\n")
    return path


def _written(task: Task, predictions: np.ndarray) -> list[str]:
    if task.is_regression:
        if not np.isfinite(predictions).all():
            raise ValueError(f"{task.name}: a predicted score is not finite")
        return [f"{score:.3f}" for score in (predictions.clip(0, 5) if isinstance(task, GlueTask) else predictions)]
    names = task.submission_labels
    for value in predictions:
        if not 0 <= value < len(names):
            raise ValueError(f"{task.name}: predicted class {int(value)}; classes run from 0 to {len(names) - 1}")
    return [names[int(value)] for value in predictions]
