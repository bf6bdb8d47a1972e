"""Loads models of any family with the requested head."""

from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from mabert import model as models
from mabert.baselines.registry import FAMILIES, family_of
from mabert.bounds import check_fields
from mabert.files.folders import CONFIG, config_fields
from mabert.files.reading import digest
from mabert.model import MaBertConfig
from mabert.model.config import in_words
from mabert.model.delta import FILE as DELTA
from mabert.model.load import LOADING, config_of_fields, load_model

Use = Literal["encoder", "masked_lm", "classifier", "tagger", "reader"]

HEADS: dict[Use, Any] = {
    "encoder": AutoModel,
    "masked_lm": AutoModelForMaskedLM,
    "classifier": AutoModelForSequenceClassification,
    "tagger": AutoModelForTokenClassification,
    "reader": AutoModelForQuestionAnswering,
}

POOLER = "pooler."
"""BERT's pooler for next-sentence prediction: masked language models lack it, but every encoder expects it."""


def load_config(path: str | Path, **changes: Any) -> PreTrainedConfig:
    """Loads the configuration of a model folder (or hub name) of any family.

    Args:
        path: The folder or name.
        changes: Fields that override the saved ones.

    Raises:
        FileNotFoundError: If there is no folder or no `config.json`.
        ValueError: If it is of no supported family, or a field has a wrong value.
    """
    fields = config_fields(path) | changes
    kind = fields.pop("model_type", None)
    if kind == MaBertConfig.model_type:
        return config_of_fields(path, fields)
    known = [family.model_type for family in FAMILIES.values()]
    if kind is None:
        raise ValueError(f"{Path(path) / CONFIG} has no model_type; those known are {', '.join(known)}")
    if kind not in known:
        raise ValueError(f"{path} holds a model of type {kind!r}; there are {', '.join(known)}")
    return config_of_kind(kind, path, fields)


def config_of_kind(kind: str, path: str | Path, fields: dict[str, Any]) -> PreTrainedConfig:
    """Makes the configuration of a transformers model type from the fields read from a folder.

    Raises:
        ValueError: If a field has a wrong value; names the file.
    """
    try:
        check_fields(fields)
        return AutoConfig.for_model(kind, **fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(f"{Path(path) / CONFIG}: {in_words(error)}") from error


def weights_digest(model: str | Path) -> str | None:
    """Returns a digest of a folder's weights, in one file or several; None for a hub model."""
    files = [file for name in ("model*.safetensors", DELTA) for file in sorted(Path(model).glob(name))]
    return "+".join(digest(file)[:16] for file in files) or None


def class_for(use: Use, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the model class of a family for a use."""
    return HEADS[use]._model_mapping[type(config)]


def saved_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the class a model was saved as if it is one of its family, else the encoder's class."""
    for name in config.architectures or ():
        kind: Any = getattr(models, name, None) or getattr(transformers, name, None)
        if getattr(kind, "config_class", None) is type(config) and issubclass(kind, PreTrainedModel):
            return kind
    return class_for("encoder", config)


def refuse_quantized(path: str | Path) -> None:
    """Raises ValueError if the weights are quantized: such a model can be used but not changed."""
    if config_fields(path).get("quantization_config") is not None:
        raise ValueError(
            f"{path} holds quantized weights, which can be neither trained nor extended; give the model they were made "
            "of"
        )


def check_vocabulary(path: str | Path, tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig) -> None:
    """Raises ValueError if the tokenizer has ids beyond the model's vocabulary."""
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {len(tokenizer)} entries, the model's vocabulary {config.vocab_size}"
        )


def load_as_saved(path: str | Path) -> PreTrainedModel:
    """Loads a model with the head it was saved with, in evaluation mode.

    Raises:
        FileNotFoundError: As `load`.
        ValueError: As `load`.
    """
    config = load_config(path)
    return ready(with_weights(saved_class(config), path, config))


def with_weights(
    kind: type[PreTrainedModel], path: str | Path, config: PreTrainedConfig, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Loads a model of a class, of which only an encoder's pooler may be missing there; errors are those of `load`."""
    drawn = (POOLER,) if kind is class_for("encoder", config) else ()
    return load_model(kind, path, config=config, dtype=dtype, drawn=drawn)


def ready(model: PreTrainedModel, hastened: bool = True) -> PreTrainedModel:
    """Returns the model after its family's `prepare` and, if wanted, `hasten`."""
    family = family_of(model.config)
    return family.hasten(family.prepare(model)) if hastened else family.prepare(model)


def build(use: Use, config: PreTrainedConfig, *, hastened: bool = True) -> PreTrainedModel:
    """Builds a model with random weights; `hastened` makes it faster without changing its outputs."""
    with LOADING:
        return ready(class_for(use, config)(config), hastened)


def compile_layers(model: PreTrainedModel) -> None:
    """Compiles a model's layers in place, each by itself: layers of a kind share what is compiled, whatever the batch's
    shape, and the state dict keeps its names."""
    # Layers share one count of what was compiled, and dynamo silently runs eagerly beyond eight.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile()


def load(
    use: Use, path: str | Path, *, config: PreTrainedConfig | None = None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Loads a model in evaluation mode, with every weight that the use needs from the checkpoint.

    Args:
        use: A key of `HEADS`.
        path: Model folder or hub name.
        config: Replaces the folder's own configuration.
        dtype: Dtype of the weights; default, as saved.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is of no supported family, its weights are damaged, or they lack what the use needs.
    """
    config = config or load_config(path)
    return ready(with_weights(class_for(use, config), path, config, dtype))


def saved_use(config: PreTrainedConfig) -> Use:
    """Returns the use of a saved model by the head in its `architectures`, else the encoder."""
    saved = config.architectures or ()
    there = (use for use, kinds in HEADS.items() if type(config) in kinds._model_mapping)
    return next((use for use in there if class_for(use, config).__name__ in saved), "encoder")


def logits_in(output: ModelOutput) -> torch.Tensor:
    """Returns the logits of a model output; for question answering, start and end logits as (batch, time, 2)."""
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), -1)
    return output.logits


def with_new_head(path: str | Path, config: PreTrainedConfig, use: Use = "classifier") -> PreTrainedModel:
    """Loads a checkpoint's encoder in float32 with a new random head, whatever head it was saved with.

    Args:
        path: Model folder or hub name.
        config: The model's configuration; its encoder part must match the checkpoint.
        use: A key of `HEADS`, such as `classifier`.

    Raises:
        FileNotFoundError: As `load`.
        ValueError: As `load`, or if the weights are quantized.
    """
    refuse_quantized(path)
    encoder = load("encoder", path, config=config, dtype=torch.float32)
    model = build(use, config)
    missing, unexpected = model.base_model.load_state_dict(encoder.state_dict(), strict=False)
    odd = [name for name in (*missing, *unexpected) if not name.startswith(POOLER)]
    if odd:
        raise ValueError(f"{path}: {type(encoder).__name__} and {type(model).__name__} differ in {odd[0]}")
    return model
