"""Answers to questions, extracted from their contexts."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from mabert.baselines.uses import logits_in
from mabert.data.passages import Passage, best_answer, passages_of
from mabert.infer.answers import Batch, Encoded, How, Question
from mabert.infer.loaded import Loaded
from mabert.infer.windows import Window


def reading(loaded: Loaded[Any]) -> Question[dict[str, Any]]:
    """Returns a reader's task, see `TextModel.predict`."""
    reader = Reader(loaded)
    return Question("reading", loaded, reader.answer, encode=reader.encode, finish=reader.finish)


class Reader:
    """Reads one window of questions after another and holds the passages of the current one."""

    def __init__(self, loaded: Loaded[Any]) -> None:
        self.loaded = loaded
        self.passages: list[Passage] = []

    def encode(self, window: Window, how: How) -> Encoded:
        """Encodes a window as passages."""
        questions, contexts = (list(texts) for texts in zip(*window.rows, strict=True))
        limit = self.loaded.limit(how.max_length)
        where: dict[str, Any] = {"name": window.name, "before": window.before}
        self.passages = passages_of(self.loaded.tokenizer, questions, contexts, max_length=limit, **where)
        return [passage.item for passage in self.passages]

    def answer(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yields the logits of each passage, float32 (tokens, 2)."""
        logits = logits_in(self.loaded.model(**batch)).float().cpu().numpy()
        for row, length in zip(logits, batch["attention_mask"].sum(1).tolist(), strict=True):
            yield row[:length]

    def finish(self, window: Window, how: How, found: list[np.ndarray]) -> list[dict[str, Any]]:
        """Returns the answer to each question of the window."""
        each, answers = iter(found), []
        for row, passages in groupby(self.passages, key=lambda passage: passage.row):
            own = list(passages)
            answers.append(best_answer(window.rows[row][1], own, [next(each) for _ in own])._asdict())
        return answers
