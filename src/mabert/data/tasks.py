"""Tasks and their tables: what is learnt, and the rows that a table or files of a person hold."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mabert.data import LabelKind
from mabert.files import tables

if TYPE_CHECKING:
    from datasets import Dataset

Rows: TypeAlias = "Dataset"
"""Examples of a task, as `load_glue` and `load_own` return them, with columns `text_a`, `text_b` for pairs, `label` if
known, and `index`; tagged sentences also have `tokens` and `tags`."""


def as_rows(columns: Mapping[str, Any]) -> Rows:
    """Makes a data set of examples from columns."""
    from datasets import Dataset

    return Dataset.from_dict(dict(columns))


def column(rows: Rows, name: str) -> list[Any]:
    """Reads all values of a column, in row order; reading row by row is about fifty times slower."""
    return list(rows[name][:])


@dataclass(frozen=True)
class Task:
    """A fine-tuning task."""

    name: str
    label_names: tuple[str, ...]  # the classes or tags in the order of their ids; empty if there are none
    metrics: tuple[str, ...]
    main_metric: str  # the metric that models are compared by
    kind: LabelKind = "classification"

    @property
    def is_regression(self) -> bool:
        """Whether the labels are scores instead of classes."""
        return self.kind == "regression"

    @property
    def positive(self) -> str | None:
        """The class that F1 scores, the last one; None if F1 is not a metric of the task."""
        return self.label_names[-1] if self.kind == "classification" and "f1" in self.metrics else None


def label_text(value: Any, where: str) -> str:
    """Returns a label as text: JSON and Parquet also hold numbers and booleans, CSV only text.

    Raises a ValueError that names `where` (file, line and column) if there is no label, a number that is not finite, or
    more than one value.
    """
    if not isinstance(value, str | bool | int | float | Decimal):
        raise ValueError(f"{where} is {value!r:.60}; a label is one text or number")
    no_number = isinstance(value, float | Decimal) and not math.isfinite(value)  # tables write NaN for no label
    if no_number or not str(value).strip():
        raise ValueError(f"{where} is {value!r}, which is no label; give the row one, or leave it out")
    return str(value)


def row_label(task: Task, spelled: Sequence[str], value: str, where: str) -> int | float:
    """Reads the label of one row: a score, or the index of `value` in `spelled`.

    Raises a ValueError that names `where` if the label is not a finite number (regression) or not one of the classes.
    """
    if not task.is_regression:
        if value not in spelled:
            same = "".join(f"; {name!a} only looks like it" for name in spelled if alike((name, value)))
            raise ValueError(f"{where}: unknown label {value!r}; known are {', '.join(spelled)}{same}")
        return spelled.index(value)
    try:
        score = float(value)
    except ValueError:
        raise ValueError(f"{where}: the score {value!r} is not a number") from None
    if not math.isfinite(score):
        raise ValueError(f"{where}: the score {value!r} is not a finite number")
    return score


def appearance(text: str) -> str:
    """Returns a key that is equal for texts that look alike: that differ by white space around them, kind or number of
    spaces, letter case, invisible characters, or code points for the same characters (composed or not, full-width)."""
    # Variation selectors, as behind an emoji, and format characters are not seen.
    seen = "".join(c for c in text if not ("\ufe00" <= c <= "\ufe0f" or unicodedata.category(c) == "Cf"))
    folded = unicodedata.normalize("NFKC", seen).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def alike(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of two and more different texts that look alike, in the order of the first of each."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(appearance(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


LABEL_SEPARATOR = "|"
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
    """Reads tables; arguments and errors are those of `load_own`. Returns the task, and by split `text_a`, `text_b`
    (pairs only), `label` (class id or score; for multi-label tables 1.0 or 0.0 per class; not in `test`) and `index`
    (row number from 0)."""
    label = columns["train"].label
    if label is None:
        raise ValueError("no label column given; training needs one")
    if label in (columns["train"].text_a, columns["train"].text_b):
        raise ValueError(f"the column {label!r} is given as text and as label")
    of_row = label_texts if kind == "several" else label_text
    held = {split: _read(path, columns[split], None if split == "test" else of_row) for split, path in files.items()}
    if kind == "regression":
        label_names = ()
    elif label_names is None:
        label_names = _classes(files["train"], label, held["train"]["label"])
    task = table_task(name, label_names, several=kind == "several")
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
    for where, row in tables.read_rows(path, [*texts.values(), *([label] if label else [])]):
        for name, column in texts.items():
            data[name].append(tables.text_in(row, column, where))
        if label and of_row is not None:
            data["label"].append((of_row(row[label], f"{where}: {label!r}"), where))
    if not data["text_a"]:
        raise ValueError(f"{path}: no rows")
    return data | {"index": list(range(len(data["text_a"])))}


def _label(task: Task, found: Any, where: str) -> Any:
    if task.kind != "several":
        return row_label(task, task.label_names, found, where)
    ids = {row_label(task, task.label_names, name, where) for name in found}
    return [float(place in ids) for place in range(len(task.label_names))]


def label_texts(value: Any, where: str) -> list[str]:
    """Returns the labels of a row, possibly none; errors are those of `label_text`."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(LABEL_SEPARATOR)] if value.strip() else []
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
