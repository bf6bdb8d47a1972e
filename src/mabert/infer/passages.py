"""Cuts texts into passages at ends of sentences, and gives each passage a vector: alone, or out of its whole text."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import regex
import torch
from tokenizers import Encoding

from mabert.data.encode import encodings, was_cut
from mabert.data.words import Span
from mabert.infer import heads
from mabert.infer.answers import Batch, Encoded
from mabert.infer.texts import Chunk

_STOP = r"\p{Sentence_Terminal}\u2026"
_WIDE = r"\u3002\uff01\uff1f\uff61"  # no space stands behind these
_CLOSING = r"\p{Pe}\p{Pf}\p{Quotation_Mark}*_`"
_ABBREVIATION = (
    r"[\p{Lu}--[I]]|Mrs?|Ms|Messrs|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|e\.g|i\.e|cf|vs|al|approx|resp|ca|pp?|"
    r"Figs?|Eqs?|Secs?|Refs?|Tab|Ch|Vol|Nos?|Nr|Art"
)
# Each alternative begins where it cannot have begun before, and gives nothing back: the time is linear in the text.
_SENTENCE_END = regex.compile(
    rf"""
    (?=[{_STOP}\s])(?:
        [{_WIDE}][{_STOP}]*+[\p{{Pe}}\p{{Pf}}"']*+\s*+
        | (?=[{_STOP}])(?<![{_STOP}])(?<!\b(?:{_ABBREVIATION})(?=\.))[{_STOP}]++[{_CLOSING}]*+\s++(?!\p{{Ll}})
        | (?<!\s)[^\S\n]*+\n(?:[^\S\n]*+\n\s*+|\s*+(?!\p{{Ll}}))
    )
    """,
    regex.VERBOSE | regex.V1,
)
_WORD_END = regex.compile(r"\s++|[\u200b\u3001\uff0c\uff1a\uff1b]++")


class Passages(NamedTuple):
    """Passages of some texts, in order.

    Attributes:
        vectors: Their vectors, float32 (passages, D).
        text: Number of each one's text, counted from 0, int64 (passages,).
        start: Each one's first character in its text, int64 (passages,).
        end: One past its last character, int64 (passages,).
    """

    vectors: np.ndarray
    text: np.ndarray
    start: np.ndarray
    end: np.ndarray


def split_passages(text: str, tokens: Sequence[Span] | np.ndarray, room: int) -> list[Span]:
    """Cuts a text into passages of at most `room` tokens, as long as they may be from left to right.

    A passage ends where a sentence does. A sentence ends at a full stop, question or exclamation mark or ellipsis of
    any script, with quotes and brackets behind it, before white space (none is needed behind `。！？`); not if a
    lower-case letter follows, nor after a single capital other than I (`J.`) or a common abbreviation (`Fig.`). It also
    ends at a blank line, and at the end of a line unless the next one begins with a lower-case letter, as in wrapped
    text. A sentence that is longer begins a passage and is cut at white space and behind `，、：；`, and a longer word
    between two tokens.

    Args:
        text: The text.
        tokens: Characters of each of its tokens, int (tokens, 2), in order.
        room: Most tokens of a passage. A character of more tokens is a passage by itself.

    Returns:
        First character of each passage, and one past its last. They do not overlap, have no white space at their ends,
        and hold all that is not white space.
    """
    starts, ends = np.array(tokens, dtype=np.int64).reshape(-1, 2).T
    whole = starts[1:][starts[1:] >= ends[:-1]]  # not within a character that has several tokens
    levels = [
        np.array([0, *places, len(text)])
        for places in (
            [end.end() for end in _SENTENCE_END.finditer(text)],
            [end.end() for end in _WORD_END.finditer(text)],
            whole,
        )
    ]
    counts = [np.searchsorted(ends, level, side="right") for level in levels]  # of the tokens before each place
    spans, begin, done = [], 0, 0
    while begin < len(text):
        for level, before in zip(levels, counts, strict=True):
            last = int(np.searchsorted(before, done + max(room, 0), side="right")) - 1
            if level[last] > begin:
                break
        else:
            last = int(np.searchsorted(level, begin, side="right"))
        end, done = int(level[last]), int(before[last])
        kept = text[begin:end].strip()
        if kept:
            first = end - len(text[begin:end].lstrip())
            spans.append((first, first + len(kept)))
        begin = end
    return spans


class Alone(heads.Embedding):
    """The passages of each chunk, of at most `length` tokens as the model reads them alone, with special tokens and the
    folder's prompt; a passage has the vector that it has as a text of its own."""

    def __init__(self, way: heads.VectorSettings, length: int) -> None:
        super().__init__(way)
        self.length = length
        # Number, first and last + 1 character of each passage of the current chunk.
        self.places: list[tuple[int, int, int]] = []

    def encode(self, chunk: Chunk) -> Encoded:
        self.places, items = [], []
        texts = [text for (text,) in chunk.rows]
        read = self.prepared(texts)  # of any length
        encoded = encodings(self.loaded.tokenizer, read, max_length=None, name=chunk.name, before=chunk.before)
        for number, (text, (item, encoding)) in enumerate(zip(texts, encoded, strict=True), chunk.before):
            for (start, end), own in self._divided(number, text, item, self._tokens(text, encoding)[0]):
                self.places.append((number, start, end))
                items.append(own)
        return items

    def finish(self, chunk: Chunk, found: list[np.ndarray]) -> list[Passages]:
        vectors = np.vstack([np.zeros((0, self.loaded.model.config.hidden_size), np.float32), *found])
        return [Passages(vectors, *np.array(self.places, dtype=np.int64).reshape(-1, 3).T)]

    def _tokens(self, text: str, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        """Returns the characters of each token of a text, int64 (tokens, 2), and their places among all tokens.

        Special tokens and those of the prompt are left out.
        """
        own = np.array([sequence is not None for sequence in encoding.sequence_ids], dtype=bool)
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        if (folder := self.way.folder) is not None:
            spans -= len(self.prepared([""])[0])
            own &= spans[:, 1] > 0
            spans = spans.clip(0)
            if folder.lower and len(text.lower()) > len(text):  # one letter has two characters there, U+0130
                origin = np.repeat(np.arange(len(text)), [len(letter.lower()) for letter in text])
                spans[own] = np.column_stack((origin[spans[own, 0]], origin[spans[own, 1] - 1] + 1))
        return spans[own], np.flatnonzero(own)

    def _divided(
        self, number: int, text: str, item: dict[str, list[int]], tokens: np.ndarray
    ) -> list[tuple[Span, dict[str, list[int]]]]:
        """Cuts an encoded text into passages that fit, with the encoding of each.

        A passage alone may have more tokens than in its text, as where a word is cut; it is then cut again.
        """
        size = len(item["input_ids"])
        if size <= self.length and text and text == text.strip():
            return [((0, len(text)), item)]
        spans = split_passages(text, tokens, self.length - (size - len(tokens)))
        if spans == [(0, len(text))]:
            raise ValueError(
                f"{text[:20]!r} in text {number + 1} cannot be cut and is {size} tokens, with special tokens and the "
                f"prompt; passages of {self.length} are asked for, so ask for longer ones"
            )
        pieces, found = [text[start:end] for start, end in spans], []
        encoded = encodings(self.loaded.tokenizer, self.prepared(pieces), max_length=None)
        for (start, _), piece, (own, encoding) in zip(spans, pieces, encoded, strict=True):
            within = self._divided(number, piece, own, self._tokens(piece, encoding)[0])
            found += [((start + first, start + last), its) for (first, last), its in within]
        return found


class InContext(Alone):
    """The same, with the pooled vectors of a passage's tokens in one pass over its whole text, as in late chunking.

    Late chunking is Günther et al. 2024, arXiv 2409.04701. A token is the passage's that holds its end. The first
    passage of a text also takes what stands before its words ([CLS], the folder's prompt) and the last one [SEP], so
    that a text of one passage has the vector of `embed`, and the mean of all passages, each weighted by its tokens, is
    the text's.
    """

    def encode(self, chunk: Chunk) -> Encoded:
        """Encodes the texts of a chunk that have passages, and finds these."""
        self.places, items = [], []
        # The first token and last + 1 of each passage, for each of these texts.
        self.borders: list[list[Span]] = []
        texts = [text for (text,) in chunk.rows]
        encoded = self.loaded.encodings(self.prepared(texts), **self.asked, name=chunk.name, before=chunk.before)
        for number, (text, (item, encoding)) in enumerate(zip(texts, encoded, strict=True), chunk.before):
            (tokens, places), read, size = self._tokens(text, encoding), (0, len(text)), len(item["input_ids"])
            if was_cut(encoding):
                self.cut += 1
                read = (int(tokens[:, 0].min(initial=len(text))), int(tokens[:, 1].max(initial=0)))
            passages = [
                (read[0] + start, read[0] + end)
                for (start, end), _ in self._divided(number, text[slice(*read)], item, tokens - read[0])
            ]
            if not passages:
                continue
            self.places += [(number, *span) for span in passages]
            starts = np.array([start for start, _ in passages])
            firsts = np.append(places, size - 1)[np.searchsorted(tokens[:, 1], starts, side="right")]
            firsts[0] = 0
            lasts = np.maximum(np.append(firsts[1:], size), firsts + 1)
            self.borders.append(list(zip(firsts.tolist(), lasts.tolist(), strict=True)))
            items.append(item)
        return items

    def answer(self, batch: Batch) -> Iterator[torch.Tensor]:  # (tokens, D) of each text
        return heads.by_text(self.loaded.model(**batch).last_hidden_state, batch)

    def reduce(self, index: int, hidden: torch.Tensor) -> np.ndarray:  # float32 (passages, D)
        parts = [self.way.pool(hidden[None, first:last], None) for first, last in self.borders[index]]
        return self.way.scaled(torch.cat(parts))
