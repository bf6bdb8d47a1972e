"""One number per text or pair of texts."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from mabert.data.task import Rows, column
from mabert.train.kinds.kind import Kind

logger = logging.getLogger(__name__)


class Regression(Kind):
    """One output, which is the answer."""

    def config_fields(self) -> dict[str, Any]:
        return {"num_labels": 1, "id2label": None, "label2id": None, "problem_type": "regression"}

    def answers(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits[:, 0]

    def written(self, answer: float) -> str:
        return f"{answer:.4f}"

    def warn_of_examples(self, splits: Mapping[str, Rows]) -> None:
        """Also warns if all scores of a split are equal."""
        super().warn_of_examples(splits)
        for split, rows in splits.items():
            scores = set(column(rows, "label")) if "label" in rows[:1] else set()
            if len(scores) == 1:
                told = "nothing to learn from them" if split == "train" else "a correlation with them is not defined"
                logger.warning("all %s scores of %s are %g: %s", split, self.task.name, scores.pop(), told)
