"""A document as parts that become a page and a Markdown file alike."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import PurePosixPath

from mabert_lab.report.grid import Grid, to_html, to_markdown
from mabert_lab.report.page import figure

_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True)
class Heading:
    """A heading; those of level 2 stand in the list of contents.

    Attributes:
        level: 1 for the title, up to 4.
        text: Plain text.
    """

    level: int
    text: str

    @property
    def anchor(self) -> str:
        """What a link within the page goes to."""
        return "-".join(re.findall(r"[a-z0-9]+", self.text.lower()))


@dataclass(frozen=True)
class Text:
    """A paragraph; ``**strong**`` and code in backticks are marked up.

    Attributes:
        text: Of the paragraph.
        kind: Class of the paragraph on the page: ``lead``, or none.
    """

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Items:
    """A list; each line is marked up as a paragraph is."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        name: Of its file.
        svg: The figure.
        description: What it shows, for those who do not see it.
    """

    name: str
    svg: str
    description: str


@dataclass(frozen=True)
class Fold:
    """Parts that a reader opens; in Markdown they stand open.

    Attributes:
        summary: What is inside.
        parts: Those.
    """

    summary: str
    parts: tuple["Part", ...]


Part = Heading | Text | Items | Grid | Drawing | Fold


def unfolded(parts: Iterable[Part]) -> Iterator[Part]:
    """Every part, those inside a fold as well."""
    for part in parts:
        if isinstance(part, Fold):
            yield from unfolded(part.parts)
        else:
            yield part


def contents(parts: Iterable[Part]) -> str:
    """Links to the headings of level 2."""
    found = [part for part in parts if isinstance(part, Heading) and part.level == 2]
    links = "".join(f'<li><a href="#{each.anchor}">{escape(each.text)}</a></li>' for each in found)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def as_html(part: Part) -> str:
    """One part as HTML."""
    match part:
        case Heading(level, text):
            linked = f' id="{part.anchor}"' if level == 2 else ""
            return f"<h{level}{linked}>{escape(text)}</h{level}>"
        case Text(text, kind):
            return f'<p class="{kind}">{_inline(text)}</p>' if kind else f"<p>{_inline(text)}</p>"
        case Items(lines):
            return "<ul>" + "".join(f"<li>{_inline(line)}</li>" for line in lines) + "</ul>"
        case Drawing(_, svg, description):
            return figure(svg, description)
        case Fold(summary, parts):
            inner = "\n".join(map(as_html, parts))
            return f"<details><summary>{escape(summary)}</summary>\n{inner}\n</details>"
        case Grid():
            return to_html(part)


def as_markdown(part: Part, folder: PurePosixPath) -> str:
    """One part as Markdown; drawings are linked to their files in ``folder``."""
    match part:
        case Heading(level, text):
            return f"{'#' * level} {_plain(text)}\n"
        case Text(text):
            return f"{_plain(text)}\n"
        case Items(lines):
            return "".join(f"- {_plain(line)}\n" for line in lines)
        case Drawing(name, _, description):
            return f"![{_plain(description)}]({folder / name}.svg)\n"
        case Fold(summary, parts):
            return "\n".join([f"**{_plain(summary)}**\n", *(as_markdown(each, folder) for each in parts)])
        case Grid(title=title, notes=notes):
            return "\n".join([f"*{_plain(title)}*\n", to_markdown(part), *(f"{_plain(note)}\n" for note in notes)])


def _plain(text: str) -> str:
    """Text on one line, in which Markdown finds neither a block nor HTML: titles and notes may be anybody's words."""
    return " ".join(text.split()).replace("<", "&lt;")


def _inline(text: str) -> str:
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text)))
