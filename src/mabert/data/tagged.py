"""A task of tagged words from one's own files: CoNLL columns, or JSONL or Parquet with `tokens` and `tags`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mabert.data import files as on_disk
from mabert.data import rows
from mabert.data.entities import OUTSIDE, is_tag, metric_names, types_of
from mabert.data.task import Task, held_out, rows_of

if TYPE_CHECKING:
    from datasets import Dataset

TABLES = (".jsonl", ".ndjson", ".parquet")
"""Kinds of files that have a sentence a row; any other is read as CoNLL columns."""

_BETWEEN = re.compile(r"[ \t]+")

Sentence = tuple[list[str], list[str], list[int]]
"""Words, their tags (none where they are not asked for), and the line that each word stands on."""


def load_tagged(
    files: Mapping[str, str | Path], *, name: str = "tagged", hold_out: float = 0.1, seed: int = 0
) -> tuple[Task, dict[str, Dataset]]:
    """Loads sentences whose words have a tag each, which name entities: `O`, `B-TYPE` and `I-TYPE`.

    Args:
        files: path by split: `train`, and `validation` and `test` as `load_tables` has them. `.jsonl` and `.parquet`
            hold a sentence a row, `tokens` and `tags`. All other files have a word a line, which begins with the word
            and ends with its tag, columns apart by spaces or tabs, and a blank line between two sentences; lines of
            `-DOCSTART-` are skipped. `test` needs no tags.
        name: the task's name.
        hold_out: share of the training sentences held out where `files` names no validation file.
        seed: chooses the sentences held out.

    Returns:
        The task, whose labels are the tags of the training file, and by split a data set with `tokens`, `text_a`
        (these joined by spaces), `tags` (not in `test`) and `index` (number of the sentence from 0).

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, damaged or not UTF-8, a word has no tag, or one that names no entity or that the
            training file lacks; a sentence has more words than tags or fewer; the training file has no entity.
    """
    if "train" not in files:
        raise ValueError("no training file given")
    held = {split: list(_sentences(Path(path).expanduser(), split != "test")) for split, path in files.items()}
    for split, sentences in held.items():
        if not sentences:
            raise ValueError(f"{files[split]}: no sentences")
    known = _checked_tags(Path(files["train"]), held["train"])
    for split in held.keys() - {"train", "test"}:
        _check_known(Path(files[split]), held[split], known)
    types = types_of(known)
    task = Task(name, known, metric_names(types), "f1", "tokens")
    loaded = {split: _dataset(sentences, split != "test") for split, sentences in held.items()}
    if "validation" not in loaded:
        loaded["train"], loaded["validation"] = held_out(loaded["train"], hold_out, seed)
    return task, loaded


def _sentences(path: Path, tagged: bool) -> Iterator[Sentence]:
    return _of_rows(path, tagged) if on_disk.kind(path) in TABLES else _of_columns(path, tagged)


def _of_columns(path: Path, tagged: bool) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL file."""
    words: list[str] = []
    tags: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(on_disk.lines_of_text(path), 1):
        columns = _BETWEEN.split(line.strip(" \t\r\n"))
        if columns[0] in ("", "-DOCSTART-"):
            if words:
                yield words, tags, numbers
            words, tags, numbers = [], [], []
            continue
        if tagged and len(columns) == 1:
            raise ValueError(f"{path}, line {number}: the word {columns[0]!r} has no tag; write one behind it, as O")
        words.append(columns[0])
        numbers.append(number)
        if tagged:
            tags.append(columns[-1])
    if words:
        yield words, tags, numbers


def _of_rows(path: Path, tagged: bool) -> Iterator[Sentence]:
    """Yields the sentences of a table."""
    names = ["tokens", "tags"] if tagged else ["tokens"]
    for number, row in rows.read_rows(path, names):
        where = f"{path}, line {number}"
        words, *tags = (rows.texts_in(row, name, where) for name in names)
        if not words:
            raise ValueError(f"{where}: 'tokens' is empty; leave the row out")
        if tags and len(tags[0]) != len(words):
            raise ValueError(f"{where}: {len(words)} tokens and {len(tags[0])} tags; each token needs one tag")
        yield words, tags[0] if tags else [], [number] * len(words)


def _checked_tags(path: Path, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Returns the tags of the training file, `O` first."""
    for words, tags, numbers in sentences:
        for word, tag, number in zip(words, tags, numbers, strict=True):
            if not is_tag(tag):
                raise ValueError(f"{path}, line {number}: the tag {tag!r} of {word!r} is not O, B-TYPE or I-TYPE")
    found = {tag for _, tags, _ in sentences for tag in tags} - {OUTSIDE}
    if not found:
        raise ValueError(f"{path}: all tags are {OUTSIDE}; there is no entity to learn from")
    return (OUTSIDE, *sorted(found))


def _check_known(path: Path, sentences: Sequence[Sentence], known: Sequence[str]) -> None:
    for words, tags, numbers in sentences:
        for word, tag, number in zip(words, tags, numbers, strict=True):
            if tag not in known:
                raise ValueError(
                    f"{path}, line {number}: the tag {tag!r} of {word!r} is none of the training file's, "
                    f"{', '.join(known)}"
                )


def _dataset(sentences: Sequence[Sentence], tagged: bool) -> Dataset:
    columns: dict[str, Any] = {
        "text_a": [" ".join(words) for words, _, _ in sentences],
        "tokens": [words for words, _, _ in sentences],
        "index": list(range(len(sentences))),
    }
    return rows_of(columns | ({"tags": [tags for _, tags, _ in sentences]} if tagged else {}))
