"""Kinds of fine-tuning tasks: how each is encoded, predicted and scored."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.data import LabelKind
from mabert.data.encode import EncodedExamples, encode_rows, encodings, was_cut
from mabert.data.entities import OUTSIDE, entities_of, types_of
from mabert.data.metrics import compute, entity_scores
from mabert.data.passages import Passage, best_answers, passages_of, refuse_truncation
from mabert.data.squad import answer_scores
from mabert.data.tasks import LABEL_SEPARATOR, Rows, Task, column
from mabert.data.words import Word, Words, words_of
from mabert.opening.uses import Use
from mabert.schema import IGNORED, SEVERAL

logger = logging.getLogger(__name__)


class Kind(ABC):
    """How one kind of task is encoded, predicted and scored. The defaults suit tasks with one label per text.

    Attributes:
        use: Names the model's head, see `mabert.opening.uses`.
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
        return compute(self.task, predictions, labels)


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
        return LABEL_SEPARATOR.join(name for name, holds in zip(self.task.label_names, answer, strict=True) if holds)


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


KINDS: dict[LabelKind, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
    "several": Several,
    "tokens": Tokens,
    "answers": Answers,
}
"""Kinds by `Task.kind`."""


def kind_of(task: Task) -> Kind:
    """Returns a task's kind."""
    return KINDS[task.kind](task)
