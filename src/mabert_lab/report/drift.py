"""What padding does to a text's vector: which regimes drift, and what cures them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mabert_lab.report.document import MISSING, table

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre + post (the paper's)", "#2f6f8f", ":"),
    "exact": ("exact", "#5d8a4b", "-"),
    "unpadded": ("unpadded", "#1b2a38", "--"),
}
"""How each is called and drawn."""

VECTORS = {"cls": "[CLS]", "mean": "mean of tokens"}
SITUATIONS = (("right", "masked"), ("left", "masked"), ("right", "unmasked"), ("left", "unmasked"))
"""Side of the padding, and whether attention is masked; the first is what the paper's words say."""

STABLE = 1e-9
"""Cosine distance that rounding in float32 stays far below; what lies above is drift."""

SITUATION = ("weights", "direction", "conv", "side", "attention")
_HEAD = ("weights", "scan", "convolution", "padding", "attention")


def drift_tables(result: Mapping[str, Any], trained: bool = False) -> list[pd.DataFrame]:
    """The largest distance in every regime by masking, and the least that cures it, a table for each vector.

    Args:
        result: What `mabert study drift` wrote.
        trained: Whether only the regimes of trained weights are shown.
    """
    notes = [
        f"The largest over all lengths of padding; 0 stands for anything below {STABLE:g}, which is rounding. Cured "
        "by: the first masking that leaves nothing beyond that."
    ]
    tables = []
    for vector, title in VECTORS.items():
        rows = [
            (
                *situation,
                *(written(far.get(masking)) for masking in MASKINGS),
                {"none": "no drift", None: "nothing"}.get(_cure(far), _cure(far)),
            )
            for situation, far in _farthest(result, vector).items()
            if not trained or situation[0] == "trained"
        ]
        tables.append(table(f"Largest cosine distance, {title}", (*_HEAD, *MASKINGS, "cured by"), rows, notes))
    return tables


def cures(result: Mapping[str, Any], vector: str) -> dict[tuple[str, ...], str | None]:
    """The least masking under which a vector does not drift, by situation: weights, direction, conv, side, attention.

    Args:
        result: What `mabert study drift` wrote.
        vector: Of `VECTORS`.

    Returns:
        A name of `MASKINGS`, which are in order; ``none`` where nothing drifts, None where everything does.
    """
    return {situation: _cure(far) for situation, far in _farthest(result, vector).items()}


def _cure(far: Mapping[str, float]) -> str | None:
    return next((masking for masking in MASKINGS if far.get(masking, 1.0) < STABLE), None)


def _farthest(result: Mapping[str, Any], vector: str) -> dict[tuple[str, ...], dict[str, float]]:
    """The largest distance of a vector by situation and masking."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in result["rows"]:
        found.setdefault(tuple(row[key] for key in SITUATION), {})[row["masking"]] = max(row[vector])
    return found


def written(value: float | None) -> str:
    """A cosine distance; 0 where it is no more than rounding."""
    return MISSING if value is None else "0" if value < STABLE else f"{value:.2g}"
