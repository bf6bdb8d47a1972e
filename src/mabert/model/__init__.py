"""The model: configuration, encoder, heads. Importing this package registers them with transformers' Auto classes."""

import transformers

from mabert.model.config import CLASSES, SCHEDULES, MaBertConfig, expand_schedule
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
    "register_mixer",
]


def register() -> None:
    """Registers the model type `mabert` with `AutoModel.from_pretrained` and its kin; a second call changes nothing.

    It also fills transformers' tables of class names, which transformers reads to learn a class's task, such as which
    labels a model is trained with.
    """
    transformers.AutoConfig.register(MaBertConfig.model_type, MaBertConfig, exist_ok=True)
    for auto, name in CLASSES.items():
        if name != MaBertConfig.__name__:
            kinds = getattr(transformers, auto)
            kinds.register(MaBertConfig, globals()[name], exist_ok=True)
            kinds._model_mapping._model_mapping[MaBertConfig.model_type] = name


register()
register_named()
