"""Opens this folder by the classes of the package mabert: pip install mabert."""

from mabert import (
    MaBertConfig,  # noqa: F401
    MaBertForMaskedLM,  # noqa: F401
    MaBertForMultipleChoice,  # noqa: F401
    MaBertForQuestionAnswering,  # noqa: F401
    MaBertForSequenceClassification,  # noqa: F401
    MaBertForTokenClassification,  # noqa: F401
    MaBertModel,  # noqa: F401
)
