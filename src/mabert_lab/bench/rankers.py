"""Ways to find texts: by the vectors of a model, and by the words alone."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from torch import Tensor

from mabert.baselines.positions import repeat
from mabert.conversion.agreement import vectors
from mabert.conversion.teacher import Teacher, student_of
from mabert.data.encode import encode_texts
from mabert.files.folders import config_fields
from mabert.files.places import place_of
from mabert.infer.load import Loaded, device_named, load_for_use
from mabert.machine.precision import resolve_precision
from mabert.model import MaBertConfig
from mabert.model.embeddings import stretch

READS = 4096
"""Tokens of a text that are read at most."""


def grouped(table: Tensor, rows: int) -> Tensor:
    """A longer table of positions, (rows, D), in which neighbours share a position of the old one."""
    return table[torch.arange(rows) * len(table) // rows]


POSITIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "interpolated": stretch,
    "grouped": grouped,
    "recurrent": repeat,
}
"""Longer tables of positions without training, of those that LongEmbed compares (Zhu et al., 2024, arXiv 2404.12096);
its parallel context windows are the mean over windows here."""


class Ranker(Protocol):
    """A way to find texts."""

    def index(self, texts: Sequence[str]) -> Any:
        """What is made of the texts once."""

    def scores(self, queries: Sequence[str], index: Any) -> np.ndarray:
        """How near each query is to each text, (queries, texts)."""


class ByVectors:
    """Cosines of a model's vectors.

    Args:
        loaded: A MaBERT, prepacked.
        pooling: `mean` or `cls`.
        longest: Tokens of a text that are read; those beyond the model's positions are read in windows.
    """

    def __init__(self, loaded: Loaded[Any], pooling: str, longest: int) -> None:
        self.loaded, self.pooling, self.longest = loaded, pooling, longest

    def index(self, texts: Sequence[str]) -> np.ndarray:
        encoded = encode_texts(self.loaded.tokenizer, texts, max_length=self.longest, truncate=True)
        with self.loaded.computing():
            return vectors(self.loaded.model, [torch.tensor(each["input_ids"]) for each in encoded], self.pooling)

    def scores(self, queries: Sequence[str], index: np.ndarray) -> np.ndarray:
        return self.index(queries) @ index.T


class ByTfIdf:
    """Cosines of counts of words, each weighted by how rare it is."""

    def __init__(self) -> None:
        self.vectorizer = TfidfVectorizer(sublinear_tf=True)

    def index(self, texts: Sequence[str]) -> Any:
        return self.vectorizer.fit_transform(texts)

    def scores(self, queries: Sequence[str], index: Any) -> np.ndarray:
        return (self.vectorizer.transform(queries) @ index.T).toarray()


class ByBm25:
    """BM25 (Robertson and Zaragoza 2009), with the usual k1 and b."""

    def __init__(self, k1: float = 1.2, b: float = 0.75) -> None:
        self.vectorizer, self.k1, self.b = CountVectorizer(), k1, b

    def index(self, texts: Sequence[str]) -> Any:
        counts = self.vectorizer.fit_transform(texts).tocoo().astype(np.float64)
        lengths = np.bincount(counts.row, counts.data, minlength=len(texts))
        having = np.bincount(counts.col, minlength=counts.shape[1])
        rarity = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
        damping = self.k1 * (1 - self.b + self.b * lengths / lengths.mean())
        counts.data *= rarity[counts.col] * (self.k1 + 1) / (counts.data + damping[counts.row])
        return counts.tocsr()

    def scores(self, queries: Sequence[str], index: Any) -> np.ndarray:
        return (self.vectorizer.transform(queries) @ index.T).toarray()


WORDS: dict[str, Callable[[], Ranker]] = {"BM25": ByBm25, "TF-IDF": ByTfIdf}


def rankers_of(name: str) -> dict[str, Ranker]:
    """The ways in which a model can find texts of up to `READS` tokens.

    Args:
        name: A MaBERT's folder or `minilm`, or an encoder that could be converted: its folder, hub name or package. An
            encoder runs as the MaBERT that keeps all its layers, which is seen to say the same.

    Returns:
        One way where it has so many positions. Otherwise its first tokens, and the mean over windows; of an encoder
        with a table of positions also those longer ones of `POSITIONS`.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If it is of another kind.
    """
    place = place_of(name)
    if config_fields(place).get("model_type") == MaBertConfig.model_type:
        loaded = load_for_use("encoder", place, precision="auto").prepacked()
        own = loaded.model.config.pooling
        return within_and_beyond(name, loaded, own if own in ("mean", "cls") else "mean")
    known = Teacher.at(place)
    pooling = "mean" if known.sentences is None else known.sentences.pooling
    rankers = within_and_beyond(name, ready(known, known.copy), pooling)
    table = known.copy.base_model.embeddings.position_embeddings
    if known.longest < READS and table is not None:
        for way, lengthen in POSITIONS.items():
            longer = student_of(known.model, known.use, max_position_embeddings=READS)
            with torch.no_grad():
                longer.base_model.embeddings.position_embeddings.weight.copy_(lengthen(table.weight, READS))
            rankers[f"{name}, {way} positions"] = ByVectors(ready(known, longer), pooling, READS)
    return rankers


def ready(known: Teacher, model: Any) -> Loaded[Any]:
    """A MaBERT with a teacher's tokenizer, to embed with."""
    bf16 = resolve_precision("auto") == "bf16"
    return Loaded(model.base_model.to(device_named(None)), known.tokenizer, bf16).prepacked()


def within_and_beyond(name: str, loaded: Loaded[Any], pooling: str) -> dict[str, Ranker]:
    """The ways that every model has."""
    limit = loaded.model.config.max_position_embeddings
    if limit >= READS:
        return {name: ByVectors(loaded, pooling, READS)}
    return {
        f"{name}, first {limit} tokens": ByVectors(loaded, pooling, limit),
        f"{name}, mean over windows": ByVectors(loaded, pooling, READS),
    }
