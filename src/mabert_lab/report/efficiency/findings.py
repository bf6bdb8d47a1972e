"""What the efficiency tables say, ours and the paper's: ratios, growth, crossings."""

from collections.abc import Mapping, Sequence

from mabert_lab.report import paper
from mabert_lab.report.efficiency.ratios import Ratio, ratio
from mabert_lab.report.efficiency.results import NAMES, comparable, curve, of_one_run
from mabert_lab.report.efficiency.scaling import Curve, Growth, Slope, below, growth, slope
from mabert_lab.report.efficiency.tables import PAPER, TITLES, UNITS, Rows, as_heads, lengths_of, why
from mabert_lab.report.grid import Cell, Grid, missing

GROUPS: Mapping[str, Sequence[str]] = {
    "mean of the paper's five baselines": paper.BASELINES,
    "the same without DeBERTa": tuple(model for model in paper.BASELINES if model != "deberta"),
    "BERT alone": ("bert",),
}
LONGEST = 4096
"""The length of the paper's headline."""


def headline(measure: str, rows: Rows) -> str:
    """The paper's headline recomputed, as one line; it names the baselines that have no number."""
    theirs = f"(the paper: {paper.headline(PAPER[measure], LONGEST):.2f})"
    found = ratio(rows, LONGEST, paper.BASELINES)
    if found is None:
        return f"{TITLES[measure]}: no number of MaBERT's, {_lack(rows, 'mabert')} {theirs}"
    if found.counted == found.wanted:
        return f"{TITLES[measure]}: **{found.value:.2f}** {theirs}"
    lacking = [model for model in paper.BASELINES if LONGEST not in curve(rows.get(model, {}))]
    told = "; ".join(f"{NAMES[model]}: {_lack(rows, model)}" for model in lacking)
    known = "" if found.value is None else f", {found.value:.2f} over the {found.counted} measured"
    bound = "" if found.at_least is None else f", at least **{found.at_least:.2f}**"
    return f"{TITLES[measure]}: not over all five ({told}){bound}{known} {theirs}"


def ratios(measure: str, rows: Rows, name: str) -> Grid:
    """Ratios at every length: to the paper's mean, to parts of it, and to the lowest rival, each above the paper's."""
    lengths = lengths_of(rows)
    table = PAPER[measure]
    body = []
    for group, rivals in GROUPS.items():
        body.append((Cell(group), *(_ratio(ratio(rows, length, rivals)) for length in lengths)))
        theirs = {length: paper.headline(table, length, rivals) for length in table.columns}
        body.append((Cell(f"{group}, in the paper"), *(_factor(theirs.get(length)) for length in lengths)))
    ours = comparable(rows)
    body.append((Cell("lowest measured rival"), *(_lowest_rival(ours, length) for length in lengths)))
    body.append((Cell("lowest rival, in the paper"), *(_lowest_rival(table.rows, length) for length in lengths)))
    head = (TITLES[measure].lower(), *as_heads(lengths))
    return Grid(name, f"Ratios to MaBERT, {TITLES[measure].lower()}", head, tuple(body))


def memory_growth(rows: Rows, name: str) -> Grid:
    """How peak memory grows: exponents and MiB a 1,000 tokens, with and without the weights."""
    body = []
    for model, every in rows.items():
        cells = of_one_run(every)
        above = {
            length: row.numbers["peak_mib"] - row.numbers["weights_mib"]
            for length, row in cells.items()
            if row.numbers and row.numbers["peak_mib"] > row.numbers["weights_mib"]
        }
        theirs = paper.MEMORY.rows.get(model, {})
        exponents = [_exponent(growth(each)) for each in (curve(cells), theirs, above)]
        slopes = [_slope(slope(each)) for each in (curve(cells), theirs, above)]
        body.append((Cell(NAMES[model]), *exponents, *slopes))
    beside = ("in the paper", "above the weights")
    head = ("model", "exponent", *beside, f"{UNITS['memory']} a 1,000 tokens", *beside)
    return Grid(name, "Growth of peak memory", head, tuple(body))


