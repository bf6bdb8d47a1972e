"""MaBERT: a Transformer-Mamba hybrid encoder, exact under padding. Importing registers it with transformers."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mabert.conversion.convert import convert
    from mabert.exporting import export
    from mabert.infer.model import load
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
        register_mixer,
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
    "convert",
    "depthwise_conv1d",
    "export",
    "load",
    "prepack",
    "register_mixer",
    "selective_scan",
]

_ELSEWHERE = {
    "convert": "mabert.conversion.convert",
    "export": "mabert.exporting",
    "load": "mabert.infer.model",
    "prepack": "mabert.model.prepack",
    "depthwise_conv1d": "mabert.ops",
    "selective_scan": "mabert.ops",
}
"""Modules that define public names; the other names are in `mabert.model`."""


def __getattr__(name: str) -> Any:
    """Imports a public name on first use: what `load` needs beyond the models would slow down every import."""
    if name in __all__:
        value = getattr(import_module(_ELSEWHERE.get(name, "mabert.model")), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The command line imports only what it runs, and nothing to print its help or refuse an option.
if "mabert_launch" not in sys.modules:
    import_module("mabert.baselines.attention")  # attn_implementation="mabert", for any encoder in transformers
    import_module("mabert.conversion.delta")  # folders of `mabert convert --delta`, and with it the models
