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
"""The paper's models in the order of its tables, with the names that it prints."""

BASELINES = tuple(model for model in MODELS if model != "mabert")
TASKS: dict[str, dict[str, str]] = _CONTENT["tasks"]
"""Title and metric of the columns of scores, in order; MRPC and QQP are F1, though the text names accuracy as well."""

NAMES: dict[str, str] = {**MODELS, **_CONTENT["arms"]}
"""Rows of every table with the names that it prints; a pattern is its own name."""

RECIPE: str = _CONTENT["recipe"].strip()
"""How much its models were pretrained."""

MACHINE: str = _CONTENT["machine"].strip()
"""What the tables of memory and time were measured on."""


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        label: Of the table in the paper's source.
        title: What its numbers are.
        unit: Of every cell, as the paper writes it.
        mean: The numbers, a row for each model or arm, a column for each task or length.
        std: Standard deviations over five seeds; None for a table of memory or time.
        flag: What must be said with the numbers; empty where nothing speaks against them.
    """

    label: str
    title: str
    unit: str
    mean: pd.DataFrame
    std: pd.DataFrame | None = None
    flag: str = ""

    def average(self, row: str, columns: Sequence[str] = tuple(TASKS)) -> float:
        """Mean of a row's numbers over some columns; KeyError where there is no such row or column."""
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
"""The models' tables by the share of the steps that they were pretrained for."""


def headline(measure: str, length: int = 4096, rivals: Sequence[str] = BASELINES) -> float:
    """How many times MaBERT's number the mean of its rivals' is, unrounded.

    Args:
        measure: ``memory``, ``latency`` or ``training``.
        length: Tokens, one of the table's columns.
        rivals: Models to average over.

    Raises:
        KeyError: The table has no such length or model.
    """
    column = TABLES[measure].mean[length]
    return fmean(column[list(rivals)]) / float(column["mabert"])
