"""English prose out of doc strings, without examples, parameter tables, code, formulas and markup; and out of wrapped
lines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_UNDERLINE = re.compile(r"([-=~^*#+\"'`.])\1{2,}\s*$")
_BULLET = re.compile(r"(?:[-*+\u2022]|\d{1,2}[.)]|\(?[a-z]\))\s+")
_FIELD = re.compile(r">>>|[:@](?:param|type|return|rtype|raise|arg|key|var|ivar|cvar|note|since|yield)|\.\. |\||\+-|#")
_MARKUP = [
    (re.compile(r":[a-z][\w:+-]*:`~(?:[^`]*\.)?([^`.]*)`"), r"\1"),
    (re.compile(r":(?!math|cite)[a-z][\w:+-]*:`([^`<]*?)(?:\s*<[^>`]*>)?`"), r"\1"),
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`<]*?)(?:\s*<[^>`]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"\[([^\]]*)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"\s*\[(?:\d+\]_?|\w+\]_)"), ""),
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?!\w)"), r"\1"),
]
_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')]*)\s+(?=[\"'(]?[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b[A-Z]|\b(?:e\.g|i\.e|etc|vs|cf|al|Fig|Eq|Sec|No|Vol|Ref|resp|approx|Messrs|Mrs?|Prof|Dr|St))\.$"
)
_CODE = re.compile(r"https?:|[\\$={}<>|\[\]@^~#%&_*`]|\.\.|--|::|\w\(|[A-Za-z]\.[A-Za-z]|\w/\w|:\w")
_PLAIN = re.compile(r"[(\"']?[A-Za-z]+(?:['-][A-Za-z]+)*[)\"']?[.,;:!?]?[)\"']?$")
# A sentence of English has some of these; a heading or a list of names has none.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be been but by can for from has have if in into is it its may more not of on one only or
        other should so such than that the their then there these they this to used using was when where which will
        with you""",
    )
)
_LEAST_WORDS = 5
# Columns that text is wrapped at; a line counts as full from this share of the longest around it.
_NARROWEST, _WIDEST, _FULL = 40, 100, 0.8


def prose(docstring: str) -> Iterator[list[str]]:
    """The English prose in a doc string.

    Dropped are doctests, headings, field lists, terms and names of parameters, and each sentence that holds formulas,
    code, addresses, or too few words of English. Of what is indented (definitions, descriptions of parameters) only
    paragraphs of several sentences are kept.

    Args:
        docstring: as it stands in the source.

    Yields:
        The sentences of a paragraph, free of reStructuredText and Markdown.
    """
    for depth, block in _blocks(inspect.cleandoc(docstring).split("\n")):
        for item in _items(block):
            paragraph = " ".join(item.split())
            for pattern, replacement in _MARKUP:
                paragraph = pattern.sub(replacement, paragraph)
            sentences = [sentence for sentence in split_sentences(paragraph) if is_prose(sentence)]
            if len(sentences) >= (2 if depth else 1):
                yield sentences


def unwrap(document: str) -> str:
    """Joins the lines of paragraphs that were wrapped.

    A line goes on in the next one where it ends no sentence and is full: the next word would hardly have fit into the
    longest line of the block, which has 40 to 100 columns. Headings, lists and text with a paragraph on a line stay as
    they are.

    Args:
        document: lines; blank ones separate blocks.

    Returns:
        The document with a paragraph on a line, without blank lines.
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
    """Whether a paragraph that holds one line holds the following one, too."""
    word = following.split(maxsplit=1)[0]
    full = len(line) + 1 + len(word) >= _FULL * width
    return full and len(split_sentences(f"{split_sentences(line)[-1]} {word}")) == 1


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph that stands on one line; abbreviations and initials end none."""
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[start : end.start()]):
            sentences.append(paragraph[start : end.end(1)])
            start = end.end()
    return [*sentences, paragraph[start:]]


def is_prose(sentence: str) -> bool:
    """Whether a sentence reads as English: complete, of mostly plain words, some of them the commonest ones."""
    if not (sentence[:1].isupper() and sentence[-1:] in ".!?" and sentence.isascii()):
        return False
    sentence = sentence.replace("e.g.", "eg").replace("i.e.", "ie")
    if _CODE.search(sentence) or sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    words = sentence.split()
    plain = sum(1 for word in words if _PLAIN.match(word))
    common = sum(1 for word in words if word.lower() in _COMMON)
    return len(words) >= _LEAST_WORDS and plain >= 0.9 * len(words) and common >= 0.15 * len(words)


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines that may be prose, each with its indentation, which is taken off the lines.

    A block ends at a blank line and where the indentation changes; the line above an indented one is a term and belongs
    to none, unless it begins a list.
    """
    block: list[str] = []
    depth = 0
    for line in [*lines, ""]:
        text = line.strip()
        here = len(line) - len(line.lstrip())
        listed = bool(block) and bool(_BULLET.match(block[0]))
        if block and (not text or _UNDERLINE.match(line) or (here != depth and not (listed and here > depth))):
            if text and here >= depth:
                block.pop()
            if block and not _FIELD.match(block[0]):
                yield depth, block
            block = []
        if text and not _UNDERLINE.match(line):
            depth = depth if block else here
            block.append(text)


def _items(block: list[str]) -> Iterator[str]:
    """The items of a list, each without its mark; otherwise the block as it is."""
    item: list[str] = []
    for line in block:
        mark = _BULLET.match(line)
        if mark and item:
            yield " ".join(item)
            item = []
        item.append(line[mark.end() :] if mark else line)
    yield " ".join(item)
