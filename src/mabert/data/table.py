"""A task from tables of texts with classes or scores: CSV, TSV, JSONL or Parquet with named columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from mabert.data import rows
from mabert.data.task import Task, label_text, row_label

BETWEEN = "|"
"""Separates several labels of a row that are written as one text."""


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns.

    Attributes:
        text_a: the text, or the first of a pair.
        text_b: the second text of a pair.
        label: the class or the score; None for tables without labels.
    """

    text_a: str
    text_b: str | None = None
    label: str | None = None


def read_tables(
    files: Mapping[str, Path],
    columns: Mapping[str, Columns],
    name: str,
    kind: str = "classification",
    label_names: Sequence[str] | None = None,
) -> tuple[Task, dict[str, dict[str, list[Any]]]]:
    """Reads tables; arguments and errors are those of `load_own`.

    Returns:
        The task, and by split `text_a`, `text_b` (pairs only), `label` (class id or score; for multi-label tables 1.0
        or 0.0 per class; not in `test`) and `index` (row number from 0).
    """
    label = columns["train"].label
    if label is None:
        raise ValueError("no label column given; training needs one")
    if label in (columns["train"].text_a, columns["train"].text_b):
        raise ValueError(f"the column {label!r} is given as text and as label")
    of_row = label_texts if kind == "several" else label_text
    held = {split: _read(path, columns[split], None if split == "test" else of_row) for split, path in files.items()}
    if label_names is None and kind != "regression":
        label_names = _classes(files["train"], label, held["train"]["label"])
    task = table_task(
        name, () if kind == "regression" or label_names is None else label_names, several=kind == "several"
    )
    for content in held.values():
        if "label" in content:
            content["label"] = [_label(task, found, where) for found, where in content["label"]]
    return task, held


def table_task(name: str, label_names: Sequence[str], several: bool = False) -> Task:
    """Makes the task of a table: these classes, of which a row may have `several`, or scores if there are none.

    With two classes, `f1` is that of the last one (`Task.positive`), and `f1_macro` is the mean of both.
    """
    if not len(label_names):
        return Task(name, (), ("pearson", "spearman", "correlation"), "correlation", "regression")
    if several:
        return Task(name, tuple(label_names), ("f1_micro", "f1_macro", "accuracy"), "f1_micro", "several")
    f1 = ("f1", "f1_macro") if len(label_names) == 2 else ("f1_macro",)
    return Task(name, tuple(label_names), ("accuracy", *f1, "matthews_correlation"), "accuracy")


def _read(path: Path, columns: Columns, of_row: Callable[[Any, str], Any] | None) -> dict[str, list[Any]]:
    """Reads a table in one pass, because it may be a pipe. Each label becomes (`of_row` of it, its place); without
    `of_row` labels are left out."""
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


def _label(task: Task, found: Any, where: str) -> Any:
    if task.kind != "several":
        return row_label(task, task.label_names, found, where)
    ids = {row_label(task, task.label_names, name, where) for name in found}
    return [float(place in ids) for place in range(task.num_labels)]


def label_texts(value: Any, where: str) -> list[str]:
    """Returns the labels of a row, possibly none; errors are those of `label_text`."""
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
