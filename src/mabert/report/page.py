"""One self-contained HTML page: no scripts, nothing fetched, readable on a phone and in print."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b2a38; --soft: #5b6b78; --line: #d9dee2; --paper: #fff; --mark: #2f6f8f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebef; --soft: #9fb0bd; --line: #34424d; --paper: #12191f; --mark: #7fb6d1; }
  figure svg { background: #f4f6f7; border-radius: 6px; }
}
body { margin: 0 auto; max-width: 46rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { font-size: 1.1rem; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
.numbers { display: flex; flex-wrap: wrap; gap: 1.2rem 2.4rem; margin: 1.4rem 0; }
.numbers b { display: block; font-size: 1.6rem; color: var(--mark); }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of parts that are HTML already."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; every cell is text and is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def figure(svg: str, description: str) -> str:
    """A drawing with what it shows in words."""
    return f'<figure role="img" aria-label="{escape(description, quote=True)}">{svg}</figure>'


def numbers(pairs: Iterable[tuple[str, str]]) -> str:
    """A row of large figures, each with what it is."""
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for value, name in pairs)
    return f'<div class="numbers">{cells}</div>'
