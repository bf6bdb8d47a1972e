"""The metrics of tasks, computed by scikit-learn and SciPy."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from mabert.data.entities import entities_of, metric_names
from mabert.data.tasks import Task


def compute(task: Task, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Computes all metrics of a task, in the order of `task.metrics`, each between -1 and 1.

    Predictions and labels are class ids or scores `(examples,)`, or for multi-label tasks 0 or 1 per label `(examples,
    num_labels)`. Pearson's and Spearman's correlation are undefined, so None, if all labels are equal. If all
    predictions are equal, every correlation (Matthews' too) counts as 0.

    Raises ValueError if there are no examples, the shapes do not fit, or a prediction or label is not a finite number.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 + (task.kind == "several"):
        raise ValueError(f"{task.name}: predictions of shape {predictions.shape} for labels of shape {labels.shape}")
    if not len(labels):
        raise ValueError(f"{task.name}: no examples to measure")
    for what, numbers in (("predictions", predictions), ("labels", labels)):
        if not np.isfinite(numbers).all():
            raise ValueError(f"{task.name}: {int((~np.isfinite(numbers)).sum())} {what} are not finite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constant input, which counts as 0
        found = {name: METRICS[name](labels, predictions) for name in task.metrics}
    return {name: None if value is None else float(value) for name, value in found.items()}


def entity_scores(
    predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]], types: Sequence[str]
) -> dict[str, float]:
    """Computes precision, recall and F1 of the entities in the tags of each sentence, over all and of each of `types`;
    one counts as found if its span and type are right. A score that would divide by zero is 0. The names are those of
    `metric_names`; ValueError if there are no sentences."""
    if not len(true):
        raise ValueError("no sentences to measure")
    found, there = (
        {(row, entity) for row, sentence in enumerate(tags) for entity in entities_of(sentence)}
        for tags in (predicted, true)
    )
    scores: list[float] = []
    for kind in (None, *types):
        spans = [span for span in found | there if kind in (None, span[1].type)]
        # A span that neither side has changes no score; scikit-learn refuses empty lists.
        said, right = ([False, *(span in tagged for span in spans)] for tagged in (found, there))
        scores += sklearn_metrics.precision_recall_fscore_support(right, said, average="binary", zero_division=0.0)[:3]
    return dict(zip(metric_names(types), map(float, scores), strict=True))


def _correlation(*measures: Callable[..., Any]) -> Callable[[np.ndarray, np.ndarray], float | None]:
    """Makes a function of labels and predictions that returns the mean of these correlations."""

    def measured(labels: np.ndarray, predictions: np.ndarray) -> float | None:
        if np.ptp(labels) == 0:
            return None
        return float(np.mean([np.nan_to_num(measure(labels, predictions).statistic) for measure in measures]))

    return measured


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "f1": partial(sklearn_metrics.f1_score, zero_division=0.0),  # of the last of two classes, see `Task.positive`
    "f1_macro": partial(sklearn_metrics.f1_score, average="macro", zero_division=0.0),
    "f1_micro": partial(sklearn_metrics.f1_score, average="micro", zero_division=0.0),
    "matthews_correlation": sklearn_metrics.matthews_corrcoef,
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
    "correlation": _correlation(stats.pearsonr, stats.spearmanr),  # GLUE's single number for STS-B
}
"""Functions of labels and predictions."""
