"""One entity tag per word."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.baselines.uses import Use
from mabert.data.encode import EncodedExamples, encodings, was_cut
from mabert.data.entities import OUTSIDE, entities_of, types_of
from mabert.data.metrics import entity_scores
from mabert.data.tasks import Rows, column
from mabert.data.words import Word, Words, words_of
from mabert.schema import IGNORED
from mabert.train.kinds.kind import Kind

Tags = list[str]


class TaggedExamples(EncodedExamples):
    """Encoded sentences with tags, and the words of each, see `words_of`."""

    def __init__(self, items: list[dict[str, Any]], words: list[list[Word]], cut: int) -> None:
        super().__init__(items, scored=[sum(len(word.pieces) for word in each) for each in words], cut=cut)
        self.words = words


class Tokens(Kind):
    """One output per tag for each token. A word's first piece stands for it, see `words_of`; others are not scored."""

    use: Use = "tagger"
    per_token = True

    def encoded(
        self, rows: Rows, tokenizer: PreTrainedTokenizerFast, max_length: int, truncate: bool, split: str
    ) -> TaggedExamples:
        """Encodes with tags; refuses longer sentences unless they are truncated, and a training sentence of which no
        token is left."""
        name, texts = f"{self.task.name} {split}", [Words(words) for words in column(rows, "tokens")]
        tagged = column(rows, "tags") if "tags" in rows[:1] else [None] * len(texts)
        ids = {tag: number for number, tag in enumerate(self.task.label_names)}
        items, words, cut = [], [], 0
        encoded = encodings(tokenizer, texts, max_length=max_length, truncate=truncate, name=name)
        for (item, encoding), text, tags in zip(encoded, texts, tagged, strict=True):
            items.append(item)
            cut += was_cut(encoding)
            words.append(words_of(text, encoding))
            if split == "train" and not any(word.pieces for word in words[-1]):
                raise ValueError(f"{name}: the tokenizer leaves nothing of sentence {len(items)}, {text[:40]!r}")
            if tags is not None:
                item["labels"] = [IGNORED] * len(item["input_ids"])
                for word, tag in zip(words[-1], tags, strict=True):
                    inner = tag if tag == OUTSIDE else f"I-{tag[2:]}"
                    for place, piece in enumerate(word.pieces):
                        item["labels"][piece] = ids[inner if place else tag]
        return TaggedExamples(items, words, cut)

    def labels(self, rows: Rows) -> list[Tags]:
        return column(rows, "tags")

    def predictions(self, logits: np.ndarray, examples: TaggedExamples) -> list[Tags]:
        names, begin, answers = self.task.label_names, 0, []
        best = logits.argmax(1)
        for length, words in zip(examples.lengths, examples.words, strict=True):
            answers.append([names[best[begin + word.pieces[0]]] if word.pieces else OUTSIDE for word in words])
            begin += length
        return answers

    def written(self, answer: Tags) -> str:
        return " ".join(answer)

    def constants(self, labels: Sequence[Tags]) -> Mapping[str, list[Tags]]:
        return {OUTSIDE: [[OUTSIDE] * len(tags) for tags in labels]} if any(map(entities_of, labels)) else {}

    def scores(self, predictions: Sequence[Tags], labels: Sequence[Tags]) -> dict[str, float | None]:
        return {**entity_scores(predictions, labels, types_of(self.task.label_names))}
