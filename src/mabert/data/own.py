"""Loads a fine-tuning task from the user's own files."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mabert.data import LabelKind
from mabert.data.entities import CONLL, read_tagged, types_of
from mabert.data.squad import read_squad
from mabert.data.tasks import Columns, Rows, Task, alike, as_rows, column, read_tables
from mabert.files import tables
from mabert.files.places import expanded
from mabert.schema.check import check

logger = logging.getLogger(__name__)


def load_own(
    files: Mapping[str, str | Path],
    columns: Columns | Mapping[str, Columns] | None = None,
    *,
    kind: LabelKind = "classification",
    name: str = "own",
    label_names: Sequence[str] | None = None,
    hold_out: float = 0.1,
    seed: int = 0,
) -> tuple[Task, dict[str, Rows]]:
    """Loads a task from the user's own files. Logs a warning with the labels, if any, that look alike.

    Args:
        files: path by split. `train` is required; without `validation`, part of `train` is held out for it; `test` is
            optional and needs no labels.
        columns: column names of a table of texts, for all files or by split; other kinds of files have fixed names.
        kind: kind of task, see `recognized`. A table of texts is `classification`, `regression` if the labels are
            scores, or `several` if a row has any number of labels, as a list (JSONL, Parquet) or as text, `a|b`. See
            `read_tagged` for `tokens`, and `read_squad` for `answers`.
        name: the task's name.
        label_names: the classes of a table in the order of their ids; of two, `f1` scores the last. Default, those of
            the training file, in numeric order if all are whole numbers, else in alphabetical order.
        hold_out: share of the training rows held out if `files` names no validation file. The only row of a class or
            tag stays in training, and another one is held out.
        seed: chooses the rows held out.

    Returns:
        The task, and by split a data set with `text_a`, `index` (row number from 0) and, depending on the kind,
        `text_b` and columns of labels; `test` has no labels.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, damaged, of an unknown kind or not UTF-8, a column or value is missing, a label is
            unknown, there is nothing to learn, or a share is out of range.
    """
    check(LabelKind, kind, "kind")
    if "train" not in files:
        raise ValueError("no training file given")
    paths = {split: expanded(path) for split, path in files.items()}
    if kind == "tokens":
        task, held = read_tagged(paths, name)
    elif kind == "answers":
        task, held = read_squad(paths, name)
    else:
        by_split = columns if isinstance(columns, Mapping) else dict.fromkeys(paths, columns or Columns("text"))
        task, held = read_tables(paths, by_split, name, kind, label_names)
    if groups := alike(types_of(task.label_names) if kind == "tokens" else task.label_names):
        written = "; ".join(" and ".join(map(ascii, group)) for group in groups)
        logger.warning("%s: labels that look alike are classes of their own: %s", paths["train"], written)
    loaded = {split: as_rows(content) for split, content in held.items()}
    if "validation" not in loaded:
        train = loaded["train"]
        count = round(hold_out * len(train))
        if not 0 < count < len(train):
            raise ValueError(f"holding {hold_out:g} of {len(train)} rows out takes none or all; give a validation file")
        order = np.random.default_rng(seed).permutation(len(train)).tolist()
        held_out = set(rows_to_hold_out(task, train, order, count))
        logger.info("held %d of the training rows out for validation", len(held_out))
        loaded["train"] = train.select([row for row in range(len(train)) if row not in held_out])
        loaded["validation"] = train.select(sorted(held_out))
    return task, loaded


def rows_to_hold_out(task: Task, train: Rows, order: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` rows in the given order, skipping a row if a class (a label, or a tag of `tags`) would have
    no other example left.

    If that skips all rows, the first ones are taken, and a warning names the classes that training lacks.
    """
    classes = _classes_of(task, train)
    left = Counter(name for names in classes for name in names)
    found: list[int] = []
    for row in order:
        if len(found) < count and all(left[name] > 1 for name in classes[row]):
            left.subtract(classes[row])
            found.append(row)
    if found:
        return found
    taken = Counter(name for row in order[:count] for name in classes[row])
    lost = [name for name in sorted(taken) if taken[name] == left[name]]
    logger.warning("each row is the only one of a class; training goes without %s", ", ".join(map(repr, lost)))
    return list(order[:count])


def _classes_of(task: Task, train: Rows) -> list[set[str]]:
    """Returns the classes or tags of each row; none for scores and answers."""
    if task.kind == "tokens":
        return [set(tags) for tags in column(train, "tags")]
    if not task.label_names:
        return [set()] * len(train)
    labels = column(train, "label")
    if task.kind == "several":
        return [{name for name, has in zip(task.label_names, row, strict=True) if has} for row in labels]
    return [{task.label_names[label]} for label in labels]


def recognized(path: Path, label: str) -> LabelKind:
    """Names the kind of task that a training file holds; `label` is the column of labels if it is a table of texts.

    That is `answers` for `.json` (SQuAD's format); `tokens` for the suffix of a CoNLL file, and for JSONL whose first
    row has `tokens` and `tags`; `several` for JSONL whose first row has a list of labels; else `classification`, also
    for a pipe, because it can be read only once.
    """
    kind = tables.format_of(path)
    if kind == ".json":
        return "answers"
    if kind in CONLL:
        return "tokens"
    first = tables.first_row(path)
    if {"tokens", "tags"} <= first.keys():
        return "tokens"
    return "several" if isinstance(first.get(label), list) else "classification"
