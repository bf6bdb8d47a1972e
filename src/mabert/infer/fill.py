"""The most likely tokens for each [MASK] of a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mabert.infer.model import load


def fill_mask(
    path: str | Path, texts: Sequence[str], *, precision: str | None = None, device: str | None = None, **how: Any
) -> list[list[list[dict[str, Any]]]]:
    """Guesses masked tokens with a model that is opened for this call alone.

    Args:
        path: Folder (or hub name) of a masked language model.
        texts: Texts with the tokenizer's mask token in them.
        precision: As for `mabert.load`.
        device: As for `mabert.load`.
        how: As for `TextModel.fill_mask`.

    Returns:
        As `TextModel.fill_mask`.

    Raises:
        FileNotFoundError: As `mabert.load`.
        ValueError: As `mabert.load` and `TextModel.fill_mask`.
    """
    return load(path, precision=precision, device=device).fill_mask(texts, **how)
