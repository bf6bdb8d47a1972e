"""Tables as LaTeX: floats of numbers, and tables of sentences that break over lines and pages."""

import re
from collections.abc import Sequence

from mabert_lab.report.grid import MISSING, Cell, Grid

PACKAGES = ("array", "booktabs", "adjustbox", "longtable")
"""What a preamble has to load."""

_LONG = 40
"""Signs of a cell, or of all a row's sentences, from which a table's text breaks over lines."""

_MOST_WIDTH = 60
"""Signs up to which a column's longest cell says how wide the column is."""

_MINUS_SIGN = "\N{MINUS SIGN}"

_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MIDDLE DOT}": r"$\cdot$",
    "\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$",
    "\N{RIGHTWARDS ARROW}": r"$\rightarrow$",
    "\N{DAGGER}": r"\dag{}",
    _MINUS_SIGN: "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    MISSING: "--",
    "…": r"\ldots{}",
    "<": "$<$",
    ">": "$>$",
    # At the beginning of a line both would belong to the line break before them.
    "[": "{[}",
    "*": "{*}",
}
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")


def to_latex(grid: Grid) -> str:
    """One table; its first line names the packages that it needs.

    Numbers are a float as wide as they need, at most as the text; sentences a `longtable`, which goes on over pages.
    Scripts other than Latin need XeLaTeX or LuaLaTeX.
    """
    needs = "% \\usepackage{" + ", ".join(PACKAGES) + "}\n"
    return needs + (_long(grid) if _is_text(grid) else _float(grid))


def latex(text: str) -> str:
    """Text as LaTeX writes it, on one line."""
    # A marker first: the minus must not be escaped as text, nor a hyphen within words become a minus.
    signs = _MINUS.sub(_MINUS_SIGN, " ".join(text.split()))
    return "".join(_SIGNS.get(sign, sign) for sign in signs)


def _float(grid: Grid) -> str:
    places = "".join("r" if grid.is_number(column) else "l" for column in range(len(grid.head)))
    return (
        "\\begin{table*}[tp]\n\\centering\\small\n\\begin{adjustbox}{max width=\\textwidth}\n"
        f"\\begin{{tabular}}{{{places}}}\n\\toprule\n{_line(grid.head)}\n\\midrule\n{_body(grid)}\n\\bottomrule\n"
        f"\\end{{tabular}}\n\\end{{adjustbox}}\n{_caption(grid)}\n\\end{{table*}}\n"
    )


def _long(grid: Grid) -> str:
    widths = _widths(grid)
    # Each column has a space on either side, which its share of the line must leave free.
    places = "".join(
        rf">{{\raggedright\arraybackslash}}p{{\dimexpr {width:.3f}\linewidth-2\tabcolsep}}" for width in widths
    )
    head = f"\\toprule\n{_line(grid.head)}\n\\midrule\n"
    return (
        f"{{\\footnotesize\n\\begin{{longtable}}{{{places}}}\n{_caption(grid)} \\\\\n{head}\\endfirsthead\n{head}"
        f"\\endhead\n\\bottomrule\n\\endlastfoot\n{_body(grid)}\n\\end{{longtable}}}}\n"
    )


def _is_text(grid: Grid) -> bool:
    return any(len(cell.plain) > _LONG and cell.value is None for row in grid.rows for cell in row)


def _widths(grid: Grid) -> list[float]:
    """Each column's share of the line."""
    columns = [[name, *(row[column].plain for row in grid.rows)] for column, name in enumerate(grid.head)]
    # A word without room stands out of its column; some signs more for the space between columns.
    words = [4 + max(len(word) for text in texts for word in (text.split() or [""])) for texts in columns]
    wide = [max(word, min(max(map(len, texts)), _MOST_WIDTH)) for word, texts in zip(words, columns, strict=True)]
    return [0.999 * width / sum(wide) for width in wide]


def _caption(grid: Grid) -> str:
    whole = ". ".join(text.rstrip(".") for text in (grid.title, *grid.notes)) + "."
    # What a label may hold is less than what the name of a file may.
    label = re.sub(r"[^A-Za-z0-9.:-]+", "-", grid.name)
    return f"\\caption[{{{latex(grid.title)}}}]{{{latex(whole)}}}\\label{{tab:{label}}}"


def _body(grid: Grid) -> str:
    if not grid.rows:
        return f"\\multicolumn{{{len(grid.head)}}}{{c}}{{--}} \\\\"
    return "\n".join(" & ".join(map(_cell, row)) + r" \\" for row in grid.rows)


def _line(names: Sequence[str]) -> str:
    return " & ".join(map(latex, names)) + r" \\"


def _cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex(cell.text)}}}" if cell.bold else latex(cell.text)
    return f"{text} {{\\scriptsize {latex(cell.rest)}}}" if cell.rest else text
