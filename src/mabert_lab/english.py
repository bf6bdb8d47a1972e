"""English prose: splits sentences, tells prose from other text, and unwraps paragraphs."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')]*)\s+(?=[\"'(]?[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b[A-Z]|\b(?:e\.g|i\.e|etc|vs|cf|al|Fig|Eq|Sec|No|Vol|Ref|resp|approx|Messrs|Mrs?|Prof|Dr|St))\.$"
)
_CODE = re.compile(r"https?:|[\\$={}<>|\[\]@^~#%&_*`]|\.\.|--|::|\w\(|[A-Za-z]\.[A-Za-z]|\w/\w|:\w")
_PLAIN = re.compile(r"[(\"']?[A-Za-z]+(?:['-][A-Za-z]+)*[)\"']?[.,;:!?]?[)\"']?$")
# An English sentence contains some of these; a heading or a list of names contains none.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be been but by can for from has have if in into is it its may more not of on one only or
        other should so such than that the their then there these they this to used using was when where which will
        with you""",
    )
)
_LEAST_WORDS = 5
# Columns at which text is wrapped, and the share of the longest line in its block from which a line counts as full.
_NARROWEST, _WIDEST, _FULL = 40, 100, 0.8


def split_sentences(paragraph: str) -> list[str]:
    """Splits a one-line paragraph into sentences; abbreviations and initials do not end one."""
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[start : end.start()]):
            sentences.append(paragraph[start : end.end(1)])
            start = end.end()
    return [*sentences, paragraph[start:]]


def is_prose(sentence: str) -> bool:
    """Checks whether a sentence is complete and mostly of plain words, including some very common ones."""
    if not (sentence[:1].isupper() and sentence[-1:] in ".!?" and sentence.isascii()):
        return False
    sentence = sentence.replace("e.g.", "eg").replace("i.e.", "ie")
    if _CODE.search(sentence) or sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    words = sentence.split()
    plain = sum(1 for word in words if _PLAIN.match(word))
    common = sum(1 for word in words if word.lower() in _COMMON)
    return len(words) >= _LEAST_WORDS and plain >= 0.9 * len(words) and common >= 0.15 * len(words)


def unwrap(document: str) -> str:
    """Joins the lines of wrapped paragraphs.

    A line continues in the next one if it does not end a sentence and is full: the next word would hardly have fit into
    the block's longest line, which has 40 to 100 columns. Headings, lists and text with one paragraph per line stay
    unchanged.

    Args:
        document: Lines; blank ones separate blocks.

    Returns:
        The document with one paragraph per line, without blank lines.
    """
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n", document):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        width = max(map(len, lines), default=0)
        before = None
        for line in lines:
            if before is not None and _NARROWEST <= width <= _WIDEST and _goes_on(before, line, width):
                paragraphs[-1] += line if re.search(r"\w-$", before) else " " + line
            else:
                paragraphs.append(line)
            before = line
    return "\n".join(paragraphs)


def _goes_on(line: str, following: str, width: int) -> bool:
    """Checks whether two successive lines belong to the same paragraph."""
    word = following.split(maxsplit=1)[0]
    full = len(line) + 1 + len(word) >= _FULL * width
    return full and len(split_sentences(f"{split_sentences(line)[-1]} {word}")) == 1
