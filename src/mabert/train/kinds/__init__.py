"""Kinds of fine-tuning tasks, each in a file of its own: its head, its columns, its metric."""

from mabert.data.task import Task
from mabert.train.kinds.answers import Answers
from mabert.train.kinds.classification import Classification
from mabert.train.kinds.kind import Kind
from mabert.train.kinds.regression import Regression
from mabert.train.kinds.several import Several
from mabert.train.kinds.tokens import Tokens

KINDS: dict[str, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
    "several": Several,
    "tokens": Tokens,
    "answers": Answers,
}
"""Kinds by the names that tasks have for them."""


def kind_of(task: Task) -> Kind:
    """The kind of a task, ready for it."""
    return KINDS[task.kind](task)
