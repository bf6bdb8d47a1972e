"""What one kind of fine-tuning task does otherwise than another."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.baselines.load import Use
from mabert.data.encode import Examples, encode_rows
from mabert.data.task import Rows, Task, column

logger = logging.getLogger(__name__)


def label_fields(names: Sequence[str]) -> dict[str, Any]:
    """Fields of a configuration that name a model's outputs."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


class Kind(ABC):
    """A kind of task, for one task of it. What stands here is that of tasks with one label a text.

    Attributes:
        use: Names the model's head, see `mabert.baselines.load`.
        a_token: Whether the model has an output a token, not one a text.

    Args:
        task: The task.
    """

    use: Use = "classifier"
    a_token = False

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def config_fields(self) -> dict[str, Any]:
        """Fields of the model's configuration that say what its head answers."""

    @abstractmethod
    def answers(self, logits: np.ndarray, examples: Any) -> Any:
        """What the model's outputs on a split say, an answer a row of it.

        Args:
            logits: See `mabert.train.finetune_once.logits_of`.
            examples: From `encoded`.
        """

    @abstractmethod
    def written(self, answer: Any) -> str:
        """An answer or label as tables of predictions have it."""

    def only_answer(self, answers: Any, labels: Any) -> str | None:
        """What all examples are answered though their labels differ, which shows that nothing was learnt; else None."""
        return None

    def warn_of_examples(self, splits: Mapping[str, Rows]) -> None:
        """Says so where there is nothing to learn: no training text holds a word."""
        train = splits["train"]
        texts = (text for name in ("text_a", "text_b") if name in train[:1] for text in column(train, name))
        if not any(text.strip() for text in texts):
            logger.warning("all training texts of %s are empty: there is nothing to learn from them", self.task.name)

    def encoded(
        self, rows: Rows, tokenizer: PreTrainedTokenizerFast, max_length: int, truncate: bool, split: str
    ) -> Examples:
        """The examples of a split as the model takes them, with their labels.

        Raises:
            ValueError: If examples are longer than `max_length` and are not to be cut; says how many.
        """
        return encode_rows(rows, tokenizer, max_length, truncate, f"{self.task.name} {split}")

    def labels(self, rows: Rows) -> Any:
        """The truth about a split, a label a row of it."""
        return np.asarray(column(rows, "label"))

    def scores(self, answers: Any, labels: Any) -> Mapping[str, float | None]:
        """The task's metrics; None where the labels leave one undefined."""
        from mabert.data.metrics import compute  # with scikit-learn and SciPy

        return compute(self.task, answers, labels)
