"""Models by use: the head that each needs, made at random or as its configuration was saved."""

import threading
from typing import Any, Literal

import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from mabert import model as models
from mabert.baselines.registry import family_of
from mabert.data import LabelKind
from mabert.files.places import head_of
from mabert.schema import SEVERAL

Use = Literal["encoder", "masked_lm", "classifier", "tagger", "reader"]

AUTO_CLASSES: dict[Use, Any] = {
    "encoder": AutoModel,
    "masked_lm": AutoModelForMaskedLM,
    "classifier": AutoModelForSequenceClassification,
    "tagger": AutoModelForTokenClassification,
    "reader": AutoModelForQuestionAnswering,
}

HEADS: dict[str, Use] = {
    "": "encoder",
    "MaskedLM": "masked_lm",
    "SequenceClassification": "classifier",
    "TokenClassification": "tagger",
    "QuestionAnswering": "reader",
}
"""Uses by the head in the name of a model's class."""

LOADING = threading.RLock()
"""Held while a model is made, because transformers then changes state of the whole process: its verbosity, the default
dtype, and whether weights are initialized and tied."""


def class_for(use: Use, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the model class of a family for a use."""
    return AUTO_CLASSES[use]._model_mapping[type(config)]


def saved_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the class a model was saved as if it is one of its family, else the encoder's class."""
    for name in config.architectures or ():
        kind: Any = getattr(models, name, None) or getattr(transformers, name, None)
        if getattr(kind, "config_class", None) is type(config) and issubclass(kind, PreTrainedModel):
            return kind
    return class_for("encoder", config)


def saved_use(config: PreTrainedConfig) -> Use:
    """Returns the use of a saved model by the head of `saved_class`, else the encoder."""
    return HEADS.get(head_of(saved_class(config).__name__), "encoder")


def kind_of_labels(config: PreTrainedConfig) -> LabelKind:
    """Returns what the logits of a classifier of sequences mean: `several` labels, `regression` or `classification`."""
    if config.problem_type == SEVERAL:
        return "several"
    return "regression" if config.problem_type == "regression" or config.num_labels == 1 else "classification"


def ready(model: PreTrainedModel, fast: bool = True) -> PreTrainedModel:
    """Returns the model after its family's `prepare` and, if wanted, `speed_up`."""
    family = family_of(model.config)
    return family.speed_up(family.prepare(model)) if fast else family.prepare(model)


def build(use: Use, config: PreTrainedConfig, *, fast: bool = True) -> PreTrainedModel:
    """Builds a model with random weights; `fast` makes it faster without changing its outputs."""
    with LOADING:
        return ready(class_for(use, config)(config), fast)


def compile_layers(model: PreTrainedModel) -> None:
    """Compiles a model's layers in place, each by itself: layers of a kind share what is compiled, whatever the batch's
    shape, and the state dict keeps its names."""
    # Layers share one count of what was compiled, and dynamo silently runs eagerly beyond eight.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile()


def logits_in(output: ModelOutput) -> torch.Tensor:
    """Returns the logits of a model output; for question answering, start and end logits as (batch, time, 2)."""
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), -1)
    return output.logits
