"""The texts that a conversion learns from: pieces of documents, from a sentence to the longest text to read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mabert.data.cache import Documents

SHORTEST = 4
"""Tokens of the shortest pieces, except for the rest at the end of a document."""

ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")
"""Tokens that end a sentence, in vocabularies that have them as separate tokens."""


@dataclass(frozen=True)
class Pieces(Dataset[dict[str, torch.Tensor]]):
    """Pieces of documents with the special tokens around them; `pieces[i]` has `input_ids`, int64 (time,).

    Attributes:
        sources: Documents of each source.
        places: int64 (pieces, 3): the source, and the piece's first and last + 1 position in that source's cached ids.
        around: Ids of the special tokens before and after.
    """

    sources: Sequence[Documents]
    places: np.ndarray
    around: tuple[int, int]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source, start, stop = self.places[index]
        ids = torch.from_numpy(self.sources[source].cache.ids[start:stop].astype(np.int64))
        before, behind = (torch.tensor([special]) for special in self.around)
        return {"input_ids": torch.cat((before, ids, behind))}

    @property
    def lengths(self) -> list[int]:
        """Tokens of each piece, special ones included."""
        return (self.places[:, 2] - self.places[:, 1] + len(self.around)).tolist()


def cut(
    sources: Sequence[Documents], tokenizer: PreTrainedTokenizerFast, *, length: int, tokens: int | None, seed: int
) -> Pieces:
    """Cuts documents into pieces of log-uniform lengths, at ends of sentences where possible.

    Args:
        sources: Documents of each source; all contribute equally many tokens, as far as they last.
        tokenizer: Tells which tokens end a sentence.
        length: Most tokens of a piece, special ones included.
        tokens: Total tokens of the pieces, special ones included; the first ones that reach it are taken, None: all.
        seed: Seed of the lengths and of the documents' order.

    Raises:
        ValueError: If the text has too few tokens; says how many.
    """
    vocabulary = tokenizer.get_vocab()
    ends = np.array([vocabulary[end] for end in ENDS if end in vocabulary])
    around = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    room = length - len(around)
    draws = np.random.default_rng(seed)
    share = None if tokens is None else -(-tokens // len(sources))
    places = [_places(source, documents, ends, room, share, draws) for source, documents in enumerate(sources)]
    found = np.concatenate(places)
    there = int((found[:, 2] - found[:, 1] + len(around)).sum())
    if tokens is not None and there < tokens:
        alike = f", {share:,} of each of {len(sources)} sources" if len(sources) > 1 else ""
        raise ValueError(
            f"the text has {there:,} tokens to learn from, {tokens:,} are asked for{alike}; give more text, or ask for "
            "fewer tokens"
        )
    return Pieces(sources, found[draws.permutation(len(found))], around)


def _places(
    source: int, documents: Documents, ends: np.ndarray, room: int, tokens: int | None, draws: np.random.Generator
) -> np.ndarray:
    """Cuts pieces of one source until they have enough tokens; returns their places."""
    found: list[tuple[int, int, int]] = []
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
            found.append((source, start, end))
            total += end - start + 2
            start = end
            if tokens is not None and total >= tokens:
                return np.array(found, dtype=np.int64)
    return np.array(found, dtype=np.int64).reshape(-1, 3)
