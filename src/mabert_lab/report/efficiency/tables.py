"""The paper's three efficiency tables, ours and its own."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mabert_lab.report import paper
from mabert_lab.report.efficiency.results import NAMES, Key, Results, Row
from mabert_lab.report.grid import FLAG, Cell, Grid, missing

Rows = Mapping[str, Mapping[int, Row]]
"""One table's rows by model and length."""

PAPER = {"memory": paper.MEMORY, "latency": paper.LATENCY, "training": paper.TRAINING}
TITLES = {"memory": "Peak memory", "latency": "Latency", "training": "Training step"}
UNITS = {"memory": "MiB", "latency": "ms", "training": "ms"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def number(value: float) -> str:
    """A positive number with four significant digits, or all of those before its point."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def why(row: Row) -> str:
    """Why a row has no number."""
    if row.at_least is not None:
        return f"{row.status} (> {row.at_least:,g} s)"
    return row.status if row.reason is None or row.status == "out of memory" else f"{row.status}: {row.reason}"


def lengths_of(rows: Rows) -> list[int]:
    """Every length of a table, shortest first."""
    return sorted({length for cells in rows.values() for length in cells})


def as_heads(lengths: Iterable[int]) -> list[str]:
    """Lengths as the names of columns."""
    return [f"{length:,}" for length in lengths]


def batch_of(rows: Rows) -> str:
    """The batch sizes of a table's numbers, mostly one; of all rows where there is no number."""
    rows_of_all = [row for cells in rows.values() for row in cells.values()]
    measured = [row for row in rows_of_all if row.numbers]
    return ", ".join(str(batch) for batch in sorted({row.batch for row in measured or rows_of_all}))


def steps_told(rows: Rows) -> list[str]:
    """How a table's steps were put together, as one sentence; nothing where each was run whole."""
    sizes: dict[int, set[int]] = {}
    for cells in rows.values():
        for length, row in cells.items():
            if row.numbers and row.micro_batch < row.batch:
                sizes.setdefault(length, set()).add(row.micro_batch)
    if not sizes:
        return []
    told = ", ".join(f"{' or '.join(map(str, sorted(found)))} at {length:,}" for length, found in sorted(sizes.items()))
    return [
        "A step is a micro-batch, timed and counted as often as the batch has it, and one of AdamW's; texts of a "
        f"micro-batch: {told}."
    ]


def runs_told(rows: Rows) -> list[str]:
    """Which numbers of a table are of another run than most, as one sentence; nothing where all are of one."""
    places: dict[Key, dict[str, list[int]]] = {}
    for model, cells in rows.items():
        for length, row in sorted(cells.items()):
            places.setdefault(row.source.key, {}).setdefault(model, []).append(length)
    count = {key: sum(map(len, found.values())) for key, found in places.items()}
    _, *others = sorted(places, key=lambda key: -count[key])
    told = "; ".join(f"{_where(places[key], rows)} ({Path(key[1]).name})" for key in others)
    return [f"Of another run than the rest: {told}. Only what is of one run compares closely."] if told else []


def measured_grid(results: Results, rows: Rows, measure: str, name: str) -> Grid:
    """One table in the paper's form: a row a model, a column a length, the lowest of each in bold.

    Args:
        results: Where the parameters stand.
        rows: Of the table.
        measure: What they measure; memory has the parameters beside it, as in the paper.
        name: Of the table.
    """
    lengths = lengths_of(rows)
    lowest = {length: _lowest(rows, length) for length in lengths}
    beside = ["params (M)", "the paper's (M)", "weights (MiB)"] if measure == "memory" else []
    body = []
    for model, cells in rows.items():
        counts = _counts(results, model, cells) if beside else []
        values = [_cell(cells.get(length), lowest[length]) for length in lengths]
        setting = _settings(cells)
        body.append((Cell(NAMES[model]), *counts, *values, Cell(setting) if setting else missing()))
    head = ("model", *beside, *as_heads(lengths), "ran with")
    title = f"{TITLES[measure]} ({UNITS[measure]}), batch {batch_of(rows)}"
    return Grid(name, title, head, tuple(body), (*runs_told(rows), *steps_told(rows)))


def _settings(cells: Mapping[int, Row]) -> str:
    """What a model ran with; where that changed with the length, from which to which it ran with what."""
    told = [(row.setting, length) for length, row in sorted(cells.items()) if row.setting]
    groups = itertools.groupby(told, lambda each: each[0])
    runs = [(setting, [length for _, length in group]) for setting, group in groups]
    if len(runs) < 2:
        return "".join(setting for setting, _ in runs)
    spans = [(setting, " to ".join(as_heads(sorted({lengths[0], lengths[-1]})))) for setting, lengths in runs]
    return "; ".join(f"{setting} ({span})" for setting, span in spans)


def paper_grid(measure: str, name: str) -> Grid:
    """The paper's own table, its lowest numbers in bold, with its decimals; that of memory has the parameters first."""
    table = PAPER[measure]
    counts = paper.PARAMETERS if measure == "memory" else None
    lowest = {length: min(cells[length] for cells in table.rows.values()) for length in table.columns}
    body = [
        (
            Cell(paper.NAMES[model]),
            *(Cell(f"{value:,.3f}", value=value) for value in (counts.rows[model].values() if counts else ())),
            *(Cell(f"{value:,.3f}", value=value, bold=value == lowest[length]) for length, value in cells.items()),
        )
        for model, cells in table.rows.items()
    ]
    title = f"The paper's {table.label}: {table.title} ({table.unit})"
    notes = [f"{FLAG}{table.provenance}."] if table.flagged else []
    notes += [f"{FLAG}{counts.provenance}."] if counts else []
    head = ("the paper's", *(["params (M)"] if counts else []), *as_heads(table.columns))
    return Grid(name, title, head, tuple(body), tuple(notes))


def spread_grid(rows: Rows, measure: str, name: str) -> Grid:
    """The fastest and the slowest call of each median, in brackets how many were timed."""
    lengths = lengths_of(rows)
    body = [
        (Cell(NAMES[model]), *(_spread(cells.get(length)) for length in lengths))
        for model, cells in rows.items()
        if any(row.value for row in cells.values())
    ]
    title = f"{TITLES[measure]} ({UNITS[measure]}), the fastest and the slowest call"
    return Grid(name, title, ("fastest-slowest", *as_heads(lengths)), tuple(body))


def _where(found: Mapping[str, Sequence[int]], rows: Rows) -> str:
    """Models and lengths in words; the models unless they are all that were measured at those lengths."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for model, lengths in found.items():
        alike.setdefault(tuple(lengths), []).append(model)
    told = []
    for lengths, models in alike.items():
        there = [model for model, cells in rows.items() if any(length in cells for length in lengths)]
        names = "" if models == there else " of " + ", ".join(NAMES[model] for model in models)
        told.append(", ".join(as_heads(lengths)) + f" tokens{names}")
    return ", ".join(told)


def _lowest(rows: Rows, length: int) -> float | None:
    values = [cells[length].value for cells in rows.values() if length in cells]
    return min((value for value in values if value is not None), default=None)


def _counts(results: Results, model: str, cells: Mapping[int, Row]) -> list[Cell]:
    own = results.parameters.get(model)
    theirs = paper.PARAMETERS.rows.get(model)
    weights = sorted(row.numbers["weights_mib"] for row in cells.values() if row.numbers)
    ends = "-".join(dict.fromkeys(number(value) for value in (*weights[:1], *weights[-1:])))
    return [
        Cell(f"{own / 1e6:,.3f}", value=own / 1e6) if own else missing(),
        Cell(f"{theirs['total']:,.3f}", value=theirs["total"]) if theirs else missing(),
        Cell(ends, value=weights[0]) if weights else missing(),
    ]


def _cell(row: Row | None, lowest: float | None) -> Cell:
    if row is None:
        return missing()
    if row.value is None:
        return Cell(why(row))
    return Cell(number(row.value), value=row.value, bold=row.value == lowest)


def _spread(row: Row | None) -> Cell:
    if row is None or not row.numbers:
        return missing()
    fastest, slowest = row.numbers["fastest_ms"], row.numbers["slowest_ms"]
    return Cell(f"{number(fastest)}-{number(slowest)}", f"({row.samples})", value=fastest)
