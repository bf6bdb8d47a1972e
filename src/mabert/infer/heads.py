"""What the outputs of each head say about a text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from mabert.data.encode import encode_rows
from mabert.data.entities import OUTSIDE, entities_of
from mabert.data.passages import best_answers, passages_of
from mabert.data.words import Word, in_one_entity, words_of
from mabert.files.sentences import SentenceFolder
from mabert.infer.answers import Batch, Encoded, Question, TextOptions
from mabert.infer.loaded import Loaded
from mabert.infer.texts import Chunk
from mabert.opening.uses import kind_of_labels, logits_in

Pool = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


class VectorSettings(NamedTuple):
    """How vectors are made: the encoder, the pooling (see `mabert.model.pooling`) and its name, whether vectors are
    scaled to length one, how texts are encoded, and what the folder does to them."""

    loaded: Loaded[Any]
    pooling: str
    pool: Pool
    normalize: bool
    how: TextOptions
    folder: SentenceFolder | None

    def scaled(self, pooled: torch.Tensor) -> np.ndarray:
        """Returns pooled vectors as float32 (vectors, D), of length one if they are to be."""
        vectors = pooled.float()
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors).cpu().numpy()


class Embedding(Question[Any]):
    """The vector of each text, float32 (D,)."""

    title = "embedding"

    def __init__(self, way: VectorSettings) -> None:
        super().__init__(way.loaded, way.how)
        self.way = way

    def prepared(self, texts: Iterable[Any]) -> list[Any]:
        folder = self.way.folder
        return [folder.prepared(text) if folder is not None and isinstance(text, str) else text for text in texts]

    def answer(self, batch: Batch) -> Iterable[Any]:
        hidden = self.loaded.model(**batch).last_hidden_state
        return self.way.scaled(self.way.pool(hidden, batch["attention_mask"] != 0))


class Classifying(Question[dict[str, Any]]):
    """A classifier's labels or scores of each text, see `TextModel.predict`."""

    title, pooled = "predicting", True

    def encode(self, chunk: Chunk) -> Encoded:
        texts = dict(zip(("text_a", "text_b"), zip(*chunk.rows, strict=True), strict=False))
        truncate = bool(self.how.truncate)
        limit = self.loaded.limit(self.how.max_length, finite=truncate or len(chunk.rows[0]) == 1)
        self.examples = encode_rows(texts, self.loaded.tokenizer, limit, truncate, chunk.name, chunk.before)
        self.cut, self.windowed = self.cut + self.examples.cut, self.windowed + self.examples.windowed
        return [self.examples[place] for place in range(len(self.examples))]

    def answer(self, batch: Batch) -> np.ndarray:  # float32 (batch, labels)
        return self.loaded.model(**batch).logits.float().cpu().numpy()

    def finish(self, chunk: Chunk, found: list[np.ndarray]) -> list[dict[str, Any]]:
        config = self.loaded.model.config
        names = [config.id2label[index] for index in range(config.num_labels)]
        logits = torch.from_numpy(self.examples.by_row(np.array(found)))
        kind = kind_of_labels(config)
        if kind == "regression":
            if len(names) == 1:
                return [{"score": value} for value in logits.squeeze(-1).tolist()]
            return [{"scores": dict(zip(names, row, strict=True))} for row in logits.tolist()]
        answers: list[dict[str, Any]] = []
        for row in (logits.sigmoid() if kind == "several" else logits.softmax(-1)).tolist():
            probability = dict(zip(names, row, strict=True))
            if kind == "several":
                labels = [name for name in names if probability[name] > 0.5]
                answers.append({"labels": labels, "probability": probability})
            else:
                answers.append({"label": names[row.index(max(row))], "probability": probability})
        return answers


def by_text(values: Any, batch: Batch) -> Iterator[Any]:
    """Yields each text's values, (tokens, ...), of a batch padded on the right, (texts, time, ...)."""
    for row, length in zip(values, batch["attention_mask"].sum(1).tolist(), strict=True):
        yield row[:length]


class Tagging(Question[dict[str, Any]]):
    """The entities that a tagger finds in each text, see `TextModel.predict`."""

    title = "tagging"

    def answer(self, batch: Batch) -> Iterator[np.ndarray]:  # float32 (tokens, tags) of each text
        return by_text(self.loaded.model(**batch).logits.float().softmax(-1).cpu().numpy(), batch)

    def finish(self, chunk: Chunk, found: list[np.ndarray]) -> list[dict[str, Any]]:
        # Texts are tokenised a second time: keeping every token's place until now would take more memory than the ids.
        texts = [text for (text,) in chunk.rows]
        encodings = self.loaded.encodings(texts, **self.asked)
        return [
            {"entities": self._entities(text, words_of(text, encoding), probability)}
            for text, (_, encoding), probability in zip(texts, encodings, found, strict=True)
        ]

    def _entities(self, text: str, words: Sequence[Word], probability: np.ndarray) -> list[dict[str, Any]]:
        names = self.loaded.model.config.id2label
        tagged = entities_of(_tags(text, words, [names[index] for index in probability.argmax(1).tolist()]))
        likeliest = [float(probability[word.pieces[0]].max()) if word.pieces else 0.0 for word in words]
        answers = []
        for kind, first, last in tagged:
            start, end = words[first].span[0], words[last - 1].span[1]
            where = {"type": kind, "text": text[start:end], "start": start, "end": end}
            answers.append({**where, "probability": fmean(likeliest[first:last])})
        return answers