def time_growth(tables: Mapping[str, Rows], name: str) -> Grid:
    """Exponents of the times; ``tables`` without memory."""
    models = [model for model in NAMES if any(model in rows for rows in tables.values())]
    body = []
    for model in models:
        pairs = [
            (curve(of_one_run(rows.get(model, {}))), PAPER[measure].rows.get(model, {}))
            for measure, rows in tables.items()
        ]
        body.append((Cell(NAMES[model]), *(_exponent(growth(each)) for pair in pairs for each in pair)))
    return Grid(name, "Growth of time, exponents", ("model", *_beside_the_papers(tables)), tuple(body))


def crossings(tables: Mapping[str, Rows], name: str) -> Grid:
    """Over which lengths MaBERT needs less than each rival, ours and the paper's."""
    body = []
    for rival in NAMES:
        if rival != "mabert" and any(rival in rows for rows in tables.values()):
            cells = []
            for measure, rows in tables.items():
                ours, theirs = comparable(rows), PAPER[measure].rows
                cells.append(stretches(ours.get("mabert", {}), ours.get(rival, {})))
                cells.append(stretches(theirs["mabert"], theirs.get(rival, {})))
            body.append((Cell(NAMES[rival]), *(missing() if cell is None else Cell(cell) for cell in cells)))
    head = ("rival", *_beside_the_papers(tables))
    return Grid(name, "Lengths at which MaBERT needs less", head, tuple(body))


def stretches(ours: Curve, rival: Curve) -> str | None:
    """The lengths over which one curve lies below another, in words; None where they share none."""
    found = below(ours, rival)
    if found is None:
        return None
    if not found:
        shared = sorted(ours.keys() & rival.keys())
        return f"not within the measured lengths ({shared[0]:,}-{shared[-1]:,})"
    only = "only " * (len(found) == 1)
    return ", ".join(_stretch(first, last, only) for first, last in found)


def _stretch(first: float | None, last: float | None, only: str) -> str:
    if first is None:
        return "from the shortest length on" if last is None else f"{only}up to about {last:,.0f}"
    return f"from about {first:,.0f} on" if last is None else f"from about {first:,.0f} to {last:,.0f}"


def _beside_the_papers(tables: Mapping[str, Rows]) -> list[str]:
    return [cell for measure in tables for cell in (TITLES[measure].lower(), "in the paper")]


def _lack(rows: Rows, model: str) -> str:
    """Why a model has no number at the headline's length."""
    row = rows.get(model, {}).get(LONGEST)
    return "not measured" if row is None else why(row)


def _factor(value: float | None) -> Cell:
    return missing() if value is None else Cell(f"{value:.2f}", value=value)


def _ratio(found: Ratio | None) -> Cell:
    if found is None or (found.value is None and found.at_least is None):
        return missing()
    if found.counted == found.wanted:
        return _factor(found.value)
    some = f"over {found.counted} of {found.wanted}"
    if found.at_least is None:
        return Cell(f"{found.value:.2f}", some, found.value)
    known = "" if found.value is None else f"({found.value:.2f} {some})"
    return Cell(f"≥ {found.at_least:.2f}", known, found.at_least)


def _lowest_rival(curves: Mapping[str, Curve], length: int) -> Cell:
    rivals = {model: each[length] for model, each in curves.items() if model != "mabert" and length in each}
    ours = curves.get("mabert", {}).get(length)
    if ours is None or not rivals:
        return missing()
    lowest = min(rivals, key=lambda model: rivals[model])
    return Cell(f"{rivals[lowest] / ours:.2f}", f"({NAMES[lowest]})", rivals[lowest] / ours)


def _exponent(fit: Growth | None) -> Cell:
    if fit is None:
        return missing()
    return Cell(f"{fit.exponent:.2f}", f"({fit.points}: {fit.first:,}-{fit.last:,})", fit.exponent)


def _slope(found: Slope | None) -> Cell:
    if found is None:
        return missing()
    return Cell(f"{found.value:,.1f}", f"({found.first:,}-{found.last:,})", found.value)
