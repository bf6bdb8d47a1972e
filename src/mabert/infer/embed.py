"""One vector per text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mabert.infer.model import load


def embed(
    path: str | Path, texts: Sequence[str], *, precision: str | None = None, device: str | None = None, **how: Any
) -> np.ndarray:
    """Returns vectors of texts from a model that is opened for this call alone.

    Args:
        path: Model folder or hub name.
        texts: Any number of texts.
        precision: As for `mabert.load`.
        device: As for `mabert.load`.
        how: As for `TextModel.embed`.

    Returns:
        float32 (texts, D).

    Raises:
        FileNotFoundError: As `mabert.load`.
        ValueError: As `mabert.load` and `TextModel.embed`.
    """
    return load(path, precision=precision, device=device).embed(texts, **how)
