"""Base class of the kinds of fine-tuning tasks."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.baselines.uses import Use
from mabert.data.encode import EncodedExamples, encode_rows
from mabert.data.tasks import Rows, Task, column

logger = logging.getLogger(__name__)


class Kind(ABC):
    """How one kind of task is encoded, predicted and scored. The defaults suit tasks with one label per text.

    Attributes:
        use: Names the model's head, see `mabert.baselines.uses`.
        per_token: Whether the model has outputs per token instead of per text.
        outputs: Number of outputs if the task does not name them.
        problem_type: transformers' name of the problem, by which a model computes its loss.
    """

    use: Use = "classifier"
    per_token = False
    outputs = 0
    problem_type: str | None = None

    def __init__(self, task: Task) -> None:
        self.task = task

    def config_fields(self) -> dict[str, Any]:
        """Returns the fields of the model's configuration that describe its head."""
        names = self.task.label_names
        return {
            "num_labels": len(names) or self.outputs,
            "id2label": dict(enumerate(names)) or None,
            "label2id": {name: index for index, name in enumerate(names)} or None,
            "problem_type": self.problem_type,
        }

    @abstractmethod
    def predictions(self, logits: np.ndarray, examples: Any) -> Any:
        """Converts the model's outputs on a split, see `mabert.train.finetune_run.logits_of` (of a row in several
        windows, their mean), to predictions, one per row; `examples` are from `encoded`."""

    @abstractmethod
    def written(self, answer: Any) -> str:
        """Formats an answer or label for tables of predictions."""

    def constants(self, labels: Any) -> Mapping[str, Any]:
        """Returns constant answers (the same for every row), by their written form; only the most frequent ones. There
        are none if all `labels` are equal: nobody can do better."""
        return {}

    def warn_of_examples(self, splits: Mapping[str, Rows]) -> None:
        """Warns if there is nothing to learn from because all training texts are empty."""
        train = splits["train"]
        texts = (text for name in ("text_a", "text_b") if name in train[:1] for text in column(train, name))
        if not any(text.strip() for text in texts):
            logger.warning("all training texts of %s are empty: there is nothing to learn from them", self.task.name)

    def encoded(
        self, rows: Rows, tokenizer: PreTrainedTokenizerFast, max_length: int, truncate: bool, split: str
    ) -> EncodedExamples:
        """Encodes the examples of a split with their labels; texts that are longer than `max_length`, in windows of it.
        Raises a ValueError that counts them if pairs are longer and `truncate` is off."""
        return encode_rows(rows[:], tokenizer, max_length, truncate, f"{self.task.name} {split}")

    def labels(self, rows: Rows) -> Any:
        """Returns the labels of a split, one per row."""
        return np.asarray(column(rows, "label"))

    def scores(self, predictions: Any, labels: Any) -> Mapping[str, float | None]:
        """Computes the task's metrics; one that the labels leave undefined is None."""
        from mabert.data.metrics import compute  # loads scikit-learn and SciPy

        return compute(self.task, predictions, labels)
