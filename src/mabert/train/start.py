"""What a pretraining goes on from: the model of a folder or of the hub, in place of random weights."""

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from mabert.baselines.load import load, load_config, refuse_quantized
from mabert.baselines.registry import family_of
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.train.recipe import PretrainRecipe, check_packing


def started_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """The configuration of the model that a run starts from, with what the recipe changes.

    Raises:
        ValueError: If it is of another family, the tokenizer another than its own or larger than its vocabulary, or a
            change cannot be.
    """
    start = str(recipe.start_from)
    config = load_config(start)
    if (family := family_of(config)).name != recipe.architecture:
        raise ValueError(f"architecture is {recipe.architecture!r}, and {start} is a {family.name}")
    changes = family.own_dropout(recipe.model)
    if family.name == "mabert":
        changes["unpad"] = recipe.training.unpad
    try:
        config = load_config(start, **changes)
    except ValueError as error:
        raise ValueError(f"the recipe's model fields do not go with {start}: {error}") from error
    refuse_quantized(start)
    if fingerprint(tokenizer) != fingerprint(load_tokenizer(start)):
        raise ValueError(f"the tokenizer is not the one in {start}, whose ids the weights there are trained for")
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} entries, the vocabulary of {start} {config.vocab_size}")
    check_packing(recipe.training.packing, config)
    return config


def started_model(start: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The model in a folder or on the hub, in float32, with its masked language model's head.

    Raises:
        FileNotFoundError: As `load`.
        ValueError: As `load`, and where it has a head of another kind than its family's here.
    """
    model, family = load("masked_lm", start, config=config, dtype=torch.float32), family_of(config)
    if not hasattr(model, family.head):
        raise ValueError(f"{start} has another head than {family.title}'s here (no {family.head!r} in it)")
    return model
