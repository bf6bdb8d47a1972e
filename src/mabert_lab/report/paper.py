"""The paper's numbers, from `paper.yaml`; no other part of the project holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))

MODELS: dict[str, str] = _CONTENT["models"]
"""The paper's models in the order of its tables, with their printed names."""

BASELINES = tuple(model for model in MODELS if model != "mabert")
TASKS: dict[str, dict[str, str]] = _CONTENT["tasks"]
"""Title and metric of the score columns, in order; MRPC and QQP are F1, although the text also names accuracy."""

NAMES: dict[str, str] = {**MODELS, **_CONTENT["arms"]}
"""Rows of every table with their printed names; a pattern is its own name."""

RECIPE: str = _CONTENT["recipe"].strip()
"""Pretraining of the paper's models."""

MACHINE: str = _CONTENT["machine"].strip()
"""Machine of the memory and time tables."""


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        label: Label in the paper's source.
        title: Description of the numbers.
        unit: Unit of every cell, as the paper writes it.
        mean: The numbers, with models or arms as rows and tasks or lengths as columns.
        std: Standard deviations over five seeds; None for memory and time.
        flag: Warning to show with the numbers; empty if there is none.
    """

    label: str
    title: str
    unit: str
    mean: pd.DataFrame
    std: pd.DataFrame | None = None
    flag: str = ""

    def average(self, row: str, columns: Sequence[str] = tuple(TASKS)) -> float:
        """Averages a row's numbers over some columns; KeyError if there is no such row or column."""
        return fmean(self.mean.loc[row, list(columns)])


def _table(raw: dict[str, Any]) -> Table:
    about = {name: raw[name] for name in ("label", "title", "unit")} | {"flag": raw.get("flag", "").strip()}
    rows, columns = raw["rows"], raw.get("columns", list(TASKS))
    if "columns" in raw:
        return Table(**about, mean=pd.DataFrame.from_dict(rows, orient="index", columns=columns))
    mean, std = (
        pd.DataFrame.from_dict({name: row[part] for name, row in rows.items()}, orient="index", columns=columns)
        for part in ("mean", "std")
    )
    return Table(**about, mean=mean, std=std)


TABLES: dict[str, Table] = {name: _table(raw) for name, raw in _CONTENT["tables"].items()}
GLUE = {share: TABLES[f"glue_{100 * share:g}"] for share in (0.1, 0.25, 0.5, 1.0)}
"""Tables of the models by share of the pretraining steps."""


def headline(measure: str, length: int = 4096, rivals: Sequence[str] = BASELINES) -> float:
    """Returns the mean of the rivals' numbers over MaBERT's, unrounded.

    Args:
        measure: ``memory``, ``latency`` or ``training``.
        length: Tokens, one of the table's columns.
        rivals: Models to average over.

    Raises:
        KeyError: The table has no such length or model.
    """
    column = TABLES[measure].mean[length]
    return fmean(column[list(rivals)]) / float(column["mabert"])
