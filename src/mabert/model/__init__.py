"""The model: configuration, encoder, heads; transformers' Auto classes learn of them when `mabert` is imported."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from mabert.model.config import SCHEDULES, MaBertConfig, expand_schedule
from mabert.model.encoder import MaBertModel, MaBertPreTrainedModel
from mabert.model.heads import (
    MaBertForMaskedLM,
    MaBertForMultipleChoice,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
)

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
    "expand_schedule",
    "register",
]


def register() -> None:
    """Makes `AutoModel.from_pretrained` and its kin know the model type `mabert`; a second call changes nothing."""
    AutoConfig.register(MaBertConfig.model_type, MaBertConfig, exist_ok=True)
    for auto, model in (
        (AutoModel, MaBertModel),
        (AutoModelForMaskedLM, MaBertForMaskedLM),
        (AutoModelForSequenceClassification, MaBertForSequenceClassification),
        (AutoModelForTokenClassification, MaBertForTokenClassification),
        (AutoModelForQuestionAnswering, MaBertForQuestionAnswering),
        (AutoModelForMultipleChoice, MaBertForMultipleChoice),
    ):
        auto.register(MaBertConfig, model, exist_ok=True)
