"""The model: configuration, encoder, heads. Importing this package registers them with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
)
from transformers.models.auto import modeling_auto

from mabert.model.config import SCHEDULES, MaBertConfig, expand_schedule
from mabert.model.encoder import MaBertModel, MaBertPreTrainedModel
from mabert.model.heads import (
    MaBertForMaskedLM,
    MaBertForMultipleChoice,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
)
from mabert.model.mixers import register_mixer, register_named

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
    "register_mixer",
]


def register() -> None:
    """Registers the model type `mabert` with `AutoModel.from_pretrained` and its kin; a second call changes nothing.

    It also fills transformers' tables of class names, which transformers reads to learn a class's task, such as which
    labels a model is trained with.
    """
    AutoConfig.register(MaBertConfig.model_type, MaBertConfig, exist_ok=True)
    for auto, names, model in (
        (AutoModel, modeling_auto.MODEL_MAPPING_NAMES, MaBertModel),
        (AutoModelForTextEncoding, modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES, MaBertModel),
        (AutoModelForPreTraining, modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES, MaBertForMaskedLM),
        (AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, MaBertForMaskedLM),
        (
            AutoModelForSequenceClassification,
            modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
            MaBertForSequenceClassification,
        ),
        (
            AutoModelForTokenClassification,
            modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
            MaBertForTokenClassification,
        ),
        (
            AutoModelForQuestionAnswering,
            modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
            MaBertForQuestionAnswering,
        ),
        (
            AutoModelForMultipleChoice,
            modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
            MaBertForMultipleChoice,
        ),
    ):
        auto.register(MaBertConfig, model, exist_ok=True)
        names[MaBertConfig.model_type] = model.__name__


register()
register_named()
