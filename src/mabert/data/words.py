"""Maps the words of a text to the pieces that a tokenizer makes of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding

Span = tuple[int, int]
"""Characters of a text: the first, and one past the last."""


class Words(str):
    """A text made of given words with a space between two; `spans` holds their places."""

    spans: list[Span]

    def __new__(cls, words: Iterable[str]) -> Words:
        words = list(words)
        text = super().__new__(cls, " ".join(words))
        begin, text.spans = 0, []
        for word in words:
            text.spans.append((begin, begin + len(word)))
            begin += len(word) + 1
        return text


def words_of(text: str, encoding: Encoding) -> list[Span]:
    """Returns the spans of a text's words: all of them for `Words`, else those that the tokenizer found before
    truncation."""
    if isinstance(text, Words):
        return text.spans
    spans: dict[int, Span] = {}
    for word, piece in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            begin, end = _without_space(text, piece)
            spans[word] = (spans[word][0], end) if word in spans else (begin, end)
    return [span for span in spans.values() if span[0] < span[1]]


def first_pieces(text: str, encoding: Encoding, words: Sequence[Span]) -> list[int | None]:
    """Finds the first piece of each word of a text; the words' spans are given in order.

    Returns:
        For each word the index of its first piece among the token ids; None if the word was truncated or the tokenizer
        drops all its characters.
    """
    begins = [begin for begin, _ in words]
    pieces: list[int | None] = [None] * len(words)
    for place, (sequence, piece) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True)):
        begin, end = _without_space(text, piece)
        if sequence is None or begin == end:  # a special token, or a space
            continue
        word = bisect_right(begins, begin) - 1
        if word >= 0 and pieces[word] is None:
            pieces[word] = place
    return pieces


def _without_space(text: str, piece: Span) -> Span:
    """Returns a piece's span without the leading space that some tokenizers include."""
    begin, end = piece
    return end - len(text[begin:end].lstrip()), end
