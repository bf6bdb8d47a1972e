"""A task from one's own files, of the kind that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mabert.data import files as on_disk
from mabert.data import rows
from mabert.data.squad import load_squad
from mabert.data.table import Columns, load_tables
from mabert.data.tagged import load_tagged
from mabert.data.task import Task

if TYPE_CHECKING:
    from datasets import Dataset

CONLL = (".conll", ".bio", ".iob", ".iob2")
"""Suffixes of files with a word and its tag a line."""


def load_own(
    files: Mapping[str, str | Path], columns: Columns, *, kind: str, name: str = "own"
) -> tuple[Task, dict[str, Dataset]]:
    """Loads a task; results and errors are those of the loader that its kind has.

    Args:
        files: path by split.
        columns: of a table of texts; the other kinds of files have names of their own.
        kind: a name in `mabert.train.kinds.KINDS`, see `recognized`.
        name: the task's name.
    """
    if kind == "tokens":
        return load_tagged(files, name=name)
    if kind == "answers":
        return load_squad(files, name=name)
    return load_tables(files, columns, kind=kind, name=name)


def recognized(path: Path, label: str) -> str:
    """Names the kind of task that a training file holds.

    Args:
        path: the file.
        label: its column of labels, where it is a table of texts.

    Returns:
        `answers` for `.json`, the form of SQuAD; `tokens` for a file of CoNLL by its suffix, and for JSONL whose first
        row has `tokens` and `tags`; `several` for JSONL whose first row has a list of labels; else `classification`,
        also for a pipe, which can be read but once.
    """
    kind = on_disk.kind(path)
    if kind == ".json":
        return "answers"
    if kind in CONLL:
        return "tokens"
    first = rows.first_row(path)
    if {"tokens", "tags"} <= first.keys():
        return "tokens"
    return "several" if isinstance(first.get(label), list) else "classification"
