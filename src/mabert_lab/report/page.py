"""One self-contained HTML page: nothing fetched, readable on a phone and in print, and without its scripts too."""

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


TABLES = """
body { max-width: 68rem; } p, ul { max-width: 46rem; }
h2 { font-size: 1.35rem; border-top: 1px solid var(--line); padding-top: 1.4rem; margin-top: 3rem; }
h3 { font-size: 1.1rem; margin-top: 2rem; } h4 { margin: 1.5rem 0 .4rem; }
a { color: var(--mark); } code { font-size: .9em; overflow-wrap: anywhere; } li, p { overflow-wrap: break-word; }
nav ul { columns: 15rem; padding-left: 1.2rem; } summary { cursor: pointer; padding: .3rem 0; color: var(--mark); }
figure { max-width: 56rem; } figure svg { max-height: 90vh; }
.grid { margin: 1.2rem 0 1.8rem; } .caption { margin: 0 0 .3rem; font-weight: 600; max-width: none; }
.note { margin: .35rem 0 0; font-size: .85rem; color: var(--soft); } .wide { border-bottom: 1px solid var(--line); }
.note.warning { border-left: 4px solid #d0803a; padding: .1rem 0 .1rem .8rem; color: var(--ink); }
.grid table { font-size: .88rem; width: auto; min-width: 60%; } .grid :is(td, th) { padding-right: 1.1rem; }
.grid th { vertical-align: bottom; }
.grid .number { text-align: right; white-space: nowrap; } .grid th.number { white-space: normal; }
.grid td.number small { display: block; color: var(--soft); font-size: .8em; }
.grid td.text:not(:first-child) { min-width: 6rem; max-width: 26rem; }
:root { --good: #3f7a2c; --bad: #b5402f; } .grid td.good b { color: var(--good); } .grid td.bad b { color: var(--bad); }
@media (prefers-color-scheme: dark) { :root { --good: #93cc7e; --bad: #f0968a; } }
.grid :is(td, th):first-child { position: sticky; left: 0; background: var(--paper); }
.grid th button { all: unset; cursor: pointer; }
.grid th button:focus-visible, .wide:focus-visible { outline: 2px solid var(--mark); }
.grid th button::after { content: "\\2195"; color: var(--line); padding-left: .2rem; }
.grid th[aria-sort=ascending] button::after { content: "\\25B2"; color: var(--mark); }
.grid th[aria-sort=descending] button::after { content: "\\25BC"; color: var(--mark); }
@media (max-width: 40rem) {
  .grid td:first-child { min-width: 9rem; max-width: 10rem; overflow-wrap: anywhere; }
  figure { overflow-x: auto; } figure svg { min-width: 34rem; }
}
@media print {
  body { padding: 0; } .wide { overflow: visible; } nav { display: none; } h2 { break-before: auto; }
  .grid table { font-size: 7pt; min-width: 0; } .grid :is(td, th) { padding-right: .35rem; overflow-wrap: anywhere; }
  .grid .number { white-space: normal; } .grid td.text:not(:first-child) { min-width: 3.5rem; }
  .grid th button::after { content: "" !important; } .grid :is(td, th):first-child { position: static; }
}
"""
"""Beyond `STYLE`, for pages of many tables."""

SORTING = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.value;
    return value !== undefined ? Number(value) : cell.classList.contains("number") ? null : cell.textContent.trim();
  };
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const sort = (column) => {
    const up = heads[column].getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : up ? "ascending" : "descending"));
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : up ? order(a, b) : order(b, a));
    body.append(...rows.map(([, row]) => row));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(column));
    head.append(button);
    head.setAttribute("aria-sort", "none");
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
"""
"""Makes the headings of tables buttons that sort, what is missing staying last; unfolds everything for print."""


def page(title: str, parts: Iterable[str], style: str = "", script: str = "") -> str:
    """A whole page.

    Args:
        title: Of the page.
        parts: HTML already.
        style: CSS beyond `STYLE`.
        script: JavaScript to run at the end.
    """
    end = f"<script>{script}</script>\n" if script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}{style}</style></head>\n'
        f"<body>\n{chr(10).join(parts)}\n{end}</body></html>\n"
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