def _tags(text: str, words: Sequence[Word], of_tokens: Sequence[str]) -> list[str]:
    """Returns the tags of a text's words; a mark between two words, as a comma, ends an entity."""
    tags = [of_tokens[word.pieces[0]] if word.pieces else OUTSIDE for word in words]
    for place, (before, word) in enumerate(pairwise(words), 1):
        if tags[place] != OUTSIDE and before.pieces == word.pieces:  # two ideographs in one token
            tags[place] = f"I-{tags[place][2:]}"
        elif tags[place] != OUTSIDE and not in_one_entity(text, before, word):
            tags[place] = f"B-{tags[place][2:]}"
    return tags


class Filling(Question[list[list[dict[str, Any]]]]):
    """The `top` likeliest tokens for each mask of each text, see `TextModel.fill_mask`."""

    title = "filling"

    def __init__(self, loaded: Loaded[Any], how: TextOptions, top: int) -> None:
        super().__init__(loaded, how)
        self.top = top

    def encode(self, chunk: Chunk) -> Encoded:
        encoded = super().encode(chunk)
        mask, mask_id = self.loaded.tokenizer.mask_token, self.loaded.tokenizer.mask_token_id
        for number, ((text,), item) in enumerate(zip(chunk.rows, encoded, strict=True), chunk.before + 1):
            there, left = text.count(mask), item["input_ids"].count(mask_id)
            if not there:
                raise ValueError(f"text {number} has no {mask} to fill: {text[:60]!r}")
            if self.how.truncate and left < there:
                raise ValueError(
                    f"text {number} has {there} {mask}, of which cutting it to {len(item['input_ids'])} tokens leaves "
                    f"{left}; shorten what stands before: {text[:60]!r}"
                )
        return encoded

    def answer(self, batch: Batch) -> Iterator[list[list[dict[str, Any]]]]:
        model = self.loaded.model
        masked = batch["input_ids"] == self.loaded.tokenizer.mask_token_id
        # The decoder has one output per vocabulary entry, so it gets masked positions only.
        hidden = model.base_model(**batch).last_hidden_state[masked]
        likely = self.loaded.family.token_scores(model, hidden).float().softmax(-1)
        best = likely.topk(min(self.top, likely.shape[-1]))
        ranked = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        for count in masked.sum(1).tolist():
            yield [guesses_of(self.loaded, *next(ranked)) for _ in range(count)]


def guesses_of(loaded: Loaded[Any], probabilities: list[float], ids: list[int]) -> list[dict[str, Any]]:
    """Returns the guesses for one mask."""
    pieces = loaded.tokenizer.convert_ids_to_tokens(ids)
    return [
        {"token": readable(loaded.tokenizer.backend_tokenizer.decoder, piece), "piece": piece, "probability": chance}
        for piece, chance in zip(pieces, probabilities, strict=True)
    ]


def readable(decoder: Any, piece: str | None) -> str | None:
    """Returns a piece of a vocabulary as text without white space around it.

    A piece that is only white space, or part of a character, stays as it is spelt. None, for an id that the model has
    and its tokenizer lacks, stays None.
    """
    text = piece if decoder is None or piece is None else decoder.decode([piece])
    return piece if text is None or not text.strip() or "\ufffd" in text else text.strip()


class Reading(Question[dict[str, Any]]):
    """A reader's answer to each question from its context, see `TextModel.predict`."""

    title = "reading"

    def encode(self, chunk: Chunk) -> Encoded:
        questions, contexts = zip(*chunk.rows, strict=True)
        limit = self.loaded.limit(self.how.max_length, finite=True)
        where: dict[str, Any] = {"name": chunk.name, "before": chunk.before}
        self.passages = passages_of(self.loaded.tokenizer, questions, contexts, max_length=limit, **where)
        return [passage.item for passage in self.passages]

    def answer(self, batch: Batch) -> Iterator[np.ndarray]:  # float32 (tokens, 2) of each passage
        return by_text(logits_in(self.loaded.model(**batch)).float().cpu().numpy(), batch)

    def finish(self, chunk: Chunk, found: list[np.ndarray]) -> list[dict[str, Any]]:
        contexts = [context for _, context in chunk.rows]
        return [answer._asdict() for answer in best_answers(contexts, self.passages, found)]
