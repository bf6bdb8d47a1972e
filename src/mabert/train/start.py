"""The initial model of a pretraining: random weights, or a model from a folder or the hub."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from mabert.baselines.registry import family_named, family_of
from mabert.baselines.uses import build
from mabert.data.tokenizer import fingerprint
from mabert.machine.precision import resolve_precision
from mabert.model import MaBertConfig
from mabert.opening.opened import Opened
from mabert.train.recipe import PretrainRecipe, check_packing, unpad_of


def model_config(
    recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, start: Opened | None = None
) -> PreTrainedConfig:
    """Returns the configuration of the recipe's new model, or of the model that it starts from.

    Args:
        recipe: The recipe.
        tokenizer: The run's tokenizer.
        start: The model that the run starts from; None for random weights.

    Raises:
        ValueError: If a stage is longer than the positions, the vocabulary does not fit the tokenizer, the model to
            start from is of another family, or the fields make no valid model.
    """
    config = new_config(recipe, tokenizer) if start is None else started_config(recipe, tokenizer, start)
    check_packing(recipe.training.packing, config)
    if isinstance(config, MaBertConfig):
        config.unpad = unpad_of(recipe.training.packing)
    longest, limit = max(stage.length for stage in recipe.stages), family_of(config).longest(config)
    if limit is not None and longest > limit:
        more = f"; `mabert extend {start.place}` gives it more" if start is not None else ""
        raise ValueError(f"a stage has windows of {longest} tokens, model.max_position_embeddings is {limit}{more}")
    return config


def new_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """Returns the configuration of a new model; errors are those of `model_config`."""
    family, asked = family_named(recipe.architecture), dict(recipe.model)
    size = asked.pop("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise ValueError(f"model.vocab_size is {size}, the tokenizer has {len(tokenizer)} entries")
    if "unpad" in asked:
        raise ValueError("model.unpad is set by the run; training.packing says how padding is dealt with")
    of_run: dict[str, Any] = family.special_ids(tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    for name, value in of_run.items():
        if asked.get(name, value) != value:
            raise ValueError(f"model.{name} is {asked[name]}; it must be the tokenizer's, {value}")
    config = family.config_of(asked, vocab_size=size, **of_run)
    with torch.device("meta"):
        # Building the model finds errors that a configuration cannot, before hours of tokenising.
        try:
            getattr(build("masked_lm", config), family.head)
        except (AssertionError, AttributeError) as error:
            raise ValueError(f"model: these fields make no {family.title}: {error}") from error
    return config


def started_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, start: Opened) -> PreTrainedConfig:
    """Returns the configuration of the starting model with the recipe's changes; raises what `model_config` does."""
    place, family = start.place, start.family
    if family.name != recipe.architecture:
        raise ValueError(f"architecture is {recipe.architecture!r}, and {place} is a {family.name}")
    try:
        config = start.changed(**family.own_dropout(recipe.model)).config
    except ValueError as error:
        raise ValueError(f"the recipe's model fields do not go with {place}: {error}") from error
    start.refuse_quantized()
    if fingerprint(tokenizer) != fingerprint(start.tokenizer):
        raise ValueError(f"the tokenizer is not the one in {place}, whose ids the weights there are trained for")
    return config


def bytes_of_batch(recipe: PretrainRecipe, config: PreTrainedConfig) -> int:
    """Estimates the minimum bytes that the backward pass of one micro-batch needs.

    Each layer keeps the inputs of itself and its sub-layers, queries, keys and values or their like, their output, and
    the feed-forward network's inner activations twice; with checkpointing, only its own input. Windows of single
    documents count as one token, since they may be of any length.
    """
    training, width = recipe.training, config.hidden_size
    length = max(stage.length for stage in recipe.stages) if recipe.data.windows == "packed" else 1
    kept = width if training.gradient_checkpointing else 6 * width + 2 * config.intermediate_size
    each = 2 if resolve_precision(training.precision) == "bf16" else 4
    return training.micro_batch_size * length * config.num_hidden_layers * kept * each


def started_model(start: Opened) -> PreTrainedModel:
    """Loads a model with its masked-language-model head in float32; errors are those of `Opened.model`."""
    model = start.model("masked_lm", torch.float32)
    if not hasattr(model, start.family.head):
        raise ValueError(
            f"{start.place} has another head than {start.family.title}'s here (no {start.family.head!r} in it)"
        )
    return model


def new_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model with random weights, ready for training."""
    return trained_by_mlm(build("masked_lm", config))


def trained_by_mlm(model: PreTrainedModel) -> PreTrainedModel:
    """Freezes the weights that the objective does not reach, and returns the model."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(part in name for part in family_of(model.config).unreached))
    return model
