"""Memory and time over length compared with the paper's: tables and ratios."""

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import pandas as pd

from mabert_lab.report import figures, paper
from mabert_lab.report.document import MISSING, Page, page, table
from mabert_lab.report.efficiency import DTYPES, MEASURES, NAMES, Condition, Results, code_of, machine_of, ratio, spans
from mabert_lab.report.study_section import papers_table

PROFILES = {
    "paper": "The paper's settings",
    "stock": "Rivals as transformers runs them",
    "best": "Each model at its best",
}
GROUPS: dict[str, Sequence[str]] = {
    "mean of the paper's five baselines": paper.BASELINES,
    "the same without DeBERTa": tuple(model for model in paper.BASELINES if model != "deberta"),
    "BERT alone": ("bert",),
}
LONGEST = 4096
"""Length in tokens of the paper's headline."""


PRINTED = [paper.TABLES[name] for name in ("parameters", *MEASURES)]
"""The paper's tables of sizes and costs."""


def efficiency_page(results: Results) -> Page:
    """Makes a page of all tables and figures."""
    about: dict[str, Any] = {
        "efficiency": sys.modules[__name__],
        "figures": figures,
        "paper": paper,
        "papers_table": papers_table,
    }
    return page("efficiency.md", "Efficiency over length", results=results, folded=False, **about)


def headlines(results: Results) -> pd.DataFrame:
    """Makes a table of the paper's headline under every condition."""
    short = letters(results)
    rows = [
        (name_of(each, short), *(headline(tables[name]) if name in tables else MISSING for name in MEASURES))
        for each, tables in results.tables.items()
    ]
    rows.insert(0, ("the paper", *(f"{paper.headline(measure):.2f}" for measure in MEASURES)))
    title = f"The mean of the paper's five baselines over MaBERT at {LONGEST:,} tokens"
    return table(title, ("settings", *MEASURES.values()), rows, ["Above 1, MaBERT needs less."])


def sizes(results: Results) -> str:
    """Describes the number of measured models and their parameters."""
    millions = [count / 1e6 for count in results.parameters.values()]
    told = f" of {min(millions):.0f} to {max(millions):.0f} M parameters" if millions else ""
    return f"{results.rows['model'].nunique()} models{told}"


def machines(results: Results) -> str:
    """Counts the kinds of processor and of GPU."""
    kinds: dict[str, set[str]] = {}
    for each in results.tables:
        kinds.setdefault({"cpu": "processor", "cuda": "GPU"}.get(each.device, each.device), set()).add(each.machine)
    counts = {kind: len(names - {""}) or 1 for kind, names in kinds.items()}  # one machine alone goes unnamed
    return " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items())


def letters(results: Results | None) -> dict[str, str]:
    """Assigns a letter to each machine, if there are several."""
    machines = dict.fromkeys(each.machine for each in results.tables if each.machine) if results else {}
    return dict(zip(machines, ascii_uppercase, strict=False))


def name_of(condition: Condition, short: Mapping[str, str] | None = None) -> str:
    """Describes a condition, with a letter for its machine if given."""
    on = f" on {(short or {}).get(condition.machine, condition.machine)}" if condition.machine else ""
    return f"{PROFILES[condition.profile]}, {DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}{on}"


def file_of(condition: Condition) -> str:
    """Returns the file name of a condition's figure."""
    machine = re.sub(r"[^a-z0-9.]+", "-", condition.machine.lower())
    return "-".join(("efficiency", *filter(None, (*condition[:3], machine))))


def headline(rows: pd.DataFrame) -> str:
    """Recomputes the paper's headline."""
    return _ratio(rows, LONGEST, paper.BASELINES)


