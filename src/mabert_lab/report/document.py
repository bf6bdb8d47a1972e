"""A page and its Markdown twin, by one template each, of the same parts.

A part is a sentence (with ``**strong**`` and code in backticks), a list of them, a table, a figure, or a section of
parts. Pages that have no twin have a template of their own, which extends that of the page.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

MISSING = "\N{EN DASH}"
_CODE, _STRONG = re.compile(r"`([^`]+)`"), re.compile(r"\*\*([^*]+)\*\*")
_NUMBER = re.compile(r"(\*\*)?(≥ ?)?[-+]?\d[\d,.]*")


@dataclass(frozen=True)
class Figure:
    """A figure: the name of its file, its SVG, and what it shows for those who do not see it."""

    name: str
    svg: str
    description: str


@dataclass(frozen=True)
class Section:
    """Parts under a title; folded ones a reader opens."""

    title: str
    parts: Sequence["Part"]
    folded: bool = False


Part: TypeAlias = "str | list[str] | pd.DataFrame | Figure | Section"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> pd.DataFrame:
    """A table of text, with a caption and notes; a number is right-aligned and sorts, and ``**bold**`` is set so."""
    frame = pd.DataFrame([[str(cell) for cell in row] for row in rows], columns=list(head), dtype=object)
    frame.attrs.update(title=title, notes=list(notes))
    return frame


def figure(name: str, svg: str | None, description: str) -> list[Figure]:
    """A figure as a list of parts, which is empty where nothing was drawn."""
    return [] if svg is None else [Figure(name, svg, description)]


def with_best(
    frame: pd.DataFrame, columns: Iterable[int], lowest: bool = False, by: Sequence[str] = ()
) -> pd.DataFrame:
    """The same table, the best number of each column in bold; nothing is best where all numbers are the same.

    Args:
        frame: Its numbers are compared as they are written.
        columns: By their places.
        lowest: Whether that is the best.
        by: Columns; rows that are alike there are compared with each other alone.
    """
    groups = frame.groupby(list(by), sort=False).indices.values() if by else [frame.index]
    for rows, column in product(groups, list(columns)):
        values = frame.iloc[rows, column].map(number).dropna()
        if values.nunique() > 1:
            for row in values.index[values == (values.min() if lowest else values.max())]:
                frame.iat[row, column] = f"**{frame.iat[row, column]}**"
    return frame


def number(cell: str) -> float | None:
    """The number that a cell begins with; None where it does not."""
    found = _NUMBER.match(cell)
    return float(re.sub(r"[^-+.\d]", "", found[0])) if found else None


def figures(parts: Iterable[Part]) -> Iterator[Figure]:
    """Every figure, those within sections as well."""
    for part in parts:
        if isinstance(part, Figure):
            yield part
        elif isinstance(part, Section):
            yield from figures(part.parts)


def to_html(title: str, parts: Sequence[Part]) -> str:
    """One self-contained page: nothing fetched, readable on a phone and in print, and without its script too.

    Args:
        title: Of the page.
        parts: In order; a sentence that comes first is set as the lead.
    """
    return from_template("page.html", title=title, parts=parts)


def from_template(name: str, **context: object) -> str:
    """A page by a template of its own, with what that names."""
    return _TEMPLATES.get_template(name).render(**context)


def to_markdown(title: str, parts: Sequence[Part], folder: str = "") -> str:
    """The same as Markdown, its figures linked to their files in a folder; without a title where that is empty."""
    text = from_template("page.md", title=title, parts=parts, folder=PurePosixPath(folder))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def plain(text: str) -> str:
    """Text on one line, in which Markdown finds neither a block nor HTML: titles and notes may be anybody's words."""
    return " ".join(str(text).split()).replace("<", "&lt;")


def inline(text: str) -> Markup:
    """A sentence as HTML."""
    return Markup(_STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text))))


def _markdown_table(frame: pd.DataFrame) -> str:
    rule = "".join("---:|" if numeric else "---|" for numeric in _numeric(frame))
    lines = [
        [plain(cell).replace("|", "\\|") for cell in row] for row in (frame.columns, *frame.itertuples(index=False))
    ]
    head, *rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|" + rule, *rows])


def _numeric(frame: pd.DataFrame) -> list[bool]:
    """Whether each column holds numbers and what is missing of them alone."""
    missing = frame.map(lambda cell: not cell or cell.startswith(MISSING))
    return list((missing | frame.map(number).notna()).all())


def _anchor(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "inline": inline,
    "plain": plain,
    "anchor": _anchor,
    "grid": _markdown_table,
    "numeric": _numeric,
}
_TEMPLATES.tests |= {
    "items": lambda part: isinstance(part, list),
    "table": lambda part: isinstance(part, pd.DataFrame),
    "figure": lambda part: isinstance(part, Figure),
    "section": lambda part: isinstance(part, Section),
}
