"""Kinds of fine-tuning tasks, each in a file of its own: its head, its columns, its metric."""

from mabert.data.task import Task
from mabert.train.kinds.classification import Classification
from mabert.train.kinds.kind import Kind
from mabert.train.kinds.regression import Regression

KINDS: dict[str, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
}


def kind_of(task: Task) -> Kind:
    """The kind of a task, ready for it."""
    return KINDS["regression" if task.is_regression else "classification"](task)
