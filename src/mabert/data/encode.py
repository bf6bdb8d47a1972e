"""Encodes texts and pairs of texts for a classifier, within the model's maximum length."""

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mabert.files.reading import read_json_if_there, shown
from mabert.files.writing import write_json

# Texts encoded in one call: many, because the tokenizer runs threads, but not all, because an encoding takes several
# times the memory of its text.
_AT_ONCE = 64

# A tokenizer stores its truncation settings in itself, so one thread's call would change those of another's.
_TOKENIZER_LOCK = threading.Lock()


@dataclass(frozen=True)
class EncodingSettings:
    """How a classifier's training texts were encoded; stored in a file next to its weights."""

    max_length: int | None  # the requested maximum number of tokens; None for the model's own
    truncate: bool  # whether longer texts were truncated
    pairs: bool

    FILE = "encoding.json"

    def save(self, folder: Path) -> None:
        """Writes the file into a model's folder."""
        write_json(folder / self.FILE, dataclasses.asdict(self))

    @classmethod
    def beside(cls, model: str | Path) -> "EncodingSettings | None":
        """Reads the file in a model's folder; None if there is none, as for a model from the hub. Raises ValueError if
        the file is damaged."""
        file = Path(model) / cls.FILE
        content = read_json_if_there(file)
        if content is None:
            return None
        kinds = {"max_length": int | None, "truncate": bool, "pairs": bool}
        if set(content) != set(kinds) or not all(isinstance(content[name], kind) for name, kind in kinds.items()):
            raise ValueError(f"{file}: holds {content}, where {', '.join(kinds)} are needed; remove or mend it")
        return cls(**content)


def encodings(
    tokenizer: PreTrainedTokenizerFast,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int | None,
    truncate: bool = False,
    name: str = "the input",
    before: int = 0,
) -> Iterator[tuple[dict[str, list[int]], tokenizers.Encoding]]:
    """Encodes texts, or pairs of texts if `texts_b` has the second ones.

    Yields per text an unpadded item (`input_ids`, and `token_type_ids` if the tokenizer makes them) and the tokenizer's
    own encoding, with words and offsets. If `truncate`, texts of more than `max_length` tokens, special ones included,
    are cut (of a pair, the longer one).

    Raises a ValueError, which calls the texts `name` and counts them from `before` on, if texts are longer and are not
    to be cut, the numbers of texts differ, an item is not text, or `max_length` has no room for a token.
    """
    check_texts(texts_a, texts_b, name, before)
    check_room(max_length, tokenizer.num_special_tokens_to_add(texts_b is not None))
    options: dict[str, Any] = {"truncation": False}
    if truncate and max_length is not None:
        options = {"truncation": True, "max_length": max_length}
    lengths: list[int] = []
    for start in range(0, len(texts_a), _AT_ONCE):
        texts = [list(some[start : start + _AT_ONCE]) for some in (texts_a, texts_b) if some is not None]
        with _TOKENIZER_LOCK:
            found = tokenizer(*texts, return_attention_mask=False, verbose=False, **options)
        items = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
        lengths += [len(item["input_ids"]) for item in items]
        yield from zip(items, found.encodings, strict=True)
    long = [] if max_length is None else [row for row, length in enumerate(lengths) if length > max_length]
    if long:
        worst = max(long, key=lengths.__getitem__)
        raise ValueError(
            f"{name}: {len(long)} of {len(lengths)} texts are longer than {max_length} tokens (the first is text "
            f"{before + long[0] + 1}, the longest text {before + worst + 1} with {lengths[worst]}); "
            "shorten them, or have them cut (--truncate, or truncate=True)"
        )


def check_room(max_length: int | None, special: int) -> None:
    """Raises ValueError if `max_length` has no room for the special tokens and another one."""
    if max_length is not None and max_length <= special:
        raise ValueError(f"max_length is {max_length}; special tokens and one token of text need {special + 1}")


def windows(
    item: Mapping[str, list[int]], first: int, count: int, room: int, overlap: int = 0
) -> Iterator[tuple[dict[str, list[int]], int, int]]:
    """Divides `count` tokens of an encoded text, from `first` on, into the fewest windows of `room` tokens that overlap
    by at least `overlap`; yields each with all other tokens around it, its first token and last + 1."""
    last = first + max(count - room, 0)
    for begin in (*range(first, last, (room - overlap) or 1), last):
        end = min(begin + room, first + count)
        yield {name: ids[:first] + ids[begin:end] + ids[first + count :] for name, ids in item.items()}, begin, end


def was_cut(encoding: tokenizers.Encoding) -> bool:
    """Checks whether the tokenizer truncated a text."""
    return bool(encoding.overflowing)


