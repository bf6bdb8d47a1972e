"""Pages: Markdown from a template, the same as one HTML page that loads nothing else, and their figures as inline SVG.

Tables are data frames of text with a title and notes in their attributes. Pages without a Markdown version have their
own HTML template, which extends the page's.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, chain, count, cycle, pairwise, product
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from jinja2 import Environment, FileSystemLoader, pass_eval_context
from jinja2.nodes import EvalContext
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

MISSING = "\N{EN DASH}"

FLAG = "**Flagged:** "
"""Begins a note that must not be overlooked."""

_FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)

_NUMBER = re.compile(r"(\*\*)?(≥ ?)?([-+]?\d[\d,]*(\.\d+)?)(?![-.\w])")


class Figure(NamedTuple):
    """A figure as SVG, with a description for those who do not see it."""

    svg: str
    description: str


@dataclass(frozen=True)
class Page:
    """A page as Markdown.

    Attributes:
        title: The first heading.
        text: Everything below it, with links to the figures' files.
        figures: SVG by file name without suffix.
    """

    title: str
    text: str
    figures: dict[str, str]

    def markdown(self) -> str:
        """Returns the page as Markdown without its folded parts."""
        text, folded = _FOLDED.subn("", self.text)
        left_out = f"\n*The HTML page that `mabert report` writes has {folded} more parts.*\n" if folded else ""
        return re.sub(r"\n{3,}", "\n\n", f"# {plain(self.title)}\n\n{text}{left_out}")

    def linked(self) -> dict[str, str]:
        """Returns the figures that the Markdown links to."""
        text = self.markdown()
        return {name: svg for name, svg in self.figures.items() if re.search(rf"[(/]{re.escape(name)}\.svg\)", text)}

    def html(self) -> str:
        """Renders the page as HTML, readable on a phone, in print, and without its script."""
        tokens = _labelled(_MARKDOWN.parse(self.text))
        titles = [content.content for token, content in pairwise(tokens) if token.attrGet("id")]
        body = Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {"figures": self.figures}))
        return from_template(
            "page.html", title=self.title, body=body, contents={_anchor(each): each for each in titles}
        )


def page(template: str, title: str, folder: str = "", **context: Any) -> Page:
    """Makes a page from a template, which places a figure by ``figure(name, svg, description)``.

    Args:
        template: A Markdown template in the folder of templates.
        title: Title of the page.
        folder: Folder of the figures' files, relative to the page.
        context: Variables of the template; text is put on one line, and HTML is escaped.
    """
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
    """Renders a template with its variables."""
    return _TEMPLATES.get_template(name).render(**context)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> pd.DataFrame:
    """Makes a table of text with a caption and notes. Numbers are right-aligned and sortable; ``**bold**`` works."""
    frame = pd.DataFrame([[str(cell) for cell in row] for row in rows], columns=list(head), dtype=object)
    frame.attrs.update(title=title, notes=list(notes))
    return frame


def with_best(
    frame: pd.DataFrame, columns: Iterable[int], lowest: bool = False, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Sets the best number of each column in bold, unless all are equal.

    Args:
        frame: The table; its numbers are compared as written.
        columns: Indices of the columns.
        lowest: Whether the lowest number is the best.
        by: Columns; only rows that agree in them are compared.
    """
    groups = frame.groupby(list(by), sort=False).indices.values() if by else [frame.index]
    for rows, column in product(groups, list(columns)):
        values = frame.iloc[rows, column].map(number).dropna()
        if values.nunique() > 1:
            for row in values.index[values == (values.min() if lowest else values.max())]:
                frame.iat[row, column] = f"**{frame.iat[row, column]}**"
    return frame


def number(cell: str) -> float | None:
    """Returns the number at the start of a cell; None if there is none."""
    found = _NUMBER.match(cell)
    return float(found[3].replace(",", "")) if found else None


def markdown(frame: pd.DataFrame) -> Markup:
    """Renders a table as Markdown, its caption before and its notes after it. Columns without any entry are left out;
    a table without rows is empty."""
    frame = frame.loc[:, ~frame.isin(["", MISSING]).all()]
    if not len(frame):
        return Markup("")
    missing = frame.map(lambda cell: not cell or cell.startswith(MISSING))
    numeric = (missing | frame.map(number).notna()).all()
    lines = [map(plain, line) for line in (frame.columns, *frame.itertuples(index=False))]
    head, *rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    grid = "\n".join([head, "|" + "".join("---:|" if each else "---|" for each in numeric), *rows])
    caption = [f"*{plain(frame.attrs['title'])}*"] if frame.attrs["title"] else []
    return Markup("\n\n".join([*caption, grid, *(f"> {plain(note)}" for note in frame.attrs["notes"])]))


def plain(text: object) -> str:
    """Puts text on one line and escapes Markdown blocks and HTML, since titles and notes may be user input."""
    return " ".join(str(text).split()).replace("<", "&lt;")


@pass_eval_context
def _finished(context: EvalContext, value: object) -> object:
    """Escapes the values of expressions in Markdown templates as plain text, unless they are Markdown already."""
    return value if context.autoescape or isinstance(value, Markup) else plain(value)


