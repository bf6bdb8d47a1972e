"""Predictions in the format of the GLUE leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mabert.data import rows
from mabert.data.glue import GlueTask, glue_task
from mabert.data.task import Task
from mabert.writing import write_text


def write_leaderboard(
    task: str | Task,
    predictions: np.ndarray,
    path: str | Path,
    *,
    split: str | None = None,
    index: Sequence[int] | None = None,
) -> Path:
    """Writes one submission file: a header line `index`, `prediction`, then a row an example.

    Classes are written as the leaderboard wants them: names for MNLI, QNLI and RTE, 0 and 1 elsewhere; scores of STS-B
    are clipped to 0-5. The file appears complete or not at all.

    Args:
        task: a task, or the name of one of GLUE.
        predictions: class ids or scores `(examples,)`.
        path: a `.tsv` file, or a folder, in which the file gets its official name (`CoLA.tsv`, `MNLI-m.tsv`, ...).
        split: the test split, where there are several (`test_matched`, `test_mismatched` of MNLI).
        index: the examples' `index` column; by default 0, 1, 2, ...

    Returns:
        The file.

    Raises:
        ValueError: the numbers of predictions and indices differ, a class is out of range, a score is not finite, or
            the split must be named.
    """
    task = glue_task(task) if isinstance(task, str) else task
    predictions = np.asarray(predictions)
    index = range(len(predictions)) if index is None else index
    if len(index) != len(predictions):
        raise ValueError(f"{task.name}: {len(predictions)} predictions for {len(index)} examples")
    written = _written(task, predictions)
    path = Path(path)
    if path.suffix != ".tsv":
        files = task.submissions if isinstance(task, GlueTask) else {"test": f"{task.name}.tsv"}
        split = next(iter(files)) if split is None and len(files) == 1 else split
        if split not in files:
            raise ValueError(f"{task.name}: name the test split: {', '.join(files)}")
        path = path / files[split]
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