def encode_texts(
    tokenizer: PreTrainedTokenizerFast, texts_a: Sequence[str], texts_b: Sequence[str] | None = None, **how: Any
) -> list[dict[str, list[int]]]:
    """Returns the items of `encodings`; takes the same arguments and raises the same errors."""
    return [item for item, _ in encodings(tokenizer, texts_a, texts_b, **how)]


def check_texts(
    texts_a: Sequence[str], texts_b: Sequence[str] | None = None, name: str = "the input", before: int = 0
) -> None:
    """Raises ValueError for texts that would make the tokenizer fail without saying where: they are no list (see
    `check_list`), a pair lacks a text, or an item is not text, such as a missing value of a table."""
    named = {"text": texts_a}
    if texts_b is not None:
        named = {"the first text of pair": texts_a, "the second text of pair": texts_b}
    for texts in named.values():
        check_list(texts, name)
    if texts_b is not None and len(texts_a) != len(texts_b):
        raise ValueError(f"{name}: {len(texts_a)} first texts and {len(texts_b)} second ones")
    for what, texts in named.items():
        for number, text in enumerate(texts, before + 1):
            if not isinstance(text, str):
                raise ValueError(f"{name}: {what} {number} is {' '.join(repr(text).split()):.40}, not text")


def check_list(texts: Any, name: str, needed: str = "a list of texts") -> None:
    """Raises ValueError unless `texts` is a list, a column, a one-dimensional array or an iterator. One string, bytes,
    a mapping, a set, a table and a single value are refused. The message calls the texts `name`, and says what is
    `needed`.
    """
    kind, shape = type(texts).__name__, getattr(texts, "shape", None)
    found = None
    if isinstance(texts, str):
        found = f"one string, {texts[:40]!r}"
    elif isinstance(texts, bytes | bytearray | Mapping | set | frozenset):
        found = f"a {kind}"
    elif isinstance(shape, tuple) and len(shape) != 1:
        found, needed = f"a {kind} of shape {tuple(shape)}", f"{needed}, such as one column of a table,"
    elif not isinstance(texts, Iterable):
        found = shown(texts)
    if found is not None:
        raise ValueError(f"{name}: {found}, where {needed} is needed")


class EncodedExamples(Dataset):
    """Encoded examples, for `Collator`: `items` with `input_ids`, `token_type_ids` if the tokenizer makes them, and
    labels. Their `lengths` in tokens serve to batch them.

    `scored` is the number of loss terms of each example, and `counts` the number of examples of each row, which are one
    after the other; default, one each. `cut` rows were truncated, and `windowed` rows have several examples.
    """

    def __init__(
        self,
        items: list[dict[str, Any]],
        pairs: bool = False,
        scored: Sequence[int] | None = None,
        cut: int = 0,
        counts: Sequence[int] | None = None,
    ) -> None:
        self._items, self.pairs, self.cut = items, pairs, cut
        self.lengths = [len(item["input_ids"]) for item in items]
        self.scored = [1] * len(items) if scored is None else scored
        self._counts = np.array([1] * len(items) if counts is None else counts, dtype=np.int64)
        self.windowed = int((self._counts > 1).sum())

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one example."""
        return self._items[index]

    def by_row(self, values: np.ndarray) -> np.ndarray:
        """Returns the mean of each row's examples, (rows, ...), of values of all examples, (examples, ...)."""
        if not self.windowed:
            return values
        ends = self._counts.cumsum()
        return np.add.reduceat(values, ends - self._counts) / self._counts[:, None].astype(values.dtype)


def encode_rows(
    rows: Mapping[str, Sequence[Any]],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int | None,
    truncate: bool = False,
    name: str = "the data",
    before: int = 0,
) -> EncodedExamples:
    """Encodes rows for a classifier: `text_a`, and `text_b` and `label` if present.

    A single text that is longer than `max_length` and is not to be truncated is read in windows: examples of that
    length, each with the text's label. The last one begins so early that it is full. Further arguments and errors are
    those of `encodings`.
    """
    texts, pairs = (rows["text_a"], rows.get("text_b")), "text_b" in rows
    special, divides = tokenizer.num_special_tokens_to_add(pairs), not pairs and not truncate
    check_room(max_length, special)
    how: dict[str, Any] = {"max_length": None if divides else max_length, "truncate": truncate}
    items: list[dict[str, Any]] = []
    counts: list[int] = []
    cut = 0
    for number, (item, encoding) in enumerate(encodings(tokenizer, *texts, **how, name=name, before=before)):
        cut += was_cut(encoding)
        label = {"labels": rows["label"][number]} if "label" in rows else {}
        count, parts = len(item["input_ids"]) - special, [item]
        if divides and max_length is not None and count > max_length - special:
            found = windows(item, encoding.sequence_ids.index(0), count, max_length - special)
            parts = [part for part, _, _ in found]
        items += [part | label for part in parts]
        counts.append(len(parts))
    return EncodedExamples(items, pairs, cut=cut, counts=counts)
