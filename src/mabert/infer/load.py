"""A model and its tokenizer, which must fit each other."""

from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mabert.data.tokenizer import load_tokenizer
from mabert.model.load import load_model

Model = TypeVar("Model", bound=PreTrainedModel)


def load_for_use(kind: type[Model], path: str | Path) -> tuple[Model, PreTrainedTokenizerFast]:
    """A model and its tokenizer, which must fit each other.

    Raises:
        FileNotFoundError: As `load_model`.
        ValueError: As `load_model`, or if the tokenizer has ids that the model has not.
    """
    model = load_model(kind, path)
    tokenizer = load_tokenizer(str(path))
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {len(tokenizer)} entries, the model's vocabulary {model.config.vocab_size}"
        )
    return model, tokenizer
