"""Efficiency over length beside the paper's, as a Markdown report."""

from collections.abc import Mapping
from typing import Any

from mabert.report import paper
from mabert.report.efficiency.findings import LONGEST, crossings, headline, memory_growth, ratios, time_growth
from mabert.report.efficiency.results import MEASURES, Condition, Results, Source
from mabert.report.efficiency.tables import (
    DTYPES,
    PAPER,
    TITLES,
    UNITS,
    Rows,
    batch_of,
    measured_table,
    paper_table,
    runs_told,
    spread_table,
    steps_told,
)
from mabert.report.machine import machine_of

PROFILE_TITLES = {"paper": "The paper's settings", "best": "Each model at its best"}

_RATIOS = """### Ratios to MaBERT

A rival's number over MaBERT's: above 1, MaBERT needs less. Where a rival took
turns with MaBERT alone, and the file has MaBERT's time in those turns, the ratio is to that.
"""
_GROWTH = """### Growth

Exponents of length fitted by least squares over the lengths of one run, 1 being linear; in brackets how many lengths
were fitted, and which.
"""
_CROSSINGS = """### Lengths at which MaBERT needs less than a rival

In tokens, interpolated between the lengths that both were measured at. Only medians are compared: where two are nearer
than their spread, the crossing is no more certain than that.
"""


def efficiency_report(results: Results) -> str:
    """Everything the measurements say beside what the paper says.

    Args:
        results: What `load_results` returned.

    Returns:
        Markdown, a section for each condition.
    """
    parts = ["# Efficiency over length\n", _origin()]
    for condition in results.conditions():
        parts += _section(results, condition)
    return "\n".join(parts)


def _origin() -> str:
    machine = paper.MACHINE
    tables: list[paper.Table[Any, float]] = [paper.PARAMETERS, *PAPER.values()]
    remarks = "".join(f"- {table.title}: {table.provenance}.\n" for table in tables)
    return (
        "Parameters are those of sequence classifiers with two labels, memory and latency those of the encoder, "
        "training steps those of masked language modelling. Times are medians, the lowest number of a column is bold. "
        f"Below each table stands the paper's own: one {machine.device}, {machine.precision}, PyTorch {machine.torch}, "
        f"CUDA {machine.cuda}, attention by {machine.attention}; no {', '.join(machine.off)}; medians of "
        f"{machine.runs} runs after {machine.warm_up}. What is known of the paper's numbers:\n\n{remarks}"
    )


def _section(results: Results, condition: Condition) -> list[str]:
    found = {measure: results.table(condition, measure) for measure in MEASURES}
    tables = {measure: rows for measure, rows in found.items() if rows}
    times = {measure: rows for measure, rows in tables.items() if measure != "memory"}
    profile, dtype = PROFILE_TITLES[condition.profile], DTYPES.get(condition.dtype, condition.dtype)
    parts = [f"## {profile}, {dtype}, {condition.device}\n", _sources(results, condition), _headlines(tables)]
    for measure, rows in tables.items():
        parts += _measure(results, measure, rows)
    parts += [_RATIOS, *(ratios(measure, rows) for measure, rows in tables.items()), _GROWTH]
    parts += [memory_growth(tables["memory"])] if "memory" in tables else []
    parts += [time_growth(times)] if times else []
    return [*parts, _CROSSINGS, crossings(tables)]


def _measure(results: Results, measure: str, rows: Rows) -> list[str]:
    heading = f"### {TITLES[measure]} ({UNITS[measure]}), batch {batch_of(rows)}\n"
    spread = [] if measure == "memory" else [spread_table(rows)]
    notes = [*runs_told(rows), *steps_told(rows)]
    return [heading, measured_table(results, rows, measure), *notes, paper_table(measure), *spread]


def _headlines(tables: Mapping[str, Rows]) -> str:
    lines = "\n".join(headline(measure, rows) for measure, rows in tables.items())
    return f"The mean of the paper's five baselines over MaBERT, at {LONGEST:,} tokens:\n\n{lines}\n"


def _sources(results: Results, condition: Condition) -> str:
    used = [row.source for row in results.rows if row.condition == condition]
    shown = [source for source in results.sources if source in used]
    told = [_source(source, condition) for source in shown]
    told += [f"- Of `{source.name}`: {remark}" for source in shown for remark in source.remarks]
    return "\n".join(told) + "\n"


def _source(source: Source, condition: Condition) -> str:
    told = source.environment
    return (
        f"- `{source.name}`: {source.date:%Y-%m-%d}, {machine_of(told, condition.device)}, commit {told.get('commit')}"
    )
