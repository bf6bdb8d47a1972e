"""What a student learns from: texts, or pairs of texts, cut into pieces and framed as the teacher reads them in use."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mabert.conversion.teacher import Teacher
from mabert.conversion.watch import Item
from mabert.data.cache import Documents, plain_encoder
from mabert.files import tables
from mabert.files.places import expanded
from mabert.files.sentences import is_cross_encoder
from mabert.opening.opened import Opened

Part = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """The tokens that a tokenizer, and a prompt, put around one text, or around and between two."""

    ids: tuple[Part, ...]  # before the first text and behind each text
    types: tuple[Part, ...]  # of those; all 0 if the tokenizer makes none
    of_texts: Part  # token type of each text

    @property
    def is_pair(self) -> bool:
        """Whether it is around two texts."""
        return len(self.of_texts) == 2

    @property
    def size(self) -> int:
        """Number of its tokens."""
        return sum(map(len, self.ids))

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, *, pair: bool = False, prompt: str = "") -> "Frame":
        """Reads the frame around one text, or a pair of texts, from what the tokenizer makes of short texts; `prompt`
        stands in front of the first text."""
        found = tokenizer(["a"], ["a"] if pair else None)
        ids = found["input_ids"][0]
        types = found.get("token_type_ids", [[0] * len(ids)])[0]
        text_of = found.encodings[0].sequence_ids
        texts = [[at for at, text in enumerate(text_of) if text == number] for number in range(1 + pair)]
        starts, ends = [0, *(own[-1] + 1 for own in texts)], [*(own[0] for own in texts), len(ids)]
        first, *behind = [(tuple(ids[a:b]), tuple(types[a:b])) for a, b in zip(starts, ends, strict=True)]
        kinds = tuple(types[own[0]] for own in texts)
        # Where a vocabulary has words with their space in front, most pieces begin with one, so the prompt has none.
        said = tuple(tokenizer(prompt.rstrip(), add_special_tokens=False)["input_ids"]) if prompt.strip() else ()
        parts = [(first[0] + said, first[1] + (kinds[0],) * len(said)), *behind]
        return cls(tuple(part[0] for part in parts), tuple(part[1] for part in parts), kinds)


def frames_of(teacher: Teacher, pairs: bool | None) -> tuple[Frame, ...]:
    """Returns the frames in which a student learns from texts, in turns: those in which its teacher reads them in use.
    Each prompt in its settings of sentence-transformers has a frame. `pairs` tells whether it reads pairs of texts; if
    None, its folder says so, or else it reads both.

    Raises ValueError if pairs are wanted of a model that is no classifier.
    """
    opened = teacher.opened
    if teacher.use != "classifier":
        if pairs:
            raise ValueError(f"pairs is on, and {opened.place} is no classifier; only those read pairs of texts")
        prompts = ("",) if opened.sentences is None else opened.sentences.prompts
        return tuple(Frame.of(teacher.reader, prompt=prompt) for prompt in prompts)
    if pairs is None:
        pairs = reads_pairs(opened)
    return tuple(Frame.of(teacher.reader, pair=pair) for pair in ((False, True) if pairs is None else (pairs,)))


def reads_pairs(opened: Opened) -> bool | None:
    """Returns whether a classifier's folder says that it reads pairs of texts; None if it says nothing."""
    if opened.encoding is not None:
        return opened.encoding.pairs
    return True if is_cross_encoder(opened.place.path) else None


SHORTEST = 4
"""Tokens of the shortest pieces, except for the rest at the end of a document."""

ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")
"""Tokens that end a sentence, in vocabularies that have them as separate tokens."""

UNRELATED = 2
"""Of so many pairs, one has a second text from another place: a reranker mostly reads texts that do not answer."""


