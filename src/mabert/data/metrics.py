"""The metrics that GLUE and tables are measured by, computed by scikit-learn and SciPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from mabert.data.glue import glue_task
from mabert.data.task import Task

Metric = Callable[[np.ndarray, np.ndarray], float | None]


def compute(task: str | Task, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """All metrics of a task.

    Args:
        task: a task, or the name of one of GLUE.
        predictions: class ids or scores `(examples,)`, or a model's logits `(examples, num_labels)`.
        labels: class ids or scores `(examples,)`.

    Returns:
        By name, in the order of `task.metrics`, each between -1 and 1. None for Pearson's and Spearman's correlation
        where all labels are the same, which leaves them undefined. Where all predictions are the same, a correlation
        (Matthews' too) counts as 0: such a model tells nothing.

    Raises:
        ValueError: there are no examples, the shapes do not fit, or a prediction or label is not a finite number.
    """
    task = glue_task(task) if isinstance(task, str) else task
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.ndim == 2 and predictions.shape[1] == task.num_labels:
        predictions = predictions[:, 0] if task.is_regression else predictions.argmax(1)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise ValueError(f"{task.name}: predictions of shape {predictions.shape} for labels of shape {labels.shape}")
    if not len(labels):
        raise ValueError(f"{task.name}: no examples to measure")
    for what, numbers in (("predictions", predictions), ("labels", labels)):
        if not np.isfinite(numbers).all():
            raise ValueError(f"{task.name}: {int((~np.isfinite(numbers)).sum())} {what} are not finite")
    found = {name: METRICS[name](predictions, labels) for name in task.metrics}
    return {name: None if value is None else float(value) for name, value in found.items()}


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Of the last of two classes, `Task.positive`."""
    return sklearn_metrics.f1_score(labels, predictions, zero_division=0.0)


def _f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over all classes."""
    return sklearn_metrics.f1_score(labels, predictions, average="macro", zero_division=0.0)


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return sklearn_metrics.accuracy_score(labels, predictions)


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    return sklearn_metrics.matthews_corrcoef(labels, predictions) if _varies(predictions, labels) else 0.0


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    return _correlated(stats.pearsonr, predictions, labels)


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    return _correlated(stats.spearmanr, predictions, labels)


def _correlation(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    """The mean of Pearson's and Spearman's, GLUE's single number for STS-B."""
    linear, by_rank = _pearson(predictions, labels), _spearman(predictions, labels)
    return None if linear is None or by_rank is None else (linear + by_rank) / 2


def _correlated(measure: Callable[..., Any], predictions: np.ndarray, labels: np.ndarray) -> float | None:
    if np.ptp(labels) == 0:
        return None
    return measure(predictions, labels).statistic if _varies(predictions, labels) else 0.0


def _varies(predictions: np.ndarray, labels: np.ndarray) -> bool:
    return len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0


METRICS: Mapping[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "correlation": _correlation,
}
