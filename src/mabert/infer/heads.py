"""What the outputs of each head say about a text."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from mabert.baselines.uses import logits_in
from mabert.data.encode import encode_rows
from mabert.data.entities import OUTSIDE, entities_of
from mabert.data.passages import Passage, best_answers, passages_of
from mabert.data.words import Word, in_one_entity, words_of
from mabert.files.sentences import SentenceFolder
from mabert.infer.answers import Batch, Encoded, How, Question, Told
from mabert.infer.chunks import Chunk
from mabert.infer.loaded import Loaded
from mabert.schema import SEVERAL

Pool = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


class Way(NamedTuple):
    """How vectors are made: the encoder, the pooling (see `mabert.model.pooling`) and its name, whether vectors are
    scaled to length one, how texts are encoded, and what the folder does to them."""

    loaded: Loaded[Any]
    pooling: str
    pool: Pool
    normalize: bool
    how: How
    folder: SentenceFolder | None

    def scaled(self, pooled: torch.Tensor) -> np.ndarray:
        """Returns pooled vectors as float32 (vectors, D), of length one if they are to be."""
        vectors = pooled.float()
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors).cpu().numpy()


def vectors(way: Way) -> Callable[[Batch], np.ndarray]:
    """Returns a function from a batch to text vectors, float32 (batch, D)."""

    def of_batch(batch: Batch) -> np.ndarray:
        return way.scaled(way.pool(way.loaded.model(**batch).last_hidden_state, batch["attention_mask"] != 0))

    return of_batch


def classifying(loaded: Loaded[Any]) -> Question[dict[str, Any]]:
    """Returns a classifier's task, see `TextModel.predict`; it holds the examples of one chunk of texts at a time."""
    config, held = loaded.model.config, {}
    names = [config.id2label[index] for index in range(config.num_labels)]
    several = config.problem_type == SEVERAL
    measures = config.problem_type == "regression" or (len(names) == 1 and not several)

    def encode(chunk: Chunk, how: How) -> tuple[Encoded, Told]:
        columns = zip(("text_a", "text_b"), map(list, zip(*chunk.rows, strict=True)), strict=False)
        truncate = bool(how.truncate)
        limit = loaded.limit(how.max_length, finite=truncate or len(chunk.rows[0]) == 1)
        held["examples"] = found = encode_rows(
            dict(columns), loaded.tokenizer, limit, truncate, chunk.name, chunk.before
        )
        return [found[place] for place in range(len(found))], Told(found.cut, found.windowed)

    def answer(batch: Batch) -> np.ndarray:  # float32 (batch, labels)
        return loaded.model(**batch).logits.float().cpu().numpy()

    def finish(chunk: Chunk, how: How, found: list[np.ndarray]) -> list[dict[str, Any]]:
        return [*of_logits(torch.from_numpy(held["examples"].by_row(np.array(found))))]

    def of_logits(logits: torch.Tensor) -> Iterator[dict[str, Any]]:
        if measures and len(names) == 1:
            yield from ({"score": value} for value in logits.squeeze(-1).tolist())
            return
        if measures:
            yield from ({"scores": dict(zip(names, row, strict=True))} for row in logits.tolist())
            return
        if several:
            for row in logits.sigmoid().tolist():
                probability = dict(zip(names, row, strict=True))
                yield {"labels": [name for name in names if probability[name] > 0.5], "probability": probability}
            return
        for row in logits.softmax(-1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            yield {"label": names[best], "probability": dict(zip(names, row, strict=True))}

    return Question("predicting", loaded, answer, pooled=True, encode=encode, finish=finish)


def by_text(values: Any, batch: Batch) -> Iterator[Any]:
    """Yields each text's values, (tokens, ...), of a batch padded on the right, (texts, time, ...)."""
    for row, length in zip(values, batch["attention_mask"].sum(1).tolist(), strict=True):
        yield row[:length]


def tags(loaded: Loaded[Any]) -> Callable[[Batch], Iterator[np.ndarray]]:
    """Returns a function from a batch to a tagger's probabilities for each text, float32 (tokens, tags)."""

    def of_batch(batch: Batch) -> Iterator[np.ndarray]:
        probability = loaded.model(**batch).logits.float().softmax(-1).cpu().numpy()
        return by_text(probability, batch)

    return of_batch


def entities(loaded: Loaded[Any], chunk: Chunk, how: How, found: list[np.ndarray]) -> list[dict[str, Any]]:
    """Returns the entities that a tagger's probabilities imply, see `TextModel.predict`.

    Texts are tokenised a second time: keeping every token's place until then would take more memory than the ids.
    """
    names, answers = loaded.model.config.id2label, []
    texts = [text for (text,) in chunk.rows]
    encodings = loaded.encodings(texts, max_length=how.max_length, truncate=bool(how.truncate))
    for text, (_, encoding), probability in zip(texts, encodings, found, strict=True):
        words = words_of(text, encoding)
        tagged = entities_of(_tags(text, words, [names[index] for index in probability.argmax(1).tolist()]))
        spans = [(words[entity.begin].span[0], words[entity.end - 1].span[1]) for entity in tagged]
        likeliest = [float(probability[word.pieces[0]].max()) if word.pieces else 0.0 for word in words]
        chances = [fmean(likeliest[entity.begin : entity.end]) for entity in tagged]
        answers.append(
            {
                "entities": [
                    {"type": entity.type, "text": text[begin:end], "start": begin, "end": end, "probability": p}
                    for entity, (begin, end), p in zip(tagged, spans, chances, strict=True)
                ]
            }
        )
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


def guesses(loaded: Loaded[Any], top: int) -> Callable[[Batch], Iterator[list[list[dict[str, Any]]]]]:
    """Returns a function from a batch to the likeliest tokens for each mask of each text, see `TextModel.fill_mask`."""
    model, tokenizer = loaded.model, loaded.tokenizer

    def of_batch(batch: Batch) -> Iterator[list[list[dict[str, Any]]]]:
        masked = batch["input_ids"] == tokenizer.mask_token_id
        # The decoder has one output per vocabulary entry, so it gets masked positions only.
        hidden = model.base_model(**batch).last_hidden_state[masked]
        likely = loaded.family.token_scores(model, hidden).float().softmax(-1)
        best = likely.topk(min(top, likely.shape[-1]))
        ranked = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        for count in masked.sum(1).tolist():
            yield [named(loaded, *next(ranked)) for _ in range(count)]

    return of_batch


def named(loaded: Loaded[Any], probabilities: list[float], ids: list[int]) -> list[dict[str, Any]]:
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


def check_masks(loaded: Loaded[Any], chunk: Chunk, encoded: Encoded, cut: bool) -> None:
    """Raises ValueError unless every text has a mask and keeps all its masks if it was cut."""
    mask, mask_id = loaded.tokenizer.mask_token, loaded.tokenizer.mask_token_id
    texts: Sequence[str] = [text for (text,) in chunk.rows]
    for number, (text, item) in enumerate(zip(texts, encoded, strict=True), chunk.before + 1):
        there, left = text.count(mask), item["input_ids"].count(mask_id)
        if not there:
            raise ValueError(f"text {number} has no {mask} to fill: {text[:60]!r}")
        if cut and left < there:
            raise ValueError(
                f"text {number} has {there} {mask}, of which cutting it to {len(item['input_ids'])} tokens leaves "
                f"{left}; shorten what stands before: {text[:60]!r}"
            )


def reading(loaded: Loaded[Any]) -> Question[dict[str, Any]]:
    """Returns a reader's task, see `TextModel.predict`; it holds the passages of one chunk of questions at a time."""
    passages: list[Passage] = []

    def encode(chunk: Chunk, how: How) -> tuple[Encoded, Told]:
        questions, contexts = (list(texts) for texts in zip(*chunk.rows, strict=True))
        where: dict[str, Any] = {"name": chunk.name, "before": chunk.before}
        limit = loaded.limit(how.max_length, finite=True)
        passages[:] = passages_of(loaded.tokenizer, questions, contexts, max_length=limit, **where)
        return [passage.item for passage in passages], Told()

    def logits(batch: Batch) -> Iterator[np.ndarray]:  # float32 (tokens, 2) of each passage
        return by_text(logits_in(loaded.model(**batch)).float().cpu().numpy(), batch)

    def finish(chunk: Chunk, how: How, found: list[np.ndarray]) -> list[dict[str, Any]]:
        contexts = [context for _, context in chunk.rows]
        return [answer._asdict() for answer in best_answers(contexts, passages, found)]

    return Question("reading", loaded, logits, encode=encode, finish=finish)