@dataclass(frozen=True)
class Pieces(Dataset[Item]):
    """Pieces of documents in the frames of the teacher; `pieces[i]` is an `Item`."""

    ids: Sequence[np.ndarray]  # token ids of each source
    # int64 (pieces, 6): source, frame, first and last + 1 token of the text, the same of a pair's second text (0, 0 for
    # a single text)
    places: np.ndarray
    frames: Sequence[Frame]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Item:
        source, number, *borders = self.places[index].tolist()
        frame, ids = self.frames[number], self.ids[source]
        texts = [ids[start:stop].astype(np.int64) for start, stop in (borders[:2], borders[2:])]
        parts, types = [np.array(frame.ids[0], np.int64)], [*frame.types[0]]
        for text, kind, behind, its in zip(texts, frame.of_texts, frame.ids[1:], frame.types[1:], strict=False):
            parts += [text, np.array(behind, np.int64)]
            types += [kind] * len(text) + [*its]
        item = {"input_ids": torch.from_numpy(np.concatenate(parts))}
        if any(any(frame.of_texts) for frame in self.frames):
            item["token_type_ids"] = torch.tensor(types)
        return item

    @property
    def are_pairs(self) -> np.ndarray:
        """Tells which pieces are pairs, bool (pieces,)."""
        return np.array([frame.is_pair for frame in self.frames])[self.places[:, 1]]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each piece, those of its frame included."""
        around = np.array([frame.size for frame in self.frames])[self.places[:, 1]]
        return (around + sizes(self.places)).tolist()


def cut_pieces(
    sources: Sequence[Documents],
    tokenizer: PreTrainedTokenizerFast,
    *,
    length: int,
    tokens: int | None,
    seed: int,
    frames: Sequence[Frame],
    longest_pair: int | None = None,
) -> Pieces:
    """Cuts the documents of each source into pieces of log-uniform lengths, at ends of sentences where possible.

    The frames take turns. A pair is a piece cut in two, also at the end of a sentence where possible; see `UNRELATED`.
    A piece has at most `length` tokens, a pair `longest_pair` (default, as many), those of its frame included. The
    first pieces that reach `tokens` in all are taken, None: all; all sources contribute equally many tokens, as far as
    they last. The seed decides the lengths, the documents' order, and where pairs are cut.

    Raises a ValueError that says how many there are if the text has too few tokens.
    """
    vocabulary = tokenizer.get_vocab()
    ends = np.array([vocabulary[end] for end in ENDS if end in vocabulary])
    rooms = [(longest_pair or length if frame.is_pair else length) - frame.size for frame in frames]
    around = min(frame.size for frame in frames)
    draws = np.random.default_rng(seed)
    share = None if tokens is None else -(-tokens // len(sources))
    places = [
        _places(source, documents, ends, max(rooms), share, around, draws) for source, documents in enumerate(sources)
    ]
    found = np.concatenate(places)
    check_tokens(int((sizes(found) + around).sum()), tokens, len(sources))
    found = found[draws.permutation(len(found))]
    found[:, 1] = np.arange(len(found)) % len(frames)
    pieces = Pieces([documents.cache.ids for documents in sources], found, frames)
    return _with_pairs(pieces, ends, rooms, np.random.default_rng([seed, 1])) if pieces.are_pairs.any() else pieces


def check_tokens(there: int, wanted: int | None, sources: int) -> None:
    """Raises ValueError if a text has too few tokens."""
    if wanted is not None and there < wanted:
        alike = f", {-(-wanted // sources):,} of each of {sources} sources" if sources > 1 else ""
        raise ValueError(
            f"the text has {there:,} tokens to learn from, {wanted:,} are asked for{alike}; give more text, or ask for "
            "fewer tokens"
        )


def sizes(places: np.ndarray) -> np.ndarray:
    """Returns the tokens of the texts at some places, int64 (pieces,)."""
    return places[:, 3] - places[:, 2] + places[:, 5] - places[:, 4]


def shortened(places: np.ndarray, room: int) -> np.ndarray:
    """Cuts the ends of pairs that have no room, the longer text first; returns the new places."""
    first, second = places[:, 3] - places[:, 2], places[:, 5] - places[:, 4]
    first = np.minimum(first, np.maximum(room - second, room - room // 2))
    second = np.minimum(second, room - first)
    return np.column_stack((places[:, :3], places[:, 2] + first, places[:, 4], places[:, 4] + second))


def _places(
    source: int,
    documents: Documents,
    ends: np.ndarray,
    room: int,
    tokens: int | None,
    around: int,
    draws: np.random.Generator,
) -> np.ndarray:
    """Cuts single texts of one source until they have enough tokens; returns their places."""
    found: list[tuple[int, ...]] = []
    shortest, total = min(SHORTEST, room), 0
    for index in draws.permutation(len(documents)):
        start, stop = int(documents.starts[index]), int(documents.stops[index])
        ids = documents.cache.ids[start:stop]
        borders = start + 1 + np.flatnonzero(np.isin(ids, ends))
        while start < stop:
            wanted = round(float(np.exp(draws.uniform(np.log(shortest), np.log(room)))))
            end = min(start + wanted, stop)
            last = int(np.searchsorted(borders, end, side="right")) - 1
            if last >= 0 and borders[last] > start + wanted // 2:
                end = int(borders[last])
            found.append((source, 0, start, end, 0, 0))
            total += end - start + around
            start = end
            if tokens is not None and total >= tokens:
                return np.array(found, dtype=np.int64)
    return np.array(found, dtype=np.int64).reshape(-1, 6)


def _with_pairs(pieces: Pieces, ends: np.ndarray, rooms: Sequence[int], draws: np.random.Generator) -> Pieces:
    """Cuts the pieces in the frame of a pair in two; a text of one token becomes a single text, or is left out."""
    places, single = pieces.places, [number for number, frame in enumerate(pieces.frames) if not frame.is_pair]
    short = pieces.are_pairs & (sizes(places) < 2)
    if single:
        places[short, 1] = single[0]
    else:
        places = places[~short]
    pieces = replace(pieces, places=places)
    chosen = np.flatnonzero(pieces.are_pairs)
    for place in chosen:
        source, number, start, stop = places[place, :4]
        stop = min(stop, start + rooms[number])
        point = draws.integers(start + 1, stop)
        borders = start + 1 + np.flatnonzero(np.isin(pieces.ids[source][start : stop - 1], ends))
        middle = borders[np.abs(borders - point).argmin()] if len(borders) else point
        places[place, 3:] = middle, middle, stop
    for source in range(len(pieces.ids)):
        apart = chosen[places[chosen, 0] == source][::UNRELATED]
        places[apart, 4:] = places[np.roll(apart, 1), 4:]
        for number in set(places[apart, 1].tolist()):
            own = apart[places[apart, 1] == number]
            places[own] = shortened(places[own], rooms[number])
    return pieces


AT_ONCE = 1000
"""Rows tokenised in one call."""


def read_pairs(
    texts: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerFast,
    columns: tuple[str, str],
    *,
    frame: Frame,
    length: int,
    tokens: int,
    held_out: int,
    seed: int,
) -> tuple[Pieces, Pieces, str]:
    """Reads tables of pairs, which all contribute equally many tokens; returns the pairs to learn from, those held out,
    and a hash of all.

    `columns` are those of the first and of the second text. Of a pair of more than `length` tokens, those of its frame
    included, the end of the longer text is cut. `tokens` are learnt from, and `held_out` more, at most a tenth, are
    held out.

    Raises FileNotFoundError if there is no such file, and ValueError if a file is no table with both columns, or there
    are too few tokens.
    """
    share = -(-(tokens + held_out) // len(texts))
    room = length - frame.size
    encoded = [_encoded(number, expanded(text), tokenizer, columns, share, room) for number, text in enumerate(texts)]
    ids = [own for own, _ in encoded]
    places = shortened(np.concatenate([own for _, own in encoded]), room)
    places = places[np.random.default_rng(seed).permutation(len(places))]
    reached = (sizes(places) + frame.size).cumsum()
    held = int(np.searchsorted(reached, min(held_out, reached[-1] // 10))) + 1
    check_tokens(int(reached[-1] - reached[held - 1]), tokens, len(texts))
    enough = int(np.searchsorted(reached, reached[held - 1] + tokens)) + 1
    corpus = hashlib.sha256(b"".join(own.tobytes() for own in (*ids, places))).hexdigest()[:16]
    return Pieces(ids, places[held:enough], (frame,)), Pieces(ids, places[:held], (frame,)), corpus


def _encoded(
    source: int, table: Path, tokenizer: PreTrainedTokenizerFast, columns: tuple[str, str], enough: int, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a table's texts, and the places of its pairs, as in `Pieces`; reads rows until there are
    `enough` tokens in pairs that are cut to `room`."""
    encoder, ids, kept = plain_encoder(tokenizer), array("I"), 0
    rows = tables.read_rows(table, columns)
    texts = ([tables.text_in(row, column, where) for column in columns] for where, row in rows)
    places: list[tuple[int, ...]] = []
    while kept < enough and (some := list(islice(texts, AT_ONCE))):
        firsts, seconds = (
            encoder.encode_batch_fast(list(each), add_special_tokens=False) for each in zip(*some, strict=True)
        )
        for first, second in zip(firsts, seconds, strict=True):
            if first.ids and second.ids:
                middle = len(ids) + len(first.ids)
                places.append((source, 0, len(ids), middle, middle, middle + len(second.ids)))
                ids.extend(first.ids + second.ids)
                kept += min(len(first.ids) + len(second.ids), room)
    if not places:
        raise ValueError(f"{table}: no row has text in both {columns[0]!r} and {columns[1]!r}")
    return np.frombuffer(ids, np.uint32), np.array(places)
