"""Fine-tuning tasks, wherever their texts come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from mabert.data.alike import alike

if TYPE_CHECKING:
    from datasets import Dataset


Rows: TypeAlias = "Dataset"
"""Examples of a task, as `load_glue` and `load_own` return them, with columns `text_a`, `text_b` for pairs, `label` if
known, and `index`; tagged sentences also have `tokens` and `tags`."""


def rows_of(columns: Mapping[str, Any]) -> Dataset:
    """Makes a data set of examples from columns."""
    from datasets import Dataset

    return Dataset.from_dict(dict(columns))


def column(rows: Rows, name: str) -> list[Any]:
    """Reads all values of a column, in row order; reading row by row is about fifty times slower."""
    return list(rows[name][:])


@dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    Attributes:
        name: its short name.
        label_names: the classes or tags in the order of their ids; empty if there are none.
        metrics: names of its metrics.
        main_metric: the metric that models are compared by.
        kind: form of the labels, a key of `mabert.train.kinds.KINDS`.
    """

    name: str
    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    main_metric: str
    kind: str = "classification"

    @property
    def is_regression(self) -> bool:
        """Whether the labels are scores instead of classes."""
        return self.kind == "regression"

    @property
    def num_labels(self) -> int:
        """Outputs of a model for this task: one per class, or a single score."""
        return len(self.label_names) or 1

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
