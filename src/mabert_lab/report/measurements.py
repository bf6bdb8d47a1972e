"""The parts of the report on padding, memory, time and throughput."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mabert_lab.report.document import Drawing, Fold, Heading, Items, Part, Text
from mabert_lab.report.drift import drift_chart, drift_grids, truth_grids
from mabert_lab.report.efficiency.report import efficiency_parts
from mabert_lab.report.efficiency.results import NAMES, Results
from mabert_lab.report.efficiency.tables import PAPER, paper_grid
from mabert_lab.report.grid import Cell, Grid, missing, with_best
from mabert_lab.report.machine import code_of, machine_of


def drift_section(results: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Part]:
    """What padding does to a text's vector."""
    for number, (file, result) in enumerate(results, start=1):
        yield Heading(2, "Padding" if number == 1 else f"Padding, {file}")
        source = result.get("source") or {}
        texts = f"{result['texts']} texts ({source.get('texts', 'unknown')}), model `{source.get('model', 'unknown')}`"
        yield Text(f"Cosine distance between a text's vector alone and with padding beside it; {texts}, from `{file}`.")
        described = "Cosine distance against padded positions for each masking, side of the padding and attention"
        yield Drawing(f"drift-{number}", drift_chart(result), described)
        yield Fold("Which regime drifts, and what cures it", tuple(truth_grids(result, f"drift-{number}")))
        yield Fold("The largest distance in every regime", tuple(drift_grids(result, f"drift-{number}")))


def efficiency_not_measured(results: Results | None) -> list[Fold]:
    """The paper's tables of memory and time that nothing is set beside."""
    measured = set() if results is None else {row.measure for row in results.rows}
    grids = [paper_grid(measure, f"not-run-{measure}") for measure in PAPER if measure not in measured]
    return [Fold(grid.title, (grid,)) for grid in grids]


def efficiency_section(results: Results) -> Iterator[Part]:
    """Memory and time over length."""
    yield Heading(2, "Memory and time over length")
    yield from efficiency_parts(results, 3)


def throughput_section(results: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Part]:
    """Many texts at once."""
    for number, (file, result) in enumerate(results, start=1):
        yield Heading(2, "Throughput" if number == 1 else f"Throughput, {file}")
        environment = result.get("environment") or {}
        told = f"`{file}`: {machine_of(environment)}, {code_of(environment)}"
        yield Items((told + ("; **a quick trial run, not to be quoted**" if result.get("quick") else ""),))
        yield throughput_grid(result, f"throughput-{number}")
        spread = throughput_spread(result, f"throughput-{number}-spread")
        yield from [] if spread is None else [spread]


def throughput_grid(result: Mapping[str, Any], name: str) -> Grid:
    """Tokens a second by model and collection of texts, the highest in bold."""
    collections = list(dict.fromkeys(row["lengths"] for row in result["rows"]))
    cells = {(row["model"], row["lengths"]): _rate(row) for row in result["rows"]}
    models = [model for model in NAMES if any(model == known for known, _ in cells)]
    rows = [(Cell(NAMES[model]), *(cells.get((model, each), missing()) for each in collections)) for model in models]
    for column in range(1, len(collections) + 1):
        rows = with_best(rows, column)
    title = f"Tokens a second, {result.get('dtype', 'unknown precision')}"
    return Grid(name, title, ("model", *collections), tuple(rows), tuple(_of_throughput(result, collections)))


def throughput_spread(result: Mapping[str, Any], name: str) -> Grid | None:
    """The slowest and the fastest of each median; None where the file does not have them."""
    cells = {
        (row["model"], row["lengths"]): _rates(row)
        for row in result["rows"]
        if row.get("fastest_ms") and row.get("tokens")
    }
    if not cells:
        return None
    collections = list(dict.fromkeys(each for _, each in cells))
    models = [model for model in NAMES if any(model == known for known, _ in cells)]
    rows = [(Cell(NAMES[model]), *(cells.get((model, each), missing()) for each in collections)) for model in models]
    return Grid(
        name, "Tokens a second, the slowest and the fastest run", ("slowest-fastest", *collections), tuple(rows)
    )


def _of_throughput(result: Mapping[str, Any], collections: Iterable[str]) -> Iterator[str]:
    yield "In brackets the texts of a batch."
    shares, lengths = result.get("share", {}), result.get("lengths", {})
    told = [f"{len(lengths[each]):,} of {each} ({shares[each]:.2%})" for each in collections if each in shares]
    if told:
        yield f"Of the texts that ModernBERT's protocol has of each kind: {', '.join(told)}."


def _rates(row: Mapping[str, Any]) -> Cell:
    slowest, fastest = (1e3 * row["tokens"] / row[name] for name in ("slowest_ms", "fastest_ms"))
    return Cell(f"{slowest:,.0f}-{fastest:,.0f}", value=slowest)


def _rate(row: Mapping[str, Any]) -> Cell:
    rate = row.get("tokens_per_second")
    return missing(row["status"]) if rate is None else Cell(f"{rate:,.0f}", f"({row['batch']})", rate)
