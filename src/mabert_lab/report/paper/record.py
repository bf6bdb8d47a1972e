"""The record that each table of the paper is, and the models that its tables name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

Column = TypeVar("Column")
Cell = TypeVar("Cell")

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "BERT",
        "albert": "ALBERT",
        "longformer": "Longformer",
        "bigbird": "BigBird",
        "deberta": "DeBERTa",
        "mabert": "MaBERT",
    }
)
"""The paper's models in the order of its tables, with the names it prints."""

BASELINES = tuple(model for model in NAMES if model != "mabert")
MEASURED = "measured"


class Score(NamedTuple):
    """A cell of the tables of scores.

    Attributes:
        mean: Over five seeds, between 0 and 1.
        std: Standard deviation over them; which of the two kinds the paper does not say.
    """

    mean: float
    std: float


@dataclass(frozen=True)
class Table(Generic[Column, Cell]):
    """One table of the paper.

    Attributes:
        label: Of the table in the paper's source.
        title: What its numbers are.
        unit: Of every cell, as the paper writes it.
        columns: Keys of a row, in order.
        rows: What a row stands for, such as a model, to its cells by column; read-only.
        provenance: ``MEASURED`` where nothing speaks against the numbers, else what is to be said with them.
    """

    label: str
    title: str
    unit: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Mapping[Column, Cell]]
    provenance: str = MEASURED

    @property
    def flagged(self) -> bool:
        """Whether the numbers must not be quoted without their remark."""
        return self.provenance != MEASURED


def rows_of(columns: Sequence[Column], cells: Mapping[str, Sequence[Cell]]) -> Mapping[str, Mapping[Column, Cell]]:
    """Cells by row and column, read-only; ValueError where a row has more or fewer of them than there are columns."""
    return MappingProxyType(
        {name: MappingProxyType(dict(zip(columns, row, strict=True))) for name, row in cells.items()}
    )
