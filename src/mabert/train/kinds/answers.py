"""Extractive question answering."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.baselines.uses import Use
from mabert.data.encode import EncodedExamples
from mabert.data.passages import Passage, best_answers, passages_of, refuse_truncation
from mabert.data.squad import answer_scores
from mabert.data.tasks import Rows, column
from mabert.train.kinds.kind import Kind

logger = logging.getLogger(__name__)


class PassageExamples(EncodedExamples):
    """Encoded passages with start and end positions, in the order of their questions, each of which has a context."""

    def __init__(self, passages: list[Passage], contexts: list[str]) -> None:
        super().__init__([passage.item for passage in passages], pairs=True)
        self.passages, self.contexts = passages, contexts


class Answers(Kind):
    """Two outputs per token: the start and the end of the answer. Without an answer, both are at the passage's first
    token."""

    use: Use = "reader"
    per_token = True
    outputs = 2

    def encoded(
        self, rows: Rows, tokenizer: PreTrainedTokenizerFast, max_length: int, truncate: bool, split: str
    ) -> PassageExamples:
        """Encodes as `Kind.encoded`, with longer contexts in windows."""
        refuse_truncation(truncate)
        name, contexts = f"{self.task.name} {split}", column(rows, "text_b")
        passages = passages_of(tokenizer, column(rows, "text_a"), contexts, max_length=max_length, name=name)
        if "answers" in rows[:1]:
            answers = list(zip(column(rows, "answers"), column(rows, "starts"), strict=True))
            left = {row for row, (texts, _) in enumerate(answers) if texts}
            for passage in passages:
                texts, starts = answers[passage.row]
                place = passage.place_of(starts[0], starts[0] + len(texts[0])) if texts else None
                left -= set() if place is None else {passage.row}
                passage.item.update(zip(("start_positions", "end_positions"), place or (0, 0), strict=True))
            if left:
                message = "%s: %d of %d answers fit in no window of %d tokens; they are trained as unanswerable"
                logger.warning(message, name, len(left), len(answers), max_length)
        return PassageExamples(passages, contexts)

    def labels(self, rows: Rows) -> list[list[str]]:
        return column(rows, "answers")

    def predictions(self, logits: np.ndarray, examples: PassageExamples) -> list[str]:
        each = np.split(logits, np.cumsum(examples.lengths))[:-1]
        return [found.answer for found in best_answers(examples.contexts, examples.passages, each)]

    def written(self, answer: str | Sequence[str]) -> str:
        """Returns the answer, or the first of the right ones; empty if there is none."""
        return answer if isinstance(answer, str) else next(iter(answer), "")

    def constants(self, labels: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
        return {"": [""] * len(labels)} if any(labels) else {}

    def scores(self, predictions: Sequence[str], labels: Sequence[Sequence[str]]) -> dict[str, float | None]:
        return {**answer_scores(predictions, labels)}
