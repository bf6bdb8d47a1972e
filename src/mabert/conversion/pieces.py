"""The texts that a conversion learns from: pieces of documents, from a sentence to the longest text to read, or pairs
of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mabert.conversion.inputs import Frame
from mabert.conversion.watch import Item
from mabert.data.cache import Documents

SHORTEST = 4
"""Tokens of the shortest pieces, except for the rest at the end of a document."""

ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")
"""Tokens that end a sentence, in vocabularies that have them as separate tokens."""

UNRELATED = 2
"""Of so many pairs, one has a second text from another place: a reranker mostly reads texts that do not answer."""


@dataclass(frozen=True)
class Pieces(Dataset[Item]):
    """Pieces of documents in the frames of the teacher; `pieces[i]` is an `Item`.

    Attributes:
        ids: Token ids of each source.
        places: int64 (pieces, 6): source, frame, first and last + 1 token of the text, the same of a pair's second text
            (0, 0 for a single text).
        frames: The frames.
    """

    ids: Sequence[np.ndarray]
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
        if self.has_types:
            item["token_type_ids"] = torch.tensor(types)
        return item

    @property
    def has_types(self) -> bool:
        """Whether any frame has a token type but 0."""
        return any(any(frame.of_texts) for frame in self.frames)

    @property
    def are_pairs(self) -> np.ndarray:
        """Tells which pieces are pairs, bool (pieces,)."""
        return np.array([frame.is_pair for frame in self.frames])[self.places[:, 1]]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each piece, those of its frame included."""
        around = np.array([frame.size for frame in self.frames])[self.places[:, 1]]
        return (around + sizes(self.places)).tolist()


def cut(
    sources: Sequence[Documents],
    tokenizer: PreTrainedTokenizerFast,
    *,
    length: int,
    tokens: int | None,
    seed: int,
    frames: Sequence[Frame] = (),
    longest_pair: int | None = None,
) -> Pieces:
    """Cuts documents into pieces of log-uniform lengths, at ends of sentences where possible.

    The frames take turns. A pair is a piece cut in two, also at the end of a sentence where possible; see `UNRELATED`.

    Args:
        sources: Documents of each source; all contribute equally many tokens, as far as they last.
        tokenizer: Tells which tokens end a sentence.
        length: Most tokens of a piece, those of its frame included.
        tokens: Total tokens of the pieces, frames included; the first ones that reach it are taken, None: all.
        seed: Seed of the lengths, of the documents' order, and of where pairs are cut.
        frames: What stands around texts; default, the special tokens of a single text.
        longest_pair: Most tokens of a pair; default, `length`.

    Raises:
        ValueError: If the text has too few tokens; says how many.
    """
    vocabulary = tokenizer.get_vocab()
    ends = np.array([vocabulary[end] for end in ENDS if end in vocabulary])
    frames = frames or (Frame.of(tokenizer),)
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
