"""A model ready for texts: its weights are read once, whatever is asked of it and how often."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mabert.baselines.load import Use, load_config, saved_use
from mabert.data import TOKENS_A_BATCH
from mabert.data.encode import Encoding, check_texts
from mabert.data.entities import is_tag
from mabert.data.words import Words
from mabert.files.places import place_of
from mabert.files.sentences import MAP, SentenceFolder
from mabert.infer import heads
from mabert.infer.answers import How, Question, answer_windows
from mabert.infer.load import Loaded, check_at_least_one, check_precision, device_named, load_for_use
from mabert.infer.reading import reading
from mabert.infer.windows import Row
from mabert.model import MaBertConfig
from mabert.model.load import LOADING
from mabert.model.pooling import Pooler, pooler_in

POOLINGS = ("mean", "cls", "map")


def load(path: str | Path, *, precision: str | None = None, device: str | torch.device | None = None) -> "TextModel":
    """Opens a model of any family for texts: vectors, labels, filled masks.

    Args:
        path: Model folder, hub name, name of a package in `mabert.files.places`, or `minilm`, which comes along:
            all-MiniLM-L6-v2, converted.
        precision: `fp32`; `bf16` by autocast over float32 weights; `auto`, bf16 where the device is fast in it, else
            fp32; `int8`, products of 8-bit integers, on a CPU: faster, and a little off (docs/performance.md). Default,
            the one that the model was saved in; fine-tuning's own default, in which it measures, is `auto`.
        device: `cpu`, `cuda` or `cuda:N`; default, the GPU if there is one.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is of no family here, or there is no such precision or device.
    """
    return TextModel(path, precision=precision, device=device)


class TextModel:
    """What a model folder has to say about texts; `load` opens one.

    A folder holds an encoder, mostly under a head: `embed` works with any, `predict` needs a classifier, `fill_mask` a
    masked language model. Weights are read when they are first needed, and kept. Several threads may use it at once.

    Attributes:
        path: The folder it lies in.
        config: Its configuration.
    """

    def __init__(
        self, path: str | Path, *, precision: str | None = None, device: str | torch.device | None = None
    ) -> None:
        self.path = place_of(path)
        self.config = load_config(self.path)
        self._precision, self._device = precision, device_named(device)
        check_precision(precision, self._device)
        self._loaded: dict[Use, Loaded[Any]] = {}

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        batch_tokens: int = TOKENS_A_BATCH,
        deterministic: bool = False,
        progress: bool = True,
    ) -> np.ndarray:
        """Vectors of texts.

        Args:
            texts: Any number of texts.
            pooling: `mean` of the token vectors, the `cls` vector, or `map`, the mask-aware attention pooling that a
                classifier whose pooling it is has learned. Default, as the folder says: its files of
                sentence-transformers, which a classifier that pools by `map` has as well, or the `pooling` of its
                configuration where that is `mean` or `cls`; else `mean`.
            normalize: Whether to scale each vector to length one. Default, as the folder says, else not.
            max_length: Tokens at most; default, all the model takes (see `Loaded.encode`).
            truncate: Whether to cut texts that are longer; otherwise they are an error.
            batch_tokens: Padded tokens of a batch at most; changes speed, not the vectors beyond rounding.
            deterministic: Whether to run each text by itself, so that its answer has the same bits whatever else is
                asked.
            progress: Whether to show a bar.

        Returns:
            float32 (texts, D).

        Raises:
            ValueError: For an unknown pooling, a model without what it needs, something that is no text, or texts that
                are too long.
            MemoryError: If a batch does not fit the memory; says how large it is.
        """
        how = How(max_length, truncate, batch_tokens, deterministic, progress)
        found = [np.stack(rows) for _, rows in self.vectors(in_rows(texts), how, pooling=pooling, normalize=normalize)]
        return np.concatenate(found) if found else np.zeros((0, self.config.hidden_size), np.float32)

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncate: bool | None = None,
        batch_tokens: int = TOKENS_A_BATCH,
        deterministic: bool = False,
        progress: bool = True,
    ) -> list[dict[str, Any]]:
        """Labels of texts, the entities in them, or answers to questions, encoded as they were in fine-tuning.

        Args:
            texts: Any number of texts, or the first of each pair; of a reader, the questions. A tagger also takes lists
                of words.
            pairs: The second text of each pair, for a classifier of pairs; of a reader, the context of each question.
            max_length: Tokens at most; default, as in fine-tuning where that is known, else all the model takes (see
                `Loaded.encode`).
            truncate: Whether to cut texts that are longer (of a pair, the longer text), or to refuse them; default, as
                in fine-tuning where that is known, else they are refused.
            batch_tokens: As for `embed`.
            deterministic: As for `embed`.
            progress: As for `embed`.

        Returns:
            A mapping a text: `label` and the `probability` of every label; `labels`, those of a probability above one
            half, where a text may have several (`problem_type` of the model); the `score` of a regression, `scores` by
            label where it has several numbers; or the `entities` that a tagger finds, in order, each with its `type`,
            its `text`, where that stands in the whole (`start` and `end`, in characters; words that were given in a
            list count as joined by spaces) and its `probability`, the mean over its words; or a reader's `answer`,
            where it stands in the context (`start` and `end`) and its `probability`, the answer being empty where
            none is likelier than any.

        Raises:
            ValueError: If the model has no such head, something is no text, texts are too long, first and second texts
                differ in number, or pairs are given to a classifier of single texts or the other way round.
            MemoryError: As `embed`.
        """
        how = How(max_length, truncate, batch_tokens, deterministic, progress)
        if saved_use(self.config) == "tagger" and not isinstance(texts, str):
            texts = [Words(text) if isinstance(text, list | tuple) else text for text in texts]
        return joined(self.labels(in_rows(texts, pairs), how, paired=pairs is not None))

    def fill_mask(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        max_length: int | None = None,
        truncate: bool = False,
        batch_tokens: int = TOKENS_A_BATCH,
        deterministic: bool = False,
        progress: bool = True,
    ) -> list[list[list[dict[str, Any]]]]:
        """Guesses masked tokens.

        Args:
            texts: Texts with the tokenizer's mask token in them.
            top: Guesses a mask.
            max_length: As for `embed`.
            truncate: As for `embed`.
            batch_tokens: As for `embed`.
            deterministic: As for `embed`.
            progress: As for `embed`.

        Returns:
            For each text, for each mask in it, guesses with `token` and `probability`, likeliest first.

        Raises:
            ValueError: If the model is no masked language model, something is no text, a text has no mask or would lose
                one by being cut, texts are too long, or a number is below 1.
            MemoryError: As `embed`.
        """
        how = How(max_length, truncate, batch_tokens, deterministic, progress)
        return joined(self.guesses(in_rows(texts), how, top=top))

    def vectors(
        self, rows: Iterable[Row], how: How, *, pooling: str | None = None, normalize: bool | None = None
    ) -> Iterator[tuple[list[Row], list[np.ndarray]]]:
        """`embed` for any stream of texts: windows of them and their vectors, (D,) each, so that memory does not
        grow."""
        if pooling is None or normalize is None:
            made, scaled = self._own_vectors()
            pooling, normalize = pooling or made, scaled if normalize is None else normalize
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; it must be one of {list(POOLINGS)}")
        if pooling == "map":
            loaded, pool = self._mapped()
        else:
            loaded, pool = self._encoder(), Pooler.FIXED[pooling]
        return answer_windows(Question("embedding", loaded, heads.vectors(loaded, pool, normalize)), rows, how)

    def labels(
        self, rows: Iterable[Row], how: How, *, paired: bool = False
    ) -> Iterator[tuple[list[Row], list[dict[str, Any]]]]:
        """`predict` likewise; `paired` says whether a row has two texts."""
        tuned = Encoding.beside(self.path)
        if tuned is not None:
            if paired != tuned.pairs:
                there = "pairs of texts, and the second ones are missing (--pair-column)"
                raise ValueError(
                    f"{self.path} was fine-tuned on {there if tuned.pairs else 'single texts, and pairs are given'}"
                )
            how = replace(
                how,
                max_length=tuned.max_length if how.max_length is None else how.max_length,
                truncate=tuned.truncate if how.truncate is None else how.truncate,
            )
        if saved_use(self.config) == "reader":
            if not paired:
                raise ValueError(f"{self.path} answers questions from contexts, and the contexts are missing")
            if how.truncate:
                raise ValueError("truncate is on; contexts that are too long are read in windows, so leave it out")
            return answer_windows(reading(self._read("reader")), rows, how)
        if saved_use(self.config) == "tagger":
            if paired:
                raise ValueError(f"{self.path} tags the words of single texts, and pairs are given")
            if odd := [name for name in self.config.id2label.values() if not is_tag(name)]:
                raise ValueError(f"{self.path} has the label {odd[0]!r}; those of entities are O, B-TYPE and I-TYPE")
            loaded = self._read("tagger")
            finish = partial(heads.entities, loaded)
            return answer_windows(Question("tagging", loaded, heads.tags(loaded), finish=finish), rows, how)
        loaded = self._read("classifier")
        return answer_windows(Question("predicting", loaded, heads.labels(loaded), pooled=True), rows, how)

    def guesses(
        self, rows: Iterable[Row], how: How, *, top: int = 5
    ) -> Iterator[tuple[list[Row], list[list[list[dict[str, Any]]]]]]:
        """`fill_mask` likewise."""
        check_at_least_one(top=top)
        loaded = self._read("masked_lm")
        check = partial(heads.check_masks, loaded, cut=bool(how.truncate))
        return answer_windows(Question("filling", loaded, heads.guesses(loaded, top), check=check), rows, how)

    def _read(self, use: Use) -> Loaded[Any]:
        if use not in self._loaded:
            with LOADING:
                if use not in self._loaded:  # another thread may have read it meanwhile
                    loaded = load_for_use(use, self.path, precision=self._precision, device=self._device)
                    self._loaded[use] = loaded.prepacked()
        return self._loaded[use]

    def _encoder(self) -> Loaded[Any]:
        # The one beneath the head that was saved, which may be asked for as well: then it is not read twice.
        loaded = self._read(saved_use(self.config))
        return replace(loaded, model=loaded.model.base_model)

    def _mapped(self) -> tuple[Loaded[Any], heads.Pool]:
        """The encoder and its learned pooling: that of sentence-transformers' folder, else the classifier's."""
        if (pooler := pooler_in(Path(self.path) / MAP)) is not None:
            loaded = self._encoder()
            return loaded, pooler.to(loaded.model.device)
        self._check_map()
        classifier = self._read("classifier")
        return replace(classifier, model=classifier.model.base_model), classifier.model.pooler

    def _own_vectors(self) -> tuple[str, bool]:
        """How the folder says that vectors are made: the pooling, and whether they are scaled to length one."""
        try:
            folder = SentenceFolder.at(self.path)
        except ValueError as error:
            raise ValueError(f"{error}; for vectors of another kind, say both pooling and normalize") from error
        if folder is not None:
            return folder.pooling, folder.normalize
        if isinstance(self.config, MaBertConfig):
            pooling = self.config.pooling
            return pooling if pooling in ("mean", "cls") else "mean", self.config.normalize
        return "mean", False

    def _check_map(self) -> None:
        if not isinstance(self.config, MaBertConfig):
            raise ValueError(f"{self.path} is a {self.config.model_type} model; pooling 'map' is MaBERT's")
        if self.config.pooling != "map":
            raise ValueError(
                f"{self.path} pools by {self.config.pooling!r}; pooling 'map' needs a classifier that was trained with "
                "it"
            )


def in_rows(texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Row]:
    """Texts, or pairs of them, as rows.

    Raises:
        ValueError: If they are one string, something else is among them, or first and second texts differ in number.
    """
    given = [texts] if pairs is None else [texts, pairs]
    # What can be read once is checked as well.
    held: list[Any] = [one if isinstance(one, str) else list(one) for one in given]
    check_texts(*held)
    return list(zip(*held, strict=True))


def joined(windows: Iterable[tuple[list[Row], list[Any]]]) -> list[Any]:
    """The answers of all windows."""
    return [answer for _, answers in windows for answer in answers]
