"""A model ready for use: with its tokenizer, which must fit it, on its device, and with the length it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mabert.baselines.family import Family
from mabert.baselines.load import Use, load
from mabert.baselines.registry import family_of
from mabert.data.encode import encode_texts
from mabert.data.tokenizer import load_tokenizer

Model = TypeVar("Model", bound=PreTrainedModel)


@dataclass(frozen=True)
class Loaded(Generic[Model]):
    """A model and what it needs beside it.

    Attributes:
        model: In evaluation mode, on a GPU if there is one.
        tokenizer: The model's.
    """

    model: Model
    tokenizer: PreTrainedTokenizerFast

    @property
    def family(self) -> Family:
        """What kind of model it is."""
        return family_of(self.model.config)

    @property
    def longest(self) -> int | None:
        """Tokens that the model has positions for; None for any number."""
        return self.family.longest(self.model.config)

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncate: bool = False,
    ) -> list[dict[str, list[int]]]:
        """Texts as fine-tuning encodes them.

        Args:
            texts: The texts, or the first of each pair.
            pairs: The second of each pair.
            max_length: Tokens at most. By default those the model has positions for; a model without learned positions
                takes any number, and is cut at its `max_position_embeddings` where cutting is asked for.
            truncate: Whether to cut what is longer; otherwise it is an error.

        Raises:
            ValueError: If texts are too long, or `max_length` is more than the model has positions for.
        """
        longest = self.longest
        if max_length is None:
            max_length = self.model.config.max_position_embeddings if longest is None and truncate else longest
        if longest is not None and max_length > longest:
            raise ValueError(f"max_length is {max_length}, the model has positions for {longest} tokens")
        return encode_texts(self.tokenizer, texts, pairs, max_length=max_length, truncate=truncate)


def load_for_use(use: Use, path: str | Path) -> Loaded[Any]:
    """Loads a model of any family and its tokenizer.

    Args:
        use: What for, see `mabert.baselines.load.load`.
        path: Folder or hub name.

    Raises:
        FileNotFoundError: As `load`.
        ValueError: As `load`, or if the tokenizer has ids that the model has not.
    """
    model = load(use, path)
    tokenizer = load_tokenizer(str(path))
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {len(tokenizer)} entries, the model's vocabulary {model.config.vocab_size}"
        )
    return Loaded(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)


def check_at_least_one(**counts: int) -> None:
    """Raises ValueError for a count below 1, naming it."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
