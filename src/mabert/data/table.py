"""A task from one's own tables of texts with classes or scores: CSV, TSV, JSONL or Parquet with named columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mabert.data import rows
from mabert.data.task import Task, held_out, label_text, row_label, rows_of

if TYPE_CHECKING:
    from datasets import Dataset


BETWEEN = "|"
"""What stands between several labels of a row where they are one text."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what.

    Attributes:
        text_a: the text, or the first of a pair.
        text_b: the second text of a pair.
        label: the class or the score; None where nothing is labelled.
    """

    text_a: str
    text_b: str | None = None
    label: str | None = None


def load_tables(
    files: Mapping[str, str | Path],
    columns: Columns | Mapping[str, Columns],
    *,
    name: str = "table",
    label_names: Sequence[str] | None = None,
    kind: str = "classification",
    hold_out: float = 0.1,
    seed: int = 0,
) -> tuple[Task, dict[str, Dataset]]:
    """Loads a task from files of one's own.

    Args:
        files: path by split. `train` is required; `validation` is held out of it where it is missing; `test` may be
            there, and needs no label column.
        columns: the columns' names, the same in every file or by split.
        name: the task's name.
        label_names: the classes in the order of their ids; of two, `f1` is of the last. By default those of the
            training file, in numeric order where all are whole numbers, in alphabetical order otherwise.
        kind: `classification`; `regression` where the labels are scores; `several` where a row has any number of them,
            as a list (JSONL, Parquet) or as text, `a|b`.
        hold_out: share of the training rows held out where `files` names no validation file.
        seed: chooses the rows held out.

    Returns:
        The task, and by split a data set with `text_a`, `text_b` (pairs only), `label` (class id or score; of several
        labels 1.0 or 0.0 for each; not in `test`) and `index` (row number from 0).

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, of an unknown kind or not UTF-8, a column or value is missing, a label is unknown,
            there is but one class, or none, or a share is out of range.
    """
    if "train" not in files:
        raise ValueError("no training table given")
    by_split = dict.fromkeys(files, columns) if isinstance(columns, Columns) else columns
    label = by_split["train"].label
    if label is None:
        raise ValueError("no label column given; training needs one")
    if label in (by_split["train"].text_a, by_split["train"].text_b):
        raise ValueError(f"the column {label!r} is given as text and as label")
    of_row = label_texts if kind == "several" else label_text
    held = {
        split: _read(Path(path).expanduser(), by_split[split], None if split == "test" else of_row)
        for split, path in files.items()
    }
    if label_names is None and kind != "regression":
        label_names = _classes(Path(files["train"]), label, held["train"]["label"])
    task = table_task(name, () if kind == "regression" else label_names or (), several=kind == "several")
    loaded = {split: _dataset(task, columns) for split, columns in held.items()}
    if "validation" not in loaded:
        loaded["train"], loaded["validation"] = held_out(loaded["train"], hold_out, seed)
    return task, loaded


def table_task(name: str, label_names: Sequence[str], several: bool = False) -> Task:
    """Makes the task of tables with these classes, of which a row may have `several`, or with scores where there are
    none.

    Two classes are measured by `f1`, which is of the last one (`Task.positive`), and by `f1_macro`, the mean of both.
    """
    if not label_names:
        return Task(name, (), ("pearson", "spearman", "correlation"), "correlation", "regression")
    if several:
        return Task(name, tuple(label_names), ("f1_micro", "f1_macro", "accuracy"), "f1_micro", "several")
    f1 = ("f1", "f1_macro") if len(label_names) == 2 else ("f1_macro",)
    return Task(name, tuple(label_names), ("accuracy", *f1, "matthews_correlation"), "accuracy")


def _read(path: Path, columns: Columns, of_row: Callable[[Any, str], Any] | None) -> dict[str, list[Any]]:
    """Reads the columns of a table, once, since it may be a pipe; each label is (what `of_row` makes of it, where it
    stands), and is left out where that is None."""
    label = columns.label if of_row is not None else None
    texts = {"text_a": columns.text_a} | ({"text_b": columns.text_b} if columns.text_b else {})
    data: dict[str, list[Any]] = {name: [] for name in (*texts, *(["label"] if label else []))}
    for number, row in rows.read_rows(path, [*texts.values(), *([label] if label else [])]):
        where = f"{path}, line {number}"
        for name, column in texts.items():
            data[name].append(rows.text_in(row, column, where))
        if label and of_row is not None:
            data["label"].append((of_row(row[label], f"{where}: {label!r}"), where))
    if not data["text_a"]:
        raise ValueError(f"{path}: no rows")
    return data | {"index": list(range(len(data["text_a"])))}


def _dataset(task: Task, columns: dict[str, list[Any]]) -> Dataset:
    labels: list[Any] = []
    for found, where in columns.get("label", ()):
        if task.kind == "several":
            ids = {row_label(task, task.label_names, name, where) for name in found}
            labels.append([float(place in ids) for place in range(task.num_labels)])
        else:
            labels.append(row_label(task, task.label_names, found, where))
    return rows_of(columns | ({"label": labels} if labels else {}))


def label_texts(value: Any, where: str) -> list[str]:
    """Returns the labels of a row, of which there may be none; errors are those of `label_text`."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(BETWEEN)] if value.strip() else []
    return [label_text(name, where) for name in (value if isinstance(value, list) else [value])]


def _classes(path: Path, column: str, labels: Sequence[tuple[str | list[str], str]]) -> tuple[str, ...]:
    found = {name for names, _ in labels for name in ([names] if isinstance(names, str) else names)}
    if not found:
        raise ValueError(f"{path}: all lists of labels in {column!r} are empty; there is nothing to learn from")
    if len(found) < 2:
        raise ValueError(
            f"{path}: all labels in {column!r} are {next(iter(found))!r}; a classifier needs at least two classes"
        )
    if all(name.removeprefix("-").isdecimal() for name in found):
        return tuple(sorted(found, key=lambda name: (Decimal(name), name)))  # 1 and 01 are two classes
    return tuple(sorted(found))
