"""The paper's three efficiency tables, ours and its own, as Markdown."""

import math
from collections.abc import Iterable, Mapping, Sequence

from mabert.report import paper
from mabert.report.efficiency.results import NAMES, Results, Row

Rows = Mapping[str, Mapping[int, Row]]
"""One table's rows by model and length."""

PAPER = {"memory": paper.MEMORY, "latency": paper.LATENCY, "training": paper.TRAINING}
TITLES = {"memory": "Peak memory", "latency": "Latency", "training": "Training step"}
UNITS = {"memory": "MiB", "latency": "ms", "training": "ms"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its first column to the left and the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)]) + "\n"


def number(value: float) -> str:
    """A positive number with four significant digits, or all of those before its point."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def why(row: Row | None) -> str:
    """Why a row has no number; ``-`` where there is no row."""
    if row is None:
        return "-"
    if row.limit is not None:
        return f"{row.status} (> {row.limit:,g} s)"
    told = "" if row.reason is None or row.status == "out of memory" else f": {row.reason}"
    return (row.status + told).replace("|", "\\|")


def lengths_of(rows: Rows) -> list[int]:
    """Every length of a table, shortest first."""
    return sorted({length for cells in rows.values() for length in cells})


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
        f"micro-batch: {told}.\n"
    ]


def runs_told(rows: Rows) -> list[str]:
    """Which numbers of a table are of another run than most, as one sentence; nothing where all are of one."""
    places: dict[str, dict[str, list[int]]] = {}
    for model, cells in rows.items():
        for length, row in sorted(cells.items()):
            places.setdefault(row.source.name, {}).setdefault(model, []).append(length)
    count = {name: sum(map(len, found.values())) for name, found in places.items()}
    _, *others = sorted(places, key=lambda name: -count[name])
    told = "; ".join(f"{_where(places[name], rows)} (`{name}`)" for name in others)
    return [f"Of another run than the rest: {told}. Only what is of one run compares closely.\n"] if told else []


def measured_table(results: Results, rows: Rows, measure: str) -> str:
    """One table in the paper's form: a row a model, a column a length, the lowest of each in bold.

    Args:
        results: Where the parameters stand.
        rows: Of the table.
        measure: What they measure; memory has the parameters beside it, as in the paper.
    """
    lengths = lengths_of(rows)
    lowest = {length: _lowest(rows, length) for length in lengths}
    beside = ["params (M)", "the paper's (M)", "weights (MiB)"] if measure == "memory" else []
    body = []
    for model, cells in rows.items():
        counts = _counts(results, model, cells) if beside else []
        values = [_cell(cells.get(length), lowest[length]) for length in lengths]
        settings = dict.fromkeys(row.setting for row in cells.values() if row.setting)
        body.append([NAMES[model], *counts, *values, ", ".join(settings) or "-"])
    return markdown(["model", *beside, *(f"{length:,}" for length in lengths), "ran with"], body)


def paper_table(measure: str) -> str:
    """The paper's own table, its lowest numbers in bold, with its decimals."""
    table = PAPER[measure]
    lowest = {length: min(cells[length] for cells in table.rows.values()) for length in table.columns}
    body = [
        [paper.NAMES[model], *(_bold(f"{value:,.3f}", value == lowest[length]) for length, value in cells.items())]
        for model, cells in table.rows.items()
    ]
    return markdown(["the paper's", *(f"{length:,}" for length in table.columns)], body)


def spread_table(rows: Rows) -> str:
    """The fastest and the slowest call of each median, in brackets how many were timed."""
    lengths = lengths_of(rows)
    body = [
        [NAMES[model], *(_spread(cells.get(length)) for length in lengths)]
        for model, cells in rows.items()
        if any(row.value for row in cells.values())
    ]
    return markdown(["fastest-slowest", *(f"{length:,}" for length in lengths)], body)


def _where(found: Mapping[str, Sequence[int]], rows: Rows) -> str:
    """Models and lengths in words; the models unless they are all that were measured at those lengths."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for model, lengths in found.items():
        alike.setdefault(tuple(lengths), []).append(model)
    told = []
    for lengths, models in alike.items():
        there = [model for model, cells in rows.items() if any(length in cells for length in lengths)]
        names = "" if models == there else " of " + ", ".join(NAMES[model] for model in models)
        told.append(", ".join(f"{length:,}" for length in lengths) + f" tokens{names}")
    return ", ".join(told)


def _lowest(rows: Rows, length: int) -> float | None:
    values = [cells[length].value for cells in rows.values() if length in cells]
    return min((value for value in values if value is not None), default=None)


def _counts(results: Results, model: str, cells: Mapping[int, Row]) -> list[str]:
    own = results.parameters.get(model)
    theirs = paper.PARAMETERS.rows.get(model)
    weights = sorted(row.numbers["weights_mib"] for row in cells.values() if row.numbers)
    return [
        f"{own / 1e6:,.3f}" if own else "-",
        f"{theirs['total']:,.3f}" if theirs else "-",
        "-".join(dict.fromkeys(number(value) for value in (*weights[:1], *weights[-1:]))) or "-",
    ]


def _cell(row: Row | None, lowest: float | None) -> str:
    if row is None or row.value is None:
        return why(row)
    return _bold(number(row.value), row.value == lowest)


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _spread(row: Row | None) -> str:
    if row is None or not row.numbers:
        return "-"
    return f"{number(row.numbers['fastest_ms'])}-{number(row.numbers['slowest_ms'])} ({row.samples})"
