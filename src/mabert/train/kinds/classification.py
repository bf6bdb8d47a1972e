"""One class per text or pair of texts."""

from typing import Any

import numpy as np

from mabert.train.kinds.kind import Kind, label_fields


class Classification(Kind):
    """One output per class; the largest is the answer."""

    def config_fields(self) -> dict[str, Any]:
        return {**label_fields(self.task.label_names), "problem_type": "single_label_classification"}

    def answers(self, logits: np.ndarray, examples: Any) -> np.ndarray:
        return logits.argmax(1)

    def written(self, answer: float) -> str:
        return self.task.label_names[int(answer)]

    def only_answer(self, answers: np.ndarray, labels: np.ndarray) -> str | None:
        return self.written(answers[0]) if len(np.unique(answers)) == 1 < len(np.unique(labels)) else None
