"""Kinds of fine-tuning tasks: head, columns and metrics."""

from mabert.data import LabelKind
from mabert.data.tasks import Task
from mabert.train.kinds.answers import Answers
from mabert.train.kinds.kind import Kind
from mabert.train.kinds.labels import Classification, Regression, Several
from mabert.train.kinds.tokens import Tokens

KINDS: dict[LabelKind, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
    "several": Several,
    "tokens": Tokens,
    "answers": Answers,
}
"""Kinds by `Task.kind`."""


def kind_of(task: Task) -> Kind:
    """Returns a task's kind."""
    return KINDS[task.kind](task)
