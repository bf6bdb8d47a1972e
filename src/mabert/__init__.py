"""MaBERT: a Transformer-Mamba hybrid encoder, exact under padding. Importing registers it with transformers."""

from mabert.model import (
    SCHEDULES,
    MaBertConfig,
    MaBertForMaskedLM,
    MaBertForMultipleChoice,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
    MaBertModel,
    MaBertPreTrainedModel,
    register,
)
from mabert.ops import depthwise_conv1d, selective_scan

__version__ = "0.1.0"

__all__ = [
    "SCHEDULES",
    "MaBertConfig",
    "MaBertForMaskedLM",
    "MaBertForMultipleChoice",
    "MaBertForQuestionAnswering",
    "MaBertForSequenceClassification",
    "MaBertForTokenClassification",
    "MaBertModel",
    "MaBertPreTrainedModel",
    "__version__",
    "depthwise_conv1d",
    "selective_scan",
]

register()
