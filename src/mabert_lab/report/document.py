"""Pages: Markdown from a template, the same as one HTML page that loads nothing else, with figures inline.

Tables are data frames of text with a title and notes in their attributes. Pages without a Markdown version have their
own HTML template, which extends the page's.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, count, cycle, pairwise, product
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, pass_eval_context
from jinja2.nodes import EvalContext
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

MISSING = "\N{EN DASH}"
FLAG = "**Flagged:** "  # begins a note that must not be overlooked


@dataclass(frozen=True)
class Page:
    """A page as Markdown."""

    title: str  # the first heading
    text: str  # everything below it, with links to the figures' files
    figures: dict[str, str]  # SVG by file name without suffix

    def markdown(self) -> str:
        """Returns the page as Markdown without its folded parts."""
        text, folded = re.subn(r"<details>.*?</details>", "", self.text, flags=re.DOTALL)
        left_out = f"\n*The HTML page that `mabert report` writes has {folded} more parts.*\n" if folded else ""
        return re.sub(r"\n{3,}", "\n\n", f"# {plain(self.title)}\n\n{text}{left_out}")

    def linked(self) -> dict[str, str]:
        """Returns the figures that the Markdown links to."""
        text = self.markdown()
        return {name: svg for name, svg in self.figures.items() if re.search(rf"[(/]{re.escape(name)}\.svg\)", text)}

    def html(self) -> str:
        """Renders the page as HTML, readable on a phone, in print, and without its script."""
        titles = re.findall(r"^## (.+)$", self.text, re.MULTILINE)
        contents = {_anchor(title): title for title in titles}
        return from_template("page.html", title=self.title, body=_rendered(self.text, self.figures), contents=contents)


def page(template: str, title: str, folder: str = "", **context: Any) -> Page:
    """Makes a page from a Markdown template, which places a figure by ``figure(name, svg, description)``. Its variables
    (`context`) are escaped text on one line; `folder` is that of the figures' files, relative to the page."""
    drawn: dict[str, str] = {}

    def figure(name: str, svg: str | None, description: str) -> Markup:
        """Returns the link to a figure; empty if nothing was drawn."""
        if svg is None:
            return Markup("")
        names = chain([name], (f"{name}-{again}" for again in count(2)))  # results of two folders may share a name
        own = next(each for each in names if drawn.setdefault(each, svg) == svg)
        return Markup(f"![{plain(description)}]({PurePosixPath(folder) / own}.svg)")

    text = from_template(template, figure=figure, **context)
    return Page(title, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", drawn)


def from_template(name: str, **context: Any) -> str:
    return _TEMPLATES.get_template(name).render(**context)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> pd.DataFrame:
    """Makes a table of text with a caption and notes. Numbers are right-aligned and sortable; ``**bold**`` works."""
    frame = pd.DataFrame([[str(cell) for cell in row] for row in rows], columns=list(head), dtype=object)
    frame.attrs.update(title=title, notes=list(notes))
    return frame


def with_best(
    frame: pd.DataFrame, columns: Iterable[int], lowest: bool = False, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Sets each column's best number in bold, unless all are equal as written; compares rows that agree in `by`."""
    groups = frame.groupby(list(by), sort=False).indices.values() if by else [frame.index]
    for rows, column in product(groups, list(columns)):
        values = frame.iloc[rows, column].map(number_in).dropna()
        if values.nunique() > 1:
            for row in values.index[values == (values.min() if lowest else values.max())]:
                frame.iat[row, column] = f"**{frame.iat[row, column]}**"
    return frame


def number_in(cell: str) -> float | None:
    """Returns the number at the start of a cell; None if there is none."""
    found = re.match(r"(?:\*\*)?(?:≥ ?)?([-+]?\d[\d,]*(?:\.\d+)?)(?![-.\w])", cell)
    return float(found[1].replace(",", "")) if found else None


def markdown(frame: pd.DataFrame) -> Markup:
    """Renders a table as Markdown, without columns that have no entry; empty for a table without rows."""
    frame = frame.loc[:, ~frame.isin(["", MISSING]).all()]
    if not len(frame):
        return Markup("")
    missing = frame.map(lambda cell: not cell or cell.startswith(MISSING))
    numeric = (missing | frame.map(number_in).notna()).all()
    lines = [map(plain, line) for line in (frame.columns, *frame.itertuples(index=False))]
    head, *rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    grid = "\n".join([head, "|" + "".join("---:|" if each else "---|" for each in numeric), *rows])
    caption = [f"*{plain(frame.attrs['title'])}*"] if frame.attrs["title"] else []
    return Markup("\n\n".join([*caption, grid, *(f"> {plain(note)}" for note in frame.attrs["notes"])]))


def written(value: float | None, form: str = "{:.3f}", unit: float = 1) -> str:
    """Formats a number, or marks a missing one."""
    return MISSING if value is None or math.isnan(value) else form.format(value * unit if unit != 1 else value)


def thousands(numbers: Iterable[int]) -> list[str]:
    return [f"{number:,}" for number in numbers]


def plain(text: object) -> str:
    """Puts text on one line and escapes Markdown blocks and HTML, since titles and notes may be user input."""
    return " ".join(str(text).split()).replace("<", "&lt;")


@pass_eval_context
def _finished(context: EvalContext, value: object) -> object:
    """Escapes the values of expressions in Markdown templates as plain text, unless they are Markdown already."""
    return value if context.autoescape or isinstance(value, Markup) else plain(value)


def _rendered(text: str, figures: Mapping[str, str]) -> Markup:
    """Renders Markdown as HTML; a section has an id, a cell its column's heading, which a phone shows beside it."""
    tokens = _MARKDOWN.parse(text)
    for token, content in pairwise(tokens):
        if token.type == "thead_open":
            heads: list[str] = []
        elif token.type == "th_open":
            heads.append(content.content)
        elif token.type == "tbody_open":
            labels = cycle(heads)
        elif token.type == "td_open":
            token.attrSet("data-label", next(labels))
        elif token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", _anchor(content.content))
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {"figures": figures}))


def _anchor(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _drawn(_: Any, tokens: Sequence[Token], place: int, __: Any, env: dict[str, Any]) -> str:
    """Renders one of the page's own figures inline, and any other as its description."""
    description = escape(tokens[place].content)
    svg = env["figures"].get(PurePosixPath(str(tokens[place].attrs["src"])).stem)
    return description if svg is None else f'<span class="figure" role="img" aria-label="{description}">{svg}</span>'


_MARKDOWN = MarkdownIt("commonmark").enable("table").disable(["link", "autolink", "reference", "html_inline", "code"])

_MARKDOWN.add_render_rule("image", _drawn)
_MARKDOWN.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>\n')
_MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>\n")

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_finished,
)

_TEMPLATES.filters |= {
    "markdown": markdown,
    "table": lambda frame: _rendered(markdown(frame), {}),
    "flat": lambda nested: pd.json_normalize([dict(nested)]).iloc[0].items(),
}
