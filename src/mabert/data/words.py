"""Cuts texts into words, and maps words to the pieces that a tokenizer makes of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import regex

if TYPE_CHECKING:
    from tokenizers import Encoding

Span = tuple[int, int]
"""Characters of a text: the first, and one past the last."""

_SPACE = r"\s\x1c-\x1f"
# The ideographs that BERT's tokenizer takes for words.
_IDEOGRAPH = r"\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
# Full-width marks end a word anywhere, since texts have no space behind them.
_WIDE = (
    r"\u3001\u3002\u3008-\u3011\u3014-\u301b\u301d-\u301f"
    r"\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff3b\uff3d\uff5b\uff5d\uff5f-\uff64"
)
_MARK = (
    r"\p{Terminal_Punctuation}\p{Quotation_Mark}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Cc}\p{Cf}"
    r"`\u00a1\u00b4\u00bf\u2013-\u2015\u2025\u2026"
)
# What stands within a word, and what also begins and ends one.
_INNER = rf"[^{_SPACE}{_IDEOGRAPH}{_WIDE}]"
_OUTER = rf"[^{_SPACE}{_IDEOGRAPH}{_MARK}]"
_LETTER = r"\p{L}\p{M}*"
_CLITIC = r"['\u2019][sS]"
_NARROW = rf"[[{_MARK}]--[{_SPACE}{_WIDE}]]"
_REST = rf"{_NARROW}*+(?!{_INNER})"
_CUT = regex.compile(
    rf"""
    {_CLITIC}(?={_REST})  # no word by itself
    | (?P<word>
        [{_IDEOGRAPH}]
        | (?>{_OUTER}(?:{_INNER}*{_OUTER})?)(?<!{_CLITIC})
          (?:\.(?:
            (?<={_LETTER}\.(?:{_LETTER})?{_LETTER}\.)  # as U.S.
            | (?<=(?<!{_INNER}){_NARROW}*{_LETTER}\.)(?!\.)  # as J.
            | (?=[,;:?!]|[{_SPACE}]+[{_MARK}]*+\p{{Ll}})  # the sentence goes on
          ))?
        | {_OUTER}(?:{_INNER}*?{_OUTER})??(?=[{_MARK}]*?{_CLITIC}{_REST})(?:\.(?={_CLITIC}))?
    )
    """,
    regex.VERBOSE | regex.V1,
)
_BETWEEN = regex.compile(rf"\.?(?:{_CLITIC})?[{_SPACE}\p{{Cc}}\p{{Cf}}]*+", regex.V1)


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


class Word(NamedTuple):
    """A word of a text, by its characters, and the tokens that stand for it, by their places; see `words_of`."""

    span: Span
    pieces: list[int]


def split_words(text: str) -> list[Span]:
    """Cuts a text into words.

    White space separates words, and a Chinese or Japanese ideograph is a word by itself. Quotes, brackets and sentence
    marks at both ends of a word are cut off, and so is a final `'s`. A final full stop is part of the word if the word
    has another between letters (`U.S.`) or is one letter (`J.`), or if the sentence goes on (`Acme Inc. opened`).
    """
    return [found.span("word") for found in _CUT.finditer(text) if found["word"]]


def words_of(text: str, encoding: Encoding) -> list[Word]:
    """Returns the words of an encoded text: the given ones of `Words`, else those of `split_words`.

    A word of `split_words` has one piece, its first. A given word has the first piece of each word that `split_words`
    finds in it, of which ideographs are several, or of itself if it is all marks. A word that was truncated, or whose
    characters the tokenizer drops, has none.
    """
    cores = split_words(text)
    spans, inside = cores, [[core] for core in cores]
    if isinstance(text, Words):
        spans, begins = text.spans, [begin for begin, _ in cores]
        inside = [
            cores[bisect_left(begins, begin) : bisect_left(begins, end)] or [(begin, end)] for begin, end in spans
        ]
    pieces = iter(_first_pieces(text, encoding, [core for several in inside for core in several]))
    return [
        Word(span, [piece for piece in dict.fromkeys(islice(pieces, len(several))) if piece is not None])
        for span, several in zip(spans, inside, strict=True)
    ]


def in_one_entity(text: str, before: Word, after: Word) -> bool:
    """Tells whether no mark but a full stop or `'s` stands between two words, so that one entity may hold both."""
    return _BETWEEN.fullmatch(text, before.span[1], after.span[0]) is not None


def _first_pieces(text: str, encoding: Encoding, spans: Sequence[Span]) -> list[int | None]:
    """Finds the first piece that holds characters of each span; the spans are given in order."""
    ends = [end for _, end in spans]
    found: list[int | None] = [None] * len(spans)
    for place, (sequence, (begin, end)) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True)):
        begin = end - len(text[begin:end].lstrip())  # some tokenizers include the space before it
        if sequence is None or begin == end:  # a special token, or a space
            continue
        for span in range(bisect_right(ends, begin), len(spans)):
            if spans[span][0] >= end:
                break
            if found[span] is None:
                found[span] = place
    return found
