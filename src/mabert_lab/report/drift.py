"""What padding does to a text's vector: which regimes drift, and what cures them."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mabert_lab.report.document import MISSING, table

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre and post", "#2f6f8f", ":"),
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
        "by: the first masking that leaves nothing beyond that.",
        "Exact is a third mask in the Mamba layers, after the convolution; unpadded takes padding out of the batch.",
    ]
    tables = []
    for vector, title in VECTORS.items():
        found, cured = _farthest(result, vector), cures(result, vector)
        said = {"none": "no drift", None: "nothing"}
        rows = [
            (*situation, *map(written, far), said.get(cured[situation], cured[situation]))
            for situation, *far in found.itertuples()
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
    stable = _farthest(result, vector) < STABLE
    return {situation: next((each for each in MASKINGS if row[each]), None) for situation, row in stable.iterrows()}


def _farthest(result: Mapping[str, Any], vector: str) -> pd.DataFrame:
    """The largest distance of a vector, a row a situation and a column a masking; NaN where that was not measured."""
    rows = pd.DataFrame(result["rows"])
    rows["far"] = rows[vector].map(max)
    return rows.pivot_table("far", list(SITUATION), "masking", sort=False).reindex(columns=list(MASKINGS))


def written(value: float) -> str:
    """A cosine distance; 0 where it is no more than rounding."""
    return MISSING if math.isnan(value) else "0" if value < STABLE else f"{value:.2g}"
