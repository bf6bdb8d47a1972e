"""Entities: tags of words, and files of tagged words."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mabert.data.tasks import Task
from mabert.data.words import split_words
from mabert.files import tables

OUTSIDE = "O"
"""The tag of a word that is no part of an entity."""

MEASURES = ("precision", "recall", "f1")


class Entity(NamedTuple):
    """An entity's type, its first word, and one past its last word."""

    type: str
    begin: int
    end: int


def is_tag(tag: str) -> bool:
    """Tells whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def types_of(tags: Iterable[str]) -> list[str]:
    """Lists the entity types in tags, in alphabetical order."""
    return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities in the tags of a sentence, as seqeval does by default.

    `B-` begins an entity. `I-` continues one of the same type, or begins one if there is none.
    """
    found: list[Entity] = []
    inside = None
    for place, tag in enumerate(tags):
        kind = None if tag == OUTSIDE else tag[2:]
        if kind is not None and kind == inside and tag.startswith("I-"):
            found[-1] = found[-1]._replace(end=place + 1)
        elif kind is not None:
            found.append(Entity(kind, place, place + 1))
        inside = kind
    return found


def metric_names(types: Sequence[str]) -> tuple[str, ...]:
    """Names the metrics of `mabert.data.metrics.entity_scores`: each over all entities, and per type."""
    return (*MEASURES, *(f"{measure}_{kind}" for kind in types for measure in MEASURES))


_BETWEEN = re.compile(r"[ \t]+")

CONLL = (".conll", ".bio", ".iob", ".iob2")
"""Suffixes of files with one word and its tag per line."""

Sentence = tuple[list[str], list[str], list[str]]
"""Words, their tags (empty if not read), and where each word stands, for messages."""


def read_tagged(files: Mapping[str, Path], name: str) -> tuple[Task, dict[str, dict[str, list[Any]]]]:
    """Reads sentences with an entity tag per word, `O`, `B-TYPE` or `I-TYPE`, from the file of each split, as in
    `load_own`; `test` needs no tags.

    `.jsonl` and `.parquet` hold one sentence per row, in `tokens` and `tags`. All other files hold one word per line:
    the first column is the word, the last its tag, with spaces or tabs between columns and a blank line between
    sentences. `-DOCSTART-` lines are skipped.

    Returns the task, with the tags of the training file as labels (and the `I-TYPE` of words that `split_words`
    divides, such as those of several ideographs), and by split `tokens`, `text_a` (the tokens joined by spaces), `tags`
    (not in `test`) and `index` (sentence number from 0).

    Raises FileNotFoundError if a file is missing, and ValueError if one is empty, damaged or not UTF-8; a word has no
    tag, a malformed one, or one that the training file lacks; a sentence has unequal numbers of words and tags; or the
    training file has no entity.
    """
    held: dict[str, list[Sentence]] = {}
    for split, path in files.items():
        is_table = tables.format_of(path) in (*tables.JSON_KINDS, ".parquet")
        held[split] = list((_of_rows if is_table else sentences_of)(path, split != "test"))
        if not held[split]:
            raise ValueError(f"{path}: no sentences")
    known = (OUTSIDE, *sorted({tag for _, tags, _ in held["train"] for tag in tags} - {OUTSIDE}))
    for split, sentences in held.items():
        for word, tag, where in (each for sentence in sentences for each in zip(*sentence, strict=split != "test")):
            if is_tag(tag) and tag in known:
                continue
            fault = f"none of the training file's, {', '.join(known)}" if is_tag(tag) else "not O, B-TYPE or I-TYPE"
            raise ValueError(f"{where}: the tag {tag!r} of {word!r} is {fault}")
    if known == (OUTSIDE,):
        raise ValueError(f"{files['train']}: all tags are {OUTSIDE}; there is no entity to learn from")
    tagged = (pair for some in held.values() for words, tags, _ in some for pair in zip(words, tags, strict=False))
    # What follows the first part of a word that `split_words` divides.
    later = {f"I-{tag[2:]}" for word, tag in tagged if tag != OUTSIDE and len(split_words(word)) > 1}
    known = (OUTSIDE, *sorted({*known[1:], *later}))
    task = Task(name, known, metric_names(types_of(known)), "f1", "tokens")
    loaded: dict[str, dict[str, list[Any]]] = {}
    for split, sentences in held.items():
        words = [each for each, _, _ in sentences]
        loaded[split] = {"text_a": [*map(" ".join, words)], "tokens": words, "index": [*range(len(words))]}
        loaded[split] |= {"tags": [tags for _, tags, _ in sentences]} if split != "test" else {}
    return task, loaded


def sentences_of(path: Path, tagged: bool) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL file, with their tags or without; errors are those of `read_tagged`."""
    if path.suffix == ".json":
        raise ValueError(f"{path}: a .json file; tagged words are read from lines of word and tag (CoNLL) or .jsonl")
    sentence: Sentence = [], [], []
    for number, line in enumerate(tables.lines_of_text(path), 1):
        where, columns = f"{path}, line {number}", _BETWEEN.split(line.strip(" \t\r\n"))
        if columns[0] in ("", "-DOCSTART-"):
            if sentence[0]:
                yield sentence
            sentence = [], [], []
            continue
        if tagged and len(columns) == 1:
            raise ValueError(f"{where}: the word {columns[0]!r} has no tag; write one behind it, as O")
        sentence[0].append(columns[0])
        sentence[1].extend(columns[-1:] if tagged else ())
        sentence[2].append(where)
    if sentence[0]:
        yield sentence


def _of_rows(path: Path, tagged: bool) -> Iterator[Sentence]:
    """Yields the sentences of a table."""
    names = ["tokens", "tags"] if tagged else ["tokens"]
    for where, row in tables.read_rows(path, names):
        words, *tags = (tables.texts_in(row, name, where) for name in names)
        if not words:
            raise ValueError(f"{where}: 'tokens' is empty; leave the row out")
        if tags and len(tags[0]) != len(words):
            raise ValueError(f"{where}: {len(words)} tokens and {len(tags[0])} tags; each token needs one tag")
        yield words, tags[0] if tags else [], [where] * len(words)
