"""English prose: splits it into sentences, tells plain ones from other text, and scrambles them."""

import os
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those its their his her our your my each every any some no of to in on at by for
        from with without into onto over under between through during before after about against as than and or but nor
        if because while although when where which who whose whether is are was were be been being has have had do does
        did can could will would shall should may might must not it they he she we you i there such only also very""",
    )
)
"""Words whose place is fixed by grammar: an exchange with another kind of word spoils the sentence."""

_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')]*)\s+(?=[\"'(]?[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b[A-Z]|\b(?:e\.g|i\.e|etc|vs|cf|al|Fig|Eq|Sec|No|Vol|Ref|resp|approx|Messrs|Mrs?|Prof|Dr|St))\.$"
)
_PLAIN = re.compile(r"[A-Z][a-z]*(?:[,;:]? [A-Za-z]+(?:['-][A-Za-z]+)*)+[.!?]")
_LEFT_OUT = {"test", "tests", "pydoc_data", "site-packages", "dist-packages"}


def split_sentences(paragraph: str) -> list[str]:
    """Splits a one-line paragraph into sentences; abbreviations and initials do not end one."""
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[start : end.start()]):
            sentences.append(paragraph[start : end.end(1)])
            start = end.end()
    return [*sentences, paragraph[start:]]


def sentences(documents: Iterable[str]) -> Iterator[str]:
    """Yields the plain sentences of documents, whose paragraphs blank lines separate, in their order, each once. They
    have 6 to 40 words of letters, commas, semicolons and colons, at least a quarter of them function words; they begin
    with a capital and end with a full stop, a question or an exclamation mark."""
    seen: set[str] = set()
    for document in documents:
        for paragraph in re.split(r"\n[^\S\n]*\n", document):
            for sentence in split_sentences(" ".join(paragraph.split())):
                words = sentence.lower().split()
                # At least a quarter are function words; a heading or a list of names has fewer.
                prose = sum(word in FUNCTION_WORDS for word in words) >= len(words) / 4
                if prose and sentence not in seen and 6 <= len(words) <= 40 and _PLAIN.fullmatch(sentence):
                    seen.add(sentence)
                    yield sentence


def installed_documentation(folders: Iterable[str | Path] | None = None) -> list[str]:
    """Returns the plain sentences of the triple-quoted strings in Python source, each once: a document per source file
    of some folders (default, the standard library and the installed packages). Nothing is run."""
    seen: set[str] = set()
    documents = []
    for folder in map(Path, folders or map(sysconfig.get_path, ("stdlib", "purelib"))):
        for path in sorted(folder.rglob("*.py")):
            if _LEFT_OUT & {*path.relative_to(folder).parts} or not (path.is_file() and os.access(path, os.R_OK)):
                continue
            strings = re.findall(r'"""(.*?)"""', path.read_text(encoding="utf-8", errors="ignore"), re.DOTALL)
            new = [sentence for sentence in sentences(strings) if sentence not in seen]
            seen.update(new)
            documents += [" ".join(new)] if new else []
    return documents


def scrambled(sentence: str) -> str | None:
    """Exchanges function words with others, once and once more per sixteen words; None where nothing can be exchanged.
    The first word, words before punctuation and the punctuation stay, so that only the order gives the sentence away.
    The same sentence is always scrambled in the same way."""
    words, draws = sentence.split(), random.Random(sentence)
    inner = [place for place in range(1, len(words)) if words[place][-1].isalpha()]
    function = [place for place in inner if words[place].lower() in FUNCTION_WORDS]
    other = [place for place in inner if place not in function]
    swaps = min(1 + len(words) // 16, len(function), len(other))
    for one, two in zip(draws.sample(function, swaps), draws.sample(other, swaps), strict=True):
        words[one], words[two] = words[two], words[one]
    return " ".join(words) if swaps else None
