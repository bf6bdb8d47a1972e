"""A table, as HTML that sorts, as Markdown and as CSV; as LaTeX see `mabert_lab.report.latex`."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain

MISSING = "\N{EN DASH}"
FLAG = "Flagged: "
"""What a note begins with that must not be overlooked."""


@dataclass(frozen=True)
class Cell:
    """What stands at one place of a table.

    Attributes:
        text: What is read first, such as a mean.
        rest: What belongs to it and is set smaller, such as its deviation.
        value: To sort by; None for text, and for what is missing, which stands last either way.
        bold: Whether it is the best of its column.
        tone: ``good`` or ``bad`` where the page is to colour it.
    """

    text: str
    rest: str = ""
    value: float | None = None
    bold: bool = False
    tone: str = ""

    @property
    def plain(self) -> str:
        """All of it as one line."""
        return " ".join(f"{self.text} {self.rest}".split())


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        name: Of its files and, in LaTeX, its label.
        title: Its caption, without a full stop.
        head: Names of the columns.
        rows: Cells, as many in each row as there are columns.
        notes: What must be read with it, a sentence each.
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.name}: a row has {len(row)} cells; the table has {len(self.head)} columns")

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers, which are set to the right, or would hold them were they not all missing."""
        cells = [row[column] for row in self.rows]
        return any(cell.value is not None for cell in cells) or all(cell.text == MISSING for cell in cells)


def percent(share: float) -> str:
    """A budget as it is written, such as `10%` or `12.5%`."""
    return f"{100 * share:g}%"


def words(*texts: object) -> tuple[Cell, ...]:
    """Cells of plain text."""
    return tuple(Cell(str(text)) for text in texts)


def missing(why: str = "") -> Cell:
    """The cell of what is not there, with the reason where one is known."""
    return Cell(MISSING, why)


def with_best(rows: Sequence[Sequence[Cell]], column: int, lowest: bool = False) -> list[tuple[Cell, ...]]:
    """The same rows, the best value of a column in bold; nothing is best where all values are the same."""
    values = [value for row in rows if (value := row[column].value) is not None]
    best = (min if lowest else max)(values) if len(set(values)) > 1 else None
    return [
        (*row[:column], replace(row[column], bold=best is not None and row[column].value == best), *row[column + 1 :])
        for row in rows
    ]


def to_html(grid: Grid) -> str:
    """For a page with `SORTING`; without scripts it is a plain table."""
    kinds = ["number" if grid.is_number(column) else "text" for column in range(len(grid.head))]
    pairs = list(zip(grid.head, kinds, strict=True))
    head = "".join(f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in pairs)
    body = "\n".join("<tr>" + "".join(map(_td, row, kinds)) + "</tr>" for row in grid.rows)
    notes = "".join(
        f'<p class="note{" warning" if note.startswith(FLAG) else ""}">{escape(note)}</p>' for note in grid.notes
    )
    return (
        f'<div class="grid" id="table-{escape(grid.name, quote=True)}"><p class="caption">{escape(grid.title)}</p>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(grid.title, quote=True)}">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{notes}</div>'
    )


def to_markdown(grid: Grid) -> str:
    """Without its title, which the text around it has."""
    rule = "".join("---:|" if grid.is_number(column) else "---|" for column in range(len(grid.head)))
    lines = ["| " + " | ".join(_piped(name) for name in grid.head) + " |", "|" + rule]
    lines += ["| " + " | ".join(_bold(_piped(cell.plain), cell.bold) for cell in row) + " |" for row in grid.rows]
    return "\n".join(lines) + "\n"


def to_csv(grid: Grid) -> str:
    """Comma-separated, numbers as numbers: what belongs to one, such as its deviation, stands in a column of its own.

    What is missing is empty. A table with a note that must not be overlooked has it in a last column, ``flagged``.
    """
    further = [any(row[column].rest for row in grid.rows) for column in range(len(grid.head))]
    flagged = " ".join(note.removeprefix(FLAG) for note in grid.notes if note.startswith(FLAG))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    names = [(name, f"{name}, further") if more else (name,) for name, more in zip(grid.head, further, strict=True)]
    lines.writerow([*chain.from_iterable(names), *(["flagged"] if flagged else [])])
    for row in grid.rows:
        cells = [(_bare(cell), cell.rest) if more else (_bare(cell),) for cell, more in zip(row, further, strict=True)]
        lines.writerow([*chain.from_iterable(cells), *([flagged] if flagged else [])])
    return out.getvalue()


def _bare(cell: Cell) -> str:
    """A cell's text without what is there for reading only."""
    if cell.text == MISSING:
        return ""
    return cell.text if cell.value is None else cell.text.replace(",", "")


def _td(cell: Cell, kind: str) -> str:
    text = f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)
    rest = f" <small>{escape(cell.rest)}</small>" if cell.rest else ""
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    tone = f" {cell.tone}" if cell.tone else ""
    return f'<td class="{kind}{tone}"{value}>{text}{rest}</td>'


def _piped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
