"""The effect of padding on a text's vector: which regimes drift, and which maskings cure them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from mabert_lab.report.document import MISSING, table

Drift = Mapping[str, Any]
"""What `mabert study drift` wrote."""

Drifts = Sequence[tuple[str, Drift]]
"""Such results with the names of their files."""

MASKINGS = {
    "none": ("no mask", "#a33b3b", "-"),
    "pre": ("pre", "#d0803a", "--"),
    "post": ("post", "#8a4b7d", "-."),
    "pre+post": ("pre and post", "#2f6f8f", ":"),
    "exact": ("exact", "#5d8a4b", "-"),
    "unpadded": ("unpadded", "#1b2a38", "--"),
}
"""Label, colour and line style of each masking."""

VECTORS = {"cls": "[CLS]", "mean": "mean of tokens"}
SITUATIONS = (("right", "masked"), ("left", "masked"), ("right", "unmasked"), ("left", "unmasked"))
"""Side of the padding, and whether attention is masked; the first is what the paper's text says."""

STABLE = 1e-9
"""Cosine distances above this are drift; float32 rounding stays far below."""

SITUATION = ("weights", "direction", "conv", "side", "attention")
_HEAD = ("weights", "scan", "convolution", "padding", "attention")


def names_of(drifts: Drifts) -> list[str]:
    """Names each result by its model's folder, and by its file too where folders have the same name."""
    names = [PurePath((result.get("source") or {}).get("model") or file).name for file, result in drifts]
    return [
        name if names.count(name) == 1 else f"{name} ({file})" for name, (file, _) in zip(names, drifts, strict=True)
    ]


def farthest(row: Mapping[str, Sequence[float]]) -> float:
    """Returns a row's largest distance over the lengths of padding, of the vector that moves further."""
    return max(max(row[vector]) for vector in VECTORS)


def drift_tables(result: Drift) -> list[pd.DataFrame]:
    """Tabulates, by kind of vector, the largest distance per regime and masking, and the least masking to cure it."""
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
        ]
        tables.append(table(f"Largest cosine distance, {title}", (*_HEAD, *MASKINGS, "cured by"), rows, notes))
    return tables


def cures(result: Drift, vector: str) -> dict[tuple[str, ...], str | None]:
    """Returns the least masking without drift of a vector (a key of `VECTORS`) by situation: weights, direction, conv,
    side, attention. It is ``none`` if nothing drifts, None if all maskings drift."""
    stable = _farthest(result, vector) < STABLE
    return {situation: next((each for each in MASKINGS if row[each]), None) for situation, row in stable.iterrows()}


def _farthest(result: Drift, vector: str) -> pd.DataFrame:
    """Returns a vector's largest distances: situations as rows, maskings as columns, NaN if not measured."""
    rows = pd.DataFrame(result["rows"])
    rows["far"] = rows[vector].map(max)
    return rows.pivot_table("far", list(SITUATION), "masking", sort=False).reindex(columns=list(MASKINGS))


def written(value: float) -> str:
    """Formats a cosine distance; 0 if it is only rounding."""
    return MISSING if math.isnan(value) else "0" if value < STABLE else f"{value:.2g}"
