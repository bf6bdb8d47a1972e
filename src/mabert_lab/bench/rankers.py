"""Retrieval methods: a model's vectors, TF-IDF and BM25."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import bm25s
import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from mabert.baselines.family import repeat
from mabert.baselines.registry import FAMILIES
from mabert.conversion.agreement import vectors
from mabert.conversion.teacher import Teacher, student_of
from mabert.data.encode import encode_texts
from mabert.files.places import find
from mabert.files.sentences import SentenceFolder
from mabert.infer.loaded import Loaded, device_named, load_for_use
from mabert.infer.model import TextModel, load
from mabert.machine.environment import resolve_precision
from mabert.model import MaBertConfig
from mabert.model.embeddings import stretch
from mabert.opening.opened import open_model

PASSAGE = 128  # maximum tokens of a passage
READS = 4096  # maximum tokens of a text that are read


def grouped(table: Tensor, rows: int) -> Tensor:
    """Lengthens a table of positions to (rows, D); neighbours share a position of the old one."""
    return table[torch.arange(rows) * len(table) // rows]


POSITIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "interpolated": stretch,
    "grouped": grouped,
    "recurrent": repeat,
}
"""Training-free ways to lengthen a position table, from LongEmbed (Zhu et al., 2024, arXiv 2404.12096); its parallel
context windows are the mean over windows here."""


logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs each step


Ranker = Callable[[Sequence[str]], Callable[[Sequence[str]], np.ndarray]]
"""A retrieval method: indexes texts; returns what gives the similarity of each query to each text, (queries, texts)."""


class ByVectors:
    """Cosine similarity of the vectors of a MaBERT, prepacked, of at most `longest` tokens; texts beyond the model's
    positions are read in windows. `sentences`, if its folder has it, says the pooling, else a mean, and the prompt."""

    def __init__(self, loaded: Loaded[Any], sentences: SentenceFolder | None, longest: int) -> None:
        self.loaded, self.longest = loaded, longest
        self.pooling = "cls" if pooling_of(sentences, loaded.model.config) == "cls" else "mean"
        self.prepared = str if sentences is None else sentences.prepared

    def index(self, texts: Sequence[str]) -> np.ndarray:
        texts = [self.prepared(text) for text in texts]
        encoded = encode_texts(self.loaded.tokenizer, texts, max_length=self.longest, truncate=True)
        with self.loaded.computing():
            items = [{"input_ids": torch.tensor(each["input_ids"])} for each in encoded]
            return vectors(self.loaded.model, items, self.pooling)

    def __call__(self, texts: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
        found = self.index(texts)
        return lambda queries: self.index(queries) @ found.T


def best_passage(model: TextModel, context: bool) -> Ranker:
    """Ranks by a text's most similar passage; with `context`, all come out of one pass over the text, cut if long."""

    def index(texts: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
        passages = model.passages(texts, PASSAGE, context=context, truncate=context, normalize=True, progress=False)

        def scores(queries: Sequence[str]) -> np.ndarray:
            near = model.embed(queries, normalize=True, truncate=True, progress=False) @ passages.vectors.T
            found = np.full((len(texts), len(queries)), -1, dtype=near.dtype)  # a text without words has no passage
            np.maximum.at(found, passages.text, near.T)
            return found.T

        return scores

    return index


def tf_idf(texts: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    index = vectorizer.fit_transform(texts)
    return lambda queries: (vectorizer.transform(queries) @ index.T).toarray()


def bm25(texts: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
    """Ranks by BM25 (Robertson and Zaragoza 2009), with the usual k1 and b, by bm25s."""
    words, index = partial(bm25s.tokenize, stopwords=None, show_progress=False), bm25s.BM25(k1=1.2, b=0.75)
    index.index(words(texts), show_progress=False)
    nothing = np.zeros(len(texts), dtype=np.float32)
    return lambda queries: np.stack(
        [index.get_scores(asked) if asked else nothing for asked in words(queries, return_ids=False)]
    )


WORDS: dict[str, Ranker] = {"BM25": bm25, "TF-IDF": tf_idf}


def together(*ways: np.ndarray) -> np.ndarray:
    """Returns one method's scores, (queries, texts), or the sum of the standardised scores of several."""
    if len(ways) == 1:
        return ways[0]
    return sum((way - way.mean(1, keepdims=True)) / way.std(1, keepdims=True).clip(1e-9) for way in ways)


def rankers_of(name: str) -> dict[str, Ranker]:
    """Returns the retrieval methods, for texts of up to `READS` tokens, of a MaBERT, or of an encoder that runs as a
    MaBERT which keeps all its layers: the whole text if there are enough positions, else its first tokens and the mean
    over windows, and for a table of positions those of `POSITIONS`; the best passage of a text for models that
    `mabert.load` opens. FileNotFoundError if there is no such model; ValueError if it is of another kind."""
    place = find(name)
    if place.fields.get("model_type") == MaBertConfig.model_type:
        opened = open_model(place)
        loaded = load_for_use(opened, "encoder", precision="auto").for_inference()
        return within_and_beyond(name, loaded, opened.sentences) | by_passages(name)
    known = Teacher.of(place)
    rankers = within_and_beyond(name, ready(known, known.copy), known.opened.sentences)
    table = known.copy.base_model.embeddings.position_embeddings
    if known.longest < READS and table is not None:
        for way, lengthen in POSITIONS.items():
            longer = student_of(known.model, known.use, max_position_embeddings=READS)
            with torch.no_grad():
                longer.base_model.embeddings.position_embeddings.weight.copy_(lengthen(table.weight, READS))
            rankers[f"{name}, {way} positions"] = ByVectors(ready(known, longer), known.opened.sentences, READS)
    return rankers | by_passages(name)


def pooling_of(sentences: SentenceFolder | None, config: Any) -> str:
    """Returns how a folder's vectors are pooled: as its files of sentence-transformers say, else its configuration."""
    return str(getattr(sentences or config, "pooling", "mean"))


def by_passages(name: str) -> dict[str, Ranker]:
    """Returns the methods that look for the best passage; none for an encoder that can only be converted."""
    if find(name).fields.get("model_type") not in {family.model_type for family in FAMILIES.values()}:
        return {}
    model = load(name, precision="auto")
    ways = {"best passage": best_passage(model, False)}
    if pooling_of(model.opened.sentences, model.config) != "cls":
        ways["best passage in context"] = best_passage(model, True)
    return {f"{name}, {way}": ranker for way, ranker in ways.items()}


def ready(known: Teacher, model: Any) -> Loaded[Any]:
    """Makes a MaBERT with a teacher's tokenizer ready to embed."""
    bf16 = resolve_precision("auto") == "bf16"
    return Loaded(model.base_model.to(device_named(None)), known.opened.tokenizer, bf16).for_inference()


def within_and_beyond(name: str, loaded: Loaded[Any], sentences: SentenceFolder | None) -> dict[str, Ranker]:
    """Returns the methods that every model has."""
    limit = loaded.model.config.max_position_embeddings
    if limit >= READS:
        return {name: ByVectors(loaded, sentences, READS)}
    return {
        f"{name}, first {limit} tokens": ByVectors(loaded, sentences, limit),
        f"{name}, mean over windows": ByVectors(loaded, sentences, READS),
    }
