"""A model ready for texts, which reads its weights once for all uses."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mabert.data import TOKENS_A_BATCH
from mabert.data.encode import check_list, check_texts
from mabert.data.entities import is_tag
from mabert.data.passages import refuse_truncation
from mabert.data.words import Words
from mabert.files.reading import whole_characters
from mabert.files.sentences import MAP, POOLINGS, SentenceFolder
from mabert.infer import heads
from mabert.infer.answers import TextOptions, answer_in_chunks
from mabert.infer.loaded import Loaded, check_precision, device_named, load_for_use
from mabert.infer.passages import Alone, InContext, Passages
from mabert.infer.texts import TextRow
from mabert.model import MaBertConfig
from mabert.model.pooling import Pooler, pooler_in
from mabert.opening.opened import Model, open_model
from mabert.opening.uses import LOADING, Use
from mabert.schema.check import check
from mabert.schema.ranges import Count, PassageTokens


def load(
    path: Model, *, precision: str | None = None, device: str | torch.device | None = None, graphs: bool = True
) -> "TextModel":
    """Opens a model of any family for texts: vectors, labels, filled masks.

    Args:
        path: Model folder, hub name, name of a package in `mabert.files.places`, `minilm`, the converted
            all-MiniLM-L6-v2 that comes with this package, or what `open_model` returned.
        precision: `fp32`; `bf16`, by autocast over float32 weights; `auto`, bf16 if the device is fast in it, else
            fp32; `int8`, products of 8-bit integers on a CPU: faster, and slightly off (docs/performance.md). Default,
            the precision that the model was saved in; fine-tuning evaluates in `auto` by default.
        device: `cpu`, `cuda` or `cuda:N`; default, the GPU if there is one.
        graphs: Whether a MaBERT in bf16 on a GPU runs by CUDA graphs, which keep memory for one row of 8,192 tokens.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If its family is unknown, or there is no such precision or device.
    """
    return TextModel(path, precision=precision, device=device, graphs=graphs)


class TextModel:
    """A model folder's answers about texts; `load` opens one.

    A folder holds an encoder, usually with a head: `embed` and `passages` work with any, `predict` needs a classifier,
    `fill_mask` a masked language model. Weights are read on first use and kept. Several threads may use one model at
    once.

    Attributes:
        path: The model's folder.
        config: The model's configuration.
    """

    def __init__(
        self,
        path: Model,
        *,
        precision: str | None = None,
        device: str | torch.device | None = None,
        graphs: bool = True,
    ) -> None:
        self.opened = open_model(path)
        self.path, self.config = self.opened.place.path, self.opened.config
        self._precision, self._device, self._graphs = precision, device_named(device), graphs
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
        """Returns vectors of texts.

        Args:
            texts: Any number of texts, in a list, a tuple, a column, a 1-D array or an iterator. Half of a surrogate
                pair becomes U+FFFD.
            pooling: `mean` of the token vectors, the `cls` vector, or `map`, the mask-aware attention pooling that a
                classifier has learned. Default, what the folder says in its files of sentence-transformers, which a
                classifier with `map` pooling has too, or the configuration's `pooling` if it is `mean` or `cls`; else
                `mean`.
            normalize: Whether to scale each vector to length one. Default, what the folder says, else not.
            max_length: Most tokens of a text; default, what the folder's files of sentence-transformers say, else all
                that the model takes (see `Loaded.encodings`).
            truncate: Whether to cut longer texts; otherwise they are an error.
            batch_tokens: Most tokens of a batch, padding included; changes speed, not the vectors beyond rounding.
            deterministic: Whether to run each text alone, so that its vector has the same bits whatever else is asked.
            progress: Whether to show a bar.

        Returns:
            float32 (texts, D).

        Raises:
            ValueError: If the pooling is unknown or the model cannot do it, a value is no text, or texts are too long.
            MemoryError: If a batch does not fit the memory; gives its size.
        """
        how = TextOptions(max_length, truncate, batch_tokens, deterministic, progress)
        found = [np.stack(rows) for _, rows in self.vectors(in_rows(texts), how, pooling=pooling, normalize=normalize)]
        return np.concatenate(found) if found else np.zeros((0, self.config.hidden_size), np.float32)

    def passages(
        self,
        texts: Sequence[str],
        length: int = 128,
        *,
        context: bool = False,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        batch_tokens: int = TOKENS_A_BATCH,
        deterministic: bool = False,
        progress: bool = True,
    ) -> Passages:
        """Cuts texts into passages and returns a vector of each.

        A passage holds as many whole sentences as fit `length`; a sentence that is longer is cut at words, and such a
        word between tokens (see `mabert.infer.passages.split_passages`). Passages do not overlap, and hold all of a
        text but the white space between them. An empty text has none.

        Args:
            texts: As for `embed`; of any length, unless `context` is on.
            length: Most tokens of a passage, as the model reads it alone: with special tokens, and with the prompt of
                the folder. At least 8.
            context: Whether to read each text whole, and to pool each passage's tokens of that one pass (late chunking,
                Günther et al. 2024, arXiv 2409.04701). The first passage then also takes [CLS] and the prompt, the last
                one [SEP]: a text of one passage has the vector that `embed` gives it, and the mean of a text's
                passages, each weighted by its tokens, is the text's mean. Default, each passage has the vector that
                `embed` gives it as a text of its own.
            pooling: As for `embed`. With `context`, `mean` or `map`: a passage has no [CLS] of its own.
            normalize: As for `embed`; each passage's vector is scaled.
            max_length: With `context` alone: most tokens of a text, as for `embed`.
            truncate: With `context` alone: whether to cut longer texts; what is cut off is in no passage.
            batch_tokens: As for `embed`.
            deterministic: As for `embed`; each passage is run alone or, with `context`, each text.
            progress: As for `embed`.

        Returns:
            `vectors`, float32 (passages, D), with `text` (the number of each one's text, counted from 0), `start` and
            `end` (in characters), int64 (passages,): passage `i` is `texts[text[i]][start[i]:end[i]]`.

        Raises:
            ValueError: As in `embed`. Also if `length` is below 8 or more than the model has positions for, or a
                character alone is longer; if `context` is on and pooling is `cls`; if it is off and `max_length` or
                `truncate` is given.
            MemoryError: As in `embed`.
        """
        how = TextOptions(max_length, truncate, batch_tokens, deterministic, progress)
        rows = in_rows(texts)
        found = self.passage_vectors(rows, how, length, context=context, pooling=pooling, normalize=normalize)
        none = Passages(np.zeros((0, self.config.hidden_size), np.float32), *np.zeros((3, 0), np.int64))
        return Passages(*map(np.concatenate, zip(none, *found, strict=True)))

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
        """Returns labels of texts, the entities in them, or answers to questions; texts are encoded as in fine-tuning.

        Args:
            texts: Any number of texts, or the first of each pair; for a reader, the questions. A tagger also takes
                lists of words.
            pairs: The second text of each pair, for a classifier of pairs; for a reader, the context of each question.
            max_length: Most tokens of a text; default, as in fine-tuning where it is known, else all that the model
                takes (see `Loaded.encodings`).
            truncate: Whether to cut longer texts (of a pair, the longer one); default, as in fine-tuning where it is
                known, else not. Without it a classifier reads a longer text in windows and answers by the mean of its
                outputs, and a reader reads contexts so; other models and pairs raise an error.
            batch_tokens: As for `embed`.
            deterministic: As for `embed`; each window is run alone.
            progress: As for `embed`.

        Returns:
            One mapping per text, which depends on the model. A classifier gives the `label` and the `probability` of
            every label; with several labels per text (`problem_type` of the model), `labels`, those of probability
            above one half. A regression gives the `score`, or `scores` by label if there are several. A tagger gives
            `entities`, in order, each with its `type`, `text`, `start` and `end` in characters (words of a list count
            as joined by spaces) and `probability`, the mean over its words. A reader gives the `answer`, its `start`
            and `end` in the context and its `probability`; the answer is empty if no answer is likelier than any.

        Raises:
            ValueError: If the model has no such head, a value is no text, texts are too long, first and second texts
                differ in number, or pairs are given to a classifier of single texts or vice versa.
            MemoryError: As in `embed`.
        """
        how = TextOptions(max_length, truncate, batch_tokens, deterministic, progress)
        rows = in_rows(texts, pairs, words=self.opened.use == "tagger")
        return all_answers(self.labels(rows, how, paired=pairs is not None))

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
            top: Guesses per mask.
            max_length: As for `embed`.
            truncate: As for `embed`.
            batch_tokens: As for `embed`.
            deterministic: As for `embed`.
            progress: As for `embed`.

        Returns:
            For each text, for each mask in it, guesses, the most likely first. Each has a `token`, readable text with
            no spaces around it (`café`); a `piece`, the vocabulary's own spelling, which shows whether a space comes
            before (`ĠcafÃ©`, `▁café`); and a `probability`. A WordPiece's token is its piece (`##ing`), and so is that
            of white space, or of part of a character in UTF-8.

        Raises:
            ValueError: If the model is no masked language model, a value is no text, a text has no mask or would be cut
                before one, texts are too long, or a number is below 1.
            MemoryError: As in `embed`.
        """
        how = TextOptions(max_length, truncate, batch_tokens, deterministic, progress)
        return all_answers(self.guesses(in_rows(texts), how, top=top))

    def vectors(
        self, rows: Iterable[TextRow], how: TextOptions, *, pooling: str | None = None, normalize: bool | None = None
    ) -> Iterator[tuple[list[TextRow], list[np.ndarray]]]:
        """Does the work of `embed` on a stream: yields chunks of texts with vectors, (D,) each, in constant memory."""
        return answer_in_chunks(heads.Embedding(self._way(how, pooling, normalize)), rows)

    def passage_vectors(
        self,
        rows: Iterable[TextRow],
        how: TextOptions,
        length: int = 128,
        *,
        context: bool = False,
        pooling: str | None = None,
        normalize: bool | None = None,
    ) -> Iterator[Passages]:
        """Does the work of `passages` on a stream: yields those of each chunk of texts, in constant memory."""
        check(PassageTokens, length, "length")
        if not context and (how.truncate or how.max_length is not None):
            given = "truncate" if how.truncate else "max_length"
            raise ValueError(f"{given} is for texts that are read whole (context); without that, all of a text is read")
        way = self._way(how, pooling, normalize)
        if context and way.pooling == "cls":
            raise ValueError("pooling is 'cls', and a passage in context has no [CLS] of its own; use pooling='mean'")
        longest = way.loaded.longest
        if longest is not None and length > longest:
            raise ValueError(f"passages of {length} tokens are asked for; the model has positions for {longest}")
        question = (InContext if context else Alone)(way, length)
        return (found for _, (found,) in answer_in_chunks(question, rows))

    def labels(
        self, rows: Iterable[TextRow], how: TextOptions, *, paired: bool = False
    ) -> Iterator[tuple[list[TextRow], list[dict[str, Any]]]]:
        """Does the work of `predict` on a stream; `paired` tells whether rows have two texts."""
        use, tuned = self.opened.use, self.opened.encoding
        if use == "reader" and not paired:
            raise ValueError(f"{self.path} answers questions from contexts, and the contexts are missing")
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
        if use == "reader":
            refuse_truncation(how.truncate)
            return answer_in_chunks(heads.Reading(self._read("reader"), how), rows)
        if use == "tagger":
            if paired:
                raise ValueError(f"{self.path} tags the words of single texts, and pairs are given")
            if odd := [name for name in self.config.id2label.values() if not is_tag(name)]:
                raise ValueError(f"{self.path} has the label {odd[0]!r}; those of entities are O, B-TYPE and I-TYPE")
            return answer_in_chunks(heads.Tagging(self._read("tagger"), how), rows)
        headless = self.opened.place.heads == [""]
        if headless or use == "masked_lm":
            kind = "an encoder without a head" if headless else "a masked language model"
            raise ValueError(f"{self.path} is {kind}; `mabert finetune` makes a classifier of it")
        return answer_in_chunks(heads.Classifying(self._read("classifier"), how), rows)

    def guesses(
        self, rows: Iterable[TextRow], how: TextOptions, *, top: int = 5
    ) -> Iterator[tuple[list[TextRow], list[list[list[dict[str, Any]]]]]]:
        """Does the work of `fill_mask` on a stream."""
        check(Count, top, "top")
        return answer_in_chunks(heads.Filling(self._read("masked_lm"), how, top), rows)

    def _read(self, use: Use) -> Loaded[Any]:
        if use not in self._loaded:
            with LOADING:
                if use not in self._loaded:  # another thread may have read it meanwhile
                    loaded = load_for_use(self.opened, use, precision=self._precision, device=self._device)
                    self._loaded[use] = loaded.for_inference(self._graphs)
        return self._loaded[use]

    def _encoder(self) -> Loaded[Any]:
        # Takes the encoder from the model with its saved head, which may be needed too, so that weights are read once.
        loaded = self._read(self.opened.use)
        return replace(loaded, model=loaded.model.base_model)

    def _way(self, how: TextOptions, pooling: str | None, normalize: bool | None) -> heads.VectorSettings:
        """Returns how vectors are made: as asked for, else as the folder says."""
        folder = self._sentences(needed=pooling is None or normalize is None)
        own = isinstance(self.config, MaBertConfig)
        if not pooling:
            usual = self.config.pooling if own and self.config.pooling in Pooler.FIXED else "mean"
            pooling = usual if folder is None else folder.pooling
        if normalize is None:
            normalize = (own and self.config.normalize) if folder is None else folder.normalize
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}; it must be one of {list(POOLINGS)}")
        loaded, pool = self._mapped() if pooling == "map" else (self._encoder(), Pooler.FIXED[pooling])
        if folder is not None and how.max_length is None and folder.longest is not None:
            how = replace(how, max_length=min(folder.longest, loaded.longest or folder.longest))
        return heads.VectorSettings(loaded, pooling, pool, normalize, how, folder)

    def _mapped(self) -> tuple[Loaded[Any], heads.Pool]:
        """Returns the encoder and its learned pooling: that of sentence-transformers' folder, else the classifier's."""
        if (pooler := pooler_in(self.path / MAP)) is not None:
            loaded = self._encoder()
            return loaded, pooler.to(loaded.model.device)
        if not isinstance(self.config, MaBertConfig):
            raise ValueError(f"{self.path} is a {self.config.model_type} model; pooling 'map' is MaBERT's")
        if self.config.pooling != "map":
            own = f"{self.path} pools by {self.config.pooling!r}"
            raise ValueError(f"{own}; pooling 'map' needs a classifier that was trained with it")
        classifier = self._read("classifier")
        return replace(classifier, model=classifier.model.base_model), classifier.model.pooler

    def _sentences(self, needed: bool) -> SentenceFolder | None:
        """Returns what the folder's files of sentence-transformers say; None if they cannot be read nor are needed."""
        try:
            return self.opened.sentences
        except ValueError as error:
            if not needed:
                return None
            raise ValueError(f"{error}; for vectors of another kind, say both pooling and normalize") from error


def in_rows(texts: Iterable[Any], pairs: Iterable[Any] | None = None, words: bool = False) -> list[TextRow]:
    """Makes rows of texts, or of pairs of texts, which any list, tuple, column, 1-D array or iterator may hold. Half of
    a surrogate pair becomes U+FFFD. `words` tells whether a list of words may stand for a text.

    Raises ValueError if something else holds the texts, a value is no text, or the two differ in number.
    """
    given = {"the input": texts} if pairs is None else {"the input": texts, "the second texts": pairs}
    held: list[Any] = []
    for name, column in given.items():
        check_list(column, name)
        held.append([text_of(each, words) for each in column])
    check_texts(*held)
    return list(zip(*held, strict=True))


def text_of(given: Any, words: bool) -> Any:
    """Returns a text, or `Words` of a list of words if these may be given; anything else stays as it is."""
    if words and isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
        return Words(map(whole_characters, given))
    return whole_characters(given) if isinstance(given, str) else given


def all_answers(chunks: Iterable[tuple[list[TextRow], list[Any]]]) -> list[Any]:
    """Returns the answers of all chunks."""
    return [answer for _, answers in chunks for answer in answers]