def _labelled(tokens: Sequence[Token]) -> Sequence[Token]:
    """Adds an id to each section, and its column's heading to each cell, which a phone shows beside it."""
    heads: list[str] = []
    place = 0
    for token, content in pairwise(tokens):
        if token.type == "thead_open":
            heads = []
        elif token.type == "th_open":
            heads.append(content.content)
        elif token.type == "tr_open":
            place = 0
        elif token.type == "td_open":
            token.attrSet("data-label", heads[place])
            place += 1
        elif token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", _anchor(content.content))
    return tokens


def _anchor(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _drawn(_: Any, tokens: Sequence[Token], place: int, __: Any, env: dict[str, Any]) -> str:
    """Renders one of the page's own figures inline, and any other as its description."""
    description = escape(tokens[place].content)
    svg = env["figures"].get(PurePosixPath(str(tokens[place].attrs["src"])).stem)
    return description if svg is None else f'<span class="figure" role="img" aria-label="{description}">{svg}</span>'


def _table(frame: pd.DataFrame) -> Markup:
    """Renders a table as HTML, without interpreting markup in its text."""
    return Markup(_TABLES.renderer.render(_labelled(_TABLES.parse(markdown(frame))), _TABLES.options, {}))


_MARKDOWN = MarkdownIt("commonmark").enable("table").disable(["link", "autolink", "reference", "html_inline", "code"])

_MARKDOWN.add_render_rule("image", _drawn)

_TABLES = MarkdownIt("zero").enable(["table", "entity"])

for _parser in (_MARKDOWN, _TABLES):
    _parser.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>\n')
    _parser.add_render_rule("table_close", lambda *_: "</table></div>\n")

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_finished,
)

_TEMPLATES.filters |= {
    "markdown": markdown,
    "table": _table,
    "flat": lambda nested: pd.json_normalize([dict(nested)]).iloc[0].items(),
}

INK = "#1b2a38"

COLOURS = ("#2f6f8f", "#d0803a", "#5d8a4b", "#8a4b7d")

DASHED = (0, (4, 2.5))
"""Line style of the paper's numbers."""


LOOKS = {
    "bert": ("#222222", "s"),
    "albert": ("#56b4e9", "^"),
    "longformer": ("#009e73", "v"),
    "bigbird": ("#e69f00", "D"),
    "deberta": ("#cc79a7", "P"),
    "modernbert": ("#0072b2", "X"),
    "mabert": ("#d55e00", "o"),
}
"""Colour and marker of each model: Okabe and Ito's colours, which colour-blind readers can distinguish, without the
yellow, invisible on white."""


def line_chart(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    dots: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """Draws curves over one axis.

    Args:
        lines: x and y values by name.
        x_label: Label of x with its unit; x is a count.
        y_label: Label of y with its unit.
        dots: Whether to mark each point, if there are few.
        marks: x values of vertical lines: of a pretraining, where its windows change length.

    Returns:
        SVG text.
    """
    figure = Drawing(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    colours = COLOURS if len(lines) <= len(COLOURS) else [colour for colour, _ in LOOKS.values()]
    strokes = cycle(product(("-", "--", ":"), colours))  # a colour comes again in another style
    for (name, (x, y)), (style, colour) in zip(lines.items(), strokes, strict=False):
        form = ("o" if dots else "") + style
        axes.plot(x, y, form, label=name, color=colour, linewidth=1.6, markersize=4.5)
    for place, mark in enumerate(marks):
        axes.axvline(mark, color=INK, linewidth=0.8, linestyle=":", label=None if place else "other length of windows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    with_grid(axes, xlabel=x_label, ylabel=y_label)
    if len(lines) > len(COLOURS):
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False)
    return svg(figure)


def with_grid(axes: Axes, **settings: Any) -> None:
    """Sets what `Axes.set` takes and a light grid, and removes the frame on sides without a scale."""
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def svg(figure: Drawing) -> str:
    """Renders a figure as SVG without XML preamble; text stays text, so that it can be searched and read aloud."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mabert"}):
        figure.savefig(out, format="svg", metadata=nothing, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def on_paper(svg_text: str) -> str:
    """Adds a white background, for a file that may be shown on a dark one."""
    return svg_text.replace("<svg ", '<svg style="background: #fff" ', 1)


def loss_chart(history: Sequence[Mapping[str, Any]], marks: Sequence[float] = ()) -> str:
    """Draws training and held-out loss over the steps of a pretraining, as SVG.

    Args:
        history: The run's log, as in its `result.json`.
        marks: Steps to mark, such as those at which the windows grow.
    """
    logged = [entry for entry in history if "loss" in entry]
    held_out = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
    lines = {
        "training": ([entry["step"] for entry in logged], [entry["loss"] for entry in logged]),
        "held out": (list(held_out), list(held_out.values())),
    }
    return line_chart(lines, "step", "loss (nats a masked token)", marks=marks)


def losses_chart(tables: Sequence[Path]) -> str:
    """Draws the training losses of a fine-tuning, a line for each of its trainings, as SVG.

    Args:
        tables: The trainings' logs in CSV, with the columns `step` and `loss`.
    """
    logged = {table.stem: pd.read_csv(table).dropna(subset="loss") for table in tables}
    lines = {name: (rows["step"], rows["loss"]) for name, rows in logged.items()}
    return line_chart(lines, "step", "training loss")


def stage_ends(steps: int, stages: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the steps at which a run's windows change length.

    Args:
        steps: Steps of the whole run.
        stages: The stages in its request, each with its `share` of the steps.
    """
    return [steps * done for done in accumulate(stage["share"] for stage in stages[:-1])]
