"""What a fine-tuning task is, whatever its texts come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from datasets import Dataset


Rows: TypeAlias = "Dataset"
"""Examples of a task, as `load_glue` and `load_own` give them: columns by name. `text_a`, `text_b` for pairs, `label`
where it is known, `index`; of tagged sentences `tokens` and `tags` beside `text_a`."""


def rows_of(columns: Mapping[str, Any]) -> Dataset:
    """Makes examples of columns, as the loaders do."""
    from datasets import Dataset

    return Dataset.from_dict(dict(columns))


def column(rows: Rows, name: str) -> list[Any]:
    """Reads a column's values at once, in the order of the rows: row by row is some fifty times slower."""
    return list(rows[name][:])


@dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    Attributes:
        name: its short name.
        label_names: the classes or tags in the order of their ids; empty where there are none.
        metrics: names of the metrics it is measured by.
        main_metric: the one that models are compared by.
        kind: what an example is labelled with, one of `mabert.train.kinds.KINDS`.
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
        """The class that F1 is of, the last one; None where F1 is no metric of the task."""
        return self.label_names[-1] if self.kind == "classification" and "f1" in self.metrics else None


def label_text(value: Any, where: str) -> str:
    """Returns a label as text: JSON and Parquet have numbers and truth values where CSV has text.

    Raises ValueError, which names `where` (file, line and column), for no label, and for more than one value.
    """
    if not isinstance(value, str | bool | int | float | Decimal):
        raise ValueError(f"{where} is {value!r:.60}; a label is one text or number")
    if not str(value).strip() or value != value:  # NaN is how tables write that there is none
        raise ValueError(f"{where} is {value!r}, which is no label; give the row one, or leave it out")
    return str(value)


def row_label(task: Task, spelled: Sequence[str], value: str, where: str) -> int | float:
    """Reads the label of one row: a score, or the place of `value` in `spelled`.

    Raises ValueError, which names `where`, for what is no finite number (regression) or none of the classes.
    """
    if not task.is_regression:
        if value not in spelled:
            raise ValueError(f"{where}: unknown label {value!r}; known are {', '.join(spelled)}")
        return spelled.index(value)
    try:
        score = float(value)
    except ValueError:
        raise ValueError(f"{where}: the score {value!r} is not a number") from None
    if not math.isfinite(score):
        raise ValueError(f"{where}: the score {value!r} is not a finite number")
    return score