def measured_table(results: Results, rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Makes a table in the paper's form: models as rows, lengths as columns, the lowest of each in bold; times have the
    fastest and slowest call and the number of calls, memory a column of parameters, as in the paper."""
    lowest = rows["value"] == rows.groupby(level="length")["value"].transform("min")
    shown = rows.apply(_cell, axis=1)
    cells = shown.mask(lowest, "**" + shown + "**").unstack("length", fill_value=MISSING)
    cells = cells.loc[rows.index.unique("model")]
    cells.columns = _heads(cells.columns)
    if memory := measure == "memory":
        weights = rows["weights_mib"].groupby(level="model").agg(["min", "max"]).dropna().map(number)
        counts = {model: f"{count / 1e6:,.3f}" for model, count in results.parameters.items()}
        cells.insert(0, "params (M)", cells.index.map(lambda model: counts.get(model, MISSING)))
        ends = {model: "-".join(dict.fromkeys(each)) for model, *each in weights.itertuples()}
        cells.insert(1, "weights (MiB)", cells.index.map(lambda model: ends.get(model, MISSING)))
    cells["ran with"] = [_settings(rows.loc[[model]]) or MISSING for model in cells.index]
    batches = ", ".join(map(str, sorted(rows["batch"].unique())))
    title = f"{MEASURES[measure].capitalize()} ({'MiB' if memory else 'ms'}), batch {batches}"
    return table(title, ["model", *cells], cells.rename(index=NAMES).itertuples(name=None), _notes(rows))


def ratio_table(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Tabulates ratios by length: to the paper's mean, to parts of it, and to the lowest rival, each above the
    paper's."""
    lengths, printed, body = sorted(rows["length"].unique()), paper.TABLES[measure].mean, []
    for group, rivals in GROUPS.items():
        body.append((group, *(_ratio(rows, length, rivals) for length in lengths)))
        theirs = [f"{paper.headline(measure, each, rivals):.2f}" if each in printed else MISSING for each in lengths]
        body.append((f"{group}, in the paper", *theirs))
    lowest, models = [], rows.index.unique("model").drop("mabert", errors="ignore")
    for length in lengths:
        middles = spans(rows, length, models)["middle"]
        lowest.append(_lowest((middles / rows["value"].get(("mabert", length), math.nan)).dropna()))
    body.append(("lowest measured rival", *lowest))
    rivals = printed.drop("mabert") / printed.loc["mabert"]
    body.append(("lowest rival, in the paper", *(_lowest(rivals.get(length, pd.Series())) for length in lengths)))
    return table(f"Ratios to MaBERT, {MEASURES[measure]}", ["a rival's number over MaBERT's", *_heads(lengths)], body)


def number(value: float) -> str:
    """Formats a positive number with four significant digits, or with all digits before the point."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def flat_rows(results: Results) -> pd.DataFrame:
    """Returns every measurement as a row."""
    return results.rows.assign(source=[each.name for each in results.rows["source"]]).drop(columns="reason")


def origins(results: Results, condition: Condition) -> list[str]:
    """Describes date, machine, code and remarks of each file behind a condition."""
    used = {source for rows in results.tables[condition].values() for source in rows["source"]}
    return [
        f"`{each.name}`: {each.date:%Y-%m-%d}, "
        + ", ".join([machine_of(each.environment, condition.device), code_of(each.environment), *each.remarks])
        for each in results.sources
        if each in used
    ]


def _cell(row: pd.Series) -> str:
    if row["value"] > 0:
        ends = (row["fastest_ms"], row["slowest_ms"])
        spread = f" ({'-'.join(map(number, ends))}, {row['samples']:.0f})" if ends[0] > 0 else ""
        return number(row["value"]) + spread
    if row["at_least"] > 0:
        return f"{row['status']} (> {row['at_least']:,g} s)"
    told = pd.isna(row["reason"]) or row["status"] == "out of memory"
    return str(row["status"]) if told else f"{row['status']}: {row['reason']}"


def _settings(rows: pd.DataFrame) -> str:
    """Describes a model's setting, with lengths if it changed."""
    told = {name: _heads(own["length"]) for name, own in rows.groupby("setting", sort=False)}
    return "; ".join(f"{name} ({', '.join(at)})" if len(told) > 1 else str(name) for name, at in told.items())


def _notes(rows: pd.DataFrame) -> list[str]:
    """Explains how the numbers were measured: brackets, micro-batches, several runs."""
    notes = []
    if rows["fastest_ms"].notna().any():
        notes.append("Medians; in brackets the fastest and the slowest call and how many were timed.")
    parts = rows[(rows["value"] > 0) & (rows["micro_batch"] < rows["batch"])].reset_index(drop=True)
    small = parts[["length", "micro_batch"]].drop_duplicates().sort_values(["length", "micro_batch"])
    if len(small):
        told = ", ".join(f"{size} at {length:,}" for length, size in small.itertuples(index=False))
        notes.append(
            "A step is a micro-batch, timed and counted as often as the batch has it, and one of AdamW's; texts of a "
            f"micro-batch: {told}."
        )
    runs = rows.groupby([each.name for each in rows["source"]], sort=False)["length"].unique()
    if len(runs) > 1:
        told = "; ".join(f"{name} ({', '.join(_heads(sorted(lengths)))})" for name, lengths in runs.items())
        notes.append(f"Of several runs, and only what is of one compares closely: {told}.")
    return notes


def _heads(lengths: Iterable[int]) -> list[str]:
    return [f"{length:,}" for length in lengths]


def _ratio(rows: pd.DataFrame, length: int, rivals: Sequence[str]) -> str:
    found = ratio(rows, length, rivals)
    if found is None or (found.value is None and found.at_least is None):
        return MISSING
    some = "" if found.counted == len(rivals) else f" over {found.counted} of {len(rivals)}"
    known = "" if found.value is None else f"{found.value:.2f}{some}"
    return known if found.at_least is None else f"≥ {found.at_least:.2f}" + (f" ({known})" if known else "")


def _lowest(ratios: pd.Series) -> str:
    return f"{ratios.min():.2f} ({NAMES[ratios.idxmin()]})" if len(ratios) else MISSING
