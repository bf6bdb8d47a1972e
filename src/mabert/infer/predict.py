"""One label (or number) per text or pair of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mabert.infer.model import load


def predict(
    path: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    precision: str | None = None,
    device: str | None = None,
    **how: Any,
) -> list[dict[str, Any]]:
    """Returns labels of texts from a model that is opened for this call alone.

    Args:
        path: Folder (or hub name) of a fine-tuned classifier.
        texts: Any number of texts, or the first of each pair.
        pairs: The second text of each pair, for a classifier of pairs.
        precision: As for `mabert.load`.
        device: As for `mabert.load`.
        how: As for `TextModel.predict`.

    Returns:
        As `TextModel.predict`.

    Raises:
        FileNotFoundError: As `mabert.load`.
        ValueError: As `mabert.load` and `TextModel.predict`.
    """
    return load(path, precision=precision, device=device).predict(texts, pairs, **how)
