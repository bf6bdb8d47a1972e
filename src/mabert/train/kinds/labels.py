"""Labels of whole texts or pairs of texts: one class, any number of classes, or a number."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from mabert.data.tasks import BETWEEN, Rows, column
from mabert.schema import SEVERAL
from mabert.train.kinds.kind import Kind

logger = logging.getLogger(__name__)

MOST_CONSTANTS = 20
"""Labels, the most frequent ones, that a model's score is compared with."""


class Classification(Kind):
    """One output per class; the largest is the answer."""

    problem_type = "single_label_classification"

    def predictions(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits.argmax(1)

    def written(self, answer: Any) -> str:
        return self.task.label_names[int(answer)]

    def constants(self, labels: np.ndarray) -> Mapping[str, np.ndarray]:
        found, counts = np.unique(labels, axis=0, return_counts=True)
        if len(found) == 1:
            return {}
        frequent = found[np.argsort(-counts, kind="stable")[:MOST_CONSTANTS]]
        return {self.written(label): np.broadcast_to(label, labels.shape) for label in frequent}


class Several(Classification):
    """One output per label; a label is assigned if its probability is above one half."""

    problem_type = SEVERAL

    def predictions(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits > 0

    def written(self, answer: np.ndarray) -> str:
        return BETWEEN.join(name for name, holds in zip(self.task.label_names, answer, strict=True) if holds)


class Regression(Kind):
    """One output, which is the answer."""

    outputs = 1
    problem_type = "regression"

    def predictions(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits[:, 0]

    def written(self, answer: float) -> str:
        return f"{answer:.4f}"

    def warn_of_examples(self, splits: Mapping[str, Rows]) -> None:
        """Also warns if all scores of a split are equal."""
        super().warn_of_examples(splits)
        for split, rows in splits.items():
            scores = set(column(rows, "label")) if "label" in rows[:1] else set()
            if len(scores) == 1:
                learnt = "nothing to learn from them" if split == "train" else "a correlation with them is not defined"
                logger.warning("all %s scores of %s are %g: %s", split, self.task.name, scores.pop(), learnt)
