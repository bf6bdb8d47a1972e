"""One vector a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mabert.infer.model import load


def embed(
    path: str | Path, texts: Sequence[str], *, precision: str | None = None, device: str | None = None, **how: Any
) -> np.ndarray:
    """Vectors of texts by a model that is opened for them alone.

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
