"""Any number of labels per text or pair of texts."""

from typing import Any

import numpy as np

from mabert.data.table import BETWEEN
from mabert.train.kinds.kind import Kind, label_fields


class Several(Kind):
    """One output per label; a label is assigned if its probability is above one half."""

    def config_fields(self) -> dict[str, Any]:
        return {**label_fields(self.task.label_names), "problem_type": "multi_label_classification"}

    def answers(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits > 0

    def written(self, answer: np.ndarray) -> str:
        return BETWEEN.join(name for name, holds in zip(self.task.label_names, answer, strict=True) if holds)

    def only_answer(self, answers: np.ndarray, labels: np.ndarray) -> str | None:
        same = len(np.unique(answers, axis=0)) == 1 < len(np.unique(labels, axis=0))
        return self.written(answers[0]) if same else None
