"""Efficiency over length beside the paper's, part by part."""

import re
from collections.abc import Iterator
from typing import Any

from mabert_lab.report import paper
from mabert_lab.report.document import Drawing, Heading, Items, Part, Text
from mabert_lab.report.efficiency.chart import scaling_chart, speed_chart
from mabert_lab.report.efficiency.findings import LONGEST, crossings, headline, memory_growth, ratios, time_growth
from mabert_lab.report.efficiency.results import MEASURES, Condition, Results, Source
from mabert_lab.report.efficiency.tables import (
    DTYPES,
    PAPER,
    TITLES,
    measured_grid,
    paper_grid,
    spread_grid,
)
from mabert_lab.report.machine import code_of, machine_of

TITLE = "Efficiency over length"
PROFILE_TITLES = {
    "paper": "The paper's settings",
    "stock": "Rivals as transformers runs them",
    "best": "Each model at its best",
}

_RATIOS = (
    "A rival's number over MaBERT's: above 1, MaBERT needs less. Where a rival took turns with MaBERT alone, and the "
    "file has MaBERT's time in those turns, the ratio is to that."
)
_BEST_ON_A_GPU = (
    "What serves a model best was measured on a processor. On a GPU it has the same settings, and none is compiled."
)
_GROWTH = (
    "Exponents of length fitted by least squares over the lengths of one run, 1 being linear; in brackets how many "
    "lengths were fitted, and which."
)
_CROSSINGS = (
    "In tokens, interpolated between the lengths that both were measured at. Only medians are compared: where two are "
    "nearer than their spread, the crossing is no more certain than that."
)


def efficiency_document(results: Results) -> list[Part]:
    """Everything the measurements say beside what the paper says, as a document of its own."""
    return [Heading(1, TITLE), *efficiency_parts(results, 2)]


def efficiency_parts(results: Results, level: int) -> Iterator[Part]:
    """The same without a title.

    Args:
        results: What `load_results` returned.
        level: Of the headings of conditions; those within them are one deeper.
    """
    yield from _origin()
    for condition in results.conditions():
        yield from _section(results, condition, level)


def name_of(condition: Condition, *more: str) -> str:
    """What a condition's figure is called, or one of its tables."""
    machine = re.sub(r"[^a-z0-9.]+", "-", condition.machine.lower())
    return "-".join(("efficiency", *filter(None, (*condition[:3], machine)), *more))


def _origin() -> Iterator[Part]:
    machine = paper.MACHINE
    tables: list[paper.Table[Any, float]] = [paper.PARAMETERS, *PAPER.values()]
    yield Text(
        "Parameters are those of sequence classifiers with two labels, memory and latency those of the encoder, "
        "training steps those of masked language modelling. Times are medians, the lowest number of a column is bold. "
        f"Below each table stands the paper's own: one {machine.device}, {machine.precision}, PyTorch {machine.torch}, "
        f"CUDA {machine.cuda}, attention by {machine.attention}; no {', '.join(machine.off)}; medians of "
        f"{machine.runs} runs after {machine.warm_up}. What is known of the paper's numbers:"
    )
    yield Items(tuple(f"{table.title}: {table.provenance}." for table in tables))


def _section(results: Results, condition: Condition, level: int) -> Iterator[Part]:
    found = {measure: results.table(condition, measure) for measure in MEASURES}
    tables = {measure: rows for measure, rows in found.items() if rows}
    times = {measure: rows for measure, rows in tables.items() if measure != "memory"}
    profile, dtype = PROFILE_TITLES[condition.profile], DTYPES.get(condition.dtype, condition.dtype)
    on = f" on {condition.machine}" if condition.machine else ""
    yield Heading(level, f"{profile}, {dtype}, {condition.device}{on}")
    if condition.profile == "best" and condition.device == "cuda":
        yield Text(_BEST_ON_A_GPU)
    if results.has_numbers(condition):
        told = f"Peak memory, latency and training step over length, {', '.join(condition[:3])}{on}; the paper's dashed"
        yield Drawing(name_of(condition), scaling_chart(results, condition), told)
    yield Items(tuple(_sources(results, condition)))
    yield Text(f"The mean of the paper's five baselines over MaBERT, at {LONGEST:,} tokens:")
    yield Items(tuple(headline(measure, rows) for measure, rows in tables.items()))
    for measure, rows in tables.items():
        yield Heading(level + 1, TITLES[measure])
        yield measured_grid(results, rows, measure, name_of(condition, measure))
        yield paper_grid(measure, name_of(condition, measure, "paper"))
        if measure in times:
            yield spread_grid(rows, measure, name_of(condition, measure, "spread"))
        if measure == "latency" and (chart := speed_chart(results, condition)):
            told = f"Tokens a second of one forward over length, {', '.join(condition[:3])}{on}"
            yield Drawing(name_of(condition, "speed"), chart, told)
    yield Heading(level + 1, "Ratios to MaBERT")
    yield Text(_RATIOS)
    for measure, rows in tables.items():
        yield ratios(measure, rows, name_of(condition, measure, "ratios"))
    yield Heading(level + 1, "Growth")
    yield Text(_GROWTH)
    if "memory" in tables:
        yield memory_growth(tables["memory"], name_of(condition, "memory", "growth"))
    if times:
        yield time_growth(times, name_of(condition, "time", "growth"))
    yield Heading(level + 1, "Lengths at which MaBERT needs less than a rival")
    yield Text(_CROSSINGS)
    yield crossings(tables, name_of(condition, "crossings"))


def _sources(results: Results, condition: Condition) -> Iterator[str]:
    used = [row.source for row in results.rows if row.condition == condition]
    shown = [source for source in results.sources if source in used]
    yield from (_source(source, condition) for source in shown)
    yield from (f"Of `{source.name}`: {remark}" for source in shown for remark in source.remarks)


def _source(source: Source, condition: Condition) -> str:
    told = source.environment
    return f"`{source.name}`: {source.date:%Y-%m-%d}, {machine_of(told, condition.device)}, {code_of(told)}"
