"""MaBERT: a Transformer-Mamba hybrid encoder, exact under padding. Importing registers it with transformers."""

from typing import TYPE_CHECKING, Any

import mabert.baselines.attention  # noqa: F401 -- attn_implementation="mabert", for any encoder of transformers
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
from mabert.model.prepack import prepack
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
    "load",
    "prepack",
    "selective_scan",
]

if TYPE_CHECKING:
    from mabert.infer.model import load


def __getattr__(name: str) -> Any:
    """`load` on its first use: what it needs beside the models would make every import slower."""
    if name == "load":
        from mabert.infer.model import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
