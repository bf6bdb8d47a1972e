"""Memory and times: tables and figures over length; and contenders in engines of their own."""

import math
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from mabert_lab.bench.tables import digits, split, titled
from mabert_lab.report import costs, paper
from mabert_lab.report.charts import COLOURS, DASHED, INK, LOOKS, panels, svg, with_grid
from mabert_lab.report.costs import MEASURES, NAMES, Condition, Results, code_of, machine_of, ratio, spans
from mabert_lab.report.document import MISSING, table, thousands, written

GROUPS: dict[str, Sequence[str]] = {
    "mean of the paper's five baselines": paper.BASELINES,
    "the same without DeBERTa": tuple(model for model in paper.BASELINES if model != "deberta"),
    "BERT alone": ("bert",),
}

TITLES = NAMES | {"mabert-fast": "MaBERT, fast"}  # of contenders in engines
OURS = ("mabert", "mabert-fast", "minilm")  # contenders that count as ours; a folder never does, whatever its name

HEADLINE_LENGTH = 4096  # length in tokens of the paper's headline
PRINTED = [paper.TABLES[name] for name in ("parameters", *MEASURES)]  # the paper's tables of sizes and costs


def headlines(results: Results) -> pd.DataFrame:
    """Makes a table of the paper's headline under every condition."""
    short, (printed,) = letters(results), costs.papers_results().tables.values()
    every = {"the paper": printed} | {name_of(each, short): tables for each, tables in results.tables.items()}
    rows = [
        (name, *(_ratio(own.get(measure), HEADLINE_LENGTH, paper.BASELINES) for measure in MEASURES))
        for name, own in every.items()
    ]
    title = f"The mean of the paper's five baselines over MaBERT at {HEADLINE_LENGTH:,} tokens"
    notes = ["Above 1, MaBERT needs less."]
    if any(mark in cell for row in rows for cell in row[1:] for mark in ("over", "≥")):
        notes.append(
            "Over k of 5: only k rivals have a number at that length. ≥ counts those that were stopped as too slow "
            "with the time limit."
        )
    sparse = results.rows[results.rows["model"].isin(("longformer", "bigbird"))]
    if sparse["setting"].fillna("").str.contains("mabert|blockwise").any():
        notes.append(
            "In some runs Longformer and BigBird, at their best, have this package's attention, which cannot be "
            "installed for them."
        )
    return table(title, ("settings", *MEASURES.values()), rows, notes)


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
    machine = (short or {}).get(condition.machine, condition.machine)
    return f"{costs.PROFILES[condition.profile]}, {condition._replace(machine=machine).place}"


def file_of(condition: Condition) -> str:
    """Returns the file name of a condition's figure."""
    machine = re.sub(r"[^a-z0-9.]+", "-", condition.machine.lower())
    return "-".join(("efficiency", *filter(None, (*condition[:3], machine))))


def measured_table(results: Results, rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Makes a table in the paper's form, the lowest of each length in bold; times have a spread, memory the weights."""
    lowest = rows["value"] == rows.groupby(level="length")["value"].transform("min")
    shown = rows.apply(_cell, axis=1)
    cells = shown.mask(lowest, "**" + shown + "**").unstack("length", fill_value=MISSING)
    cells = cells.loc[rows.index.unique("model")]
    cells.columns = thousands(cells.columns)
    if memory := measure == "memory":
        weights = rows["weights_mib"].groupby(level="model").agg(["min", "max"]).dropna().map(digits, least=4)
        counts = {model: f"{count / 1e6:,.3f}" for model, count in results.parameters.items()}
        cells.insert(0, "params (M)", cells.index.map(lambda model: counts.get(model, MISSING)))
        ends = {model: "-".join(dict.fromkeys(each)) for model, *each in weights.itertuples()}
        cells.insert(1, "weights (MiB)", cells.index.map(lambda model: ends.get(model, MISSING)))
    cells["ran with"] = [_settings(rows.loc[[model]]) or MISSING for model in cells.index]
    batches = ", ".join(map(str, sorted(rows["batch"].unique())))
    title = f"{MEASURES[measure].capitalize()} ({'MiB' if memory else 'ms'}), batch {batches}"
    return table(title, ["model", *cells], cells.rename(index=NAMES).itertuples(name=None), _notes(rows))


def ratio_table(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Tabulates ratios by length, to the paper's mean, parts of it and the lowest rival, each above the paper's own."""
    lengths, (printed,) = sorted(rows["length"].unique()), costs.papers_results().tables.values()
    body = []
    for group, rivals in GROUPS.items():
        for name, own in ((group, rows), (f"{group}, in the paper", printed[measure])):
            body.append((name, *(_ratio(own, length, rivals) for length in lengths)))
    for name, own in (("lowest measured rival", rows), ("lowest rival, in the paper", printed[measure])):
        body.append((name, *(_lowest(own, length) for length in lengths)))
    head = ["a rival's number over MaBERT's", *thousands(lengths)]
    return table(f"Ratios to MaBERT, {MEASURES[measure]}", head, body)


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
        spread = f" ({'-'.join(digits(end, 4) for end in ends)}, {row['samples']:.0f})" if ends[0] > 0 else ""
        return digits(row["value"], 4) + spread
    if row["at_least"] > 0:
        return f"{row['status']} (> {row['at_least']:,g} s)"
    clear = pd.isna(row["reason"]) or row["status"] == "out of memory"
    return str(row["status"]) if clear else f"{row['status']}: {row['reason']}"


def _settings(rows: pd.DataFrame) -> str:
    """Describes a model's setting, with lengths if it changed."""
    lengths = {name: thousands(own["length"]) for name, own in rows.groupby("setting", sort=False)}
    return "; ".join(f"{name} ({', '.join(at)})" if len(lengths) > 1 else str(name) for name, at in lengths.items())


def _notes(rows: pd.DataFrame) -> list[str]:
    """Explains how the numbers were measured: brackets, micro-batches, several runs."""
    notes = []
    if rows["fastest_ms"].notna().any():
        notes.append("Medians; in brackets the fastest and the slowest call and how many were timed.")
    parts = rows[(rows["value"] > 0) & (rows["micro_batch"] < rows["batch"])].reset_index(drop=True)
    small = parts[["length", "micro_batch"]].drop_duplicates().sort_values(["length", "micro_batch"])
    if len(small):
        named = ", ".join(f"{size} at {length:,}" for length, size in small.itertuples(index=False))
        notes.append(
            "A step is a micro-batch, timed and counted as often as the batch has it, and one of AdamW's; texts of a "
            f"micro-batch: {named}."
        )
    runs = rows.groupby([each.name for each in rows["source"]], sort=False)["length"].unique()
    if len(runs) > 1:
        named = "; ".join(f"{name} ({', '.join(thousands(sorted(lengths)))})" for name, lengths in runs.items())
        notes.append(f"Of several runs, and only what is of one compares closely: {named}.")
    return notes


def _ratio(rows: pd.DataFrame | None, length: int, rivals: Sequence[str]) -> str:
    found = None if rows is None else ratio(rows, length, rivals)
    if found is None or (found.value is None and found.at_least is None):
        return MISSING
    some = "" if found.counted == len(rivals) else f" over {found.counted} of {len(rivals)}"
    known = "" if found.value is None else f"{found.value:.2f}{some}"
    return known if found.at_least is None else f"≥ {found.at_least:.2f}" + (f" ({known})" if known else "")


def _lowest(rows: pd.DataFrame, length: int) -> str:
    found = spans(rows, length, rows.index.unique("model").drop("mabert", errors="ignore"))
    middles = pd.Series({model: span.middle for model, span in found.items()}, dtype=float)
    ratios = (middles / rows["value"].get(("mabert", length), math.nan)).dropna()
    return f"{ratios.min():.2f} ({NAMES[ratios.idxmin()]})" if len(ratios) else MISSING


def scaling_chart(results: Results, condition: Condition) -> str | None:
    """Draws one log-log panel per measure over length, with the spread of our numbers; None if there is no data."""
    tables = {each: rows for each, rows in results.tables[condition].items() if rows["value"].notna().any()}
    if not tables:
        return None
    size, columns = {1: ((4.9, 5.6), 2), 2: ((8.0, 5.2), 3), 3: ((11.7, 4.9), 5)}[len(tables)]
    figure, (line,) = panels(size, 1, len(tables), squeeze=False)
    for axes, (measure, rows) in zip(line, tables.items(), strict=True):
        _scaling(axes, measure, rows, condition)
    shown = pd.concat(tables.values())
    names = [name for name in NAMES if name in paper.MODELS or name in set(shown["model"])]
    handles = [Line2D([], [], label=NAMES[name], **_strokes(name)) for name in names]
    here = f"solid: measured, {condition._replace(machine='').place}"
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label=here))
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=DASHED, label="dashed: the paper's, A100, bf16"))
    if causes := [status for status in costs.STATUSES[1:] if status in set(shown["status"])]:
        handles.append(Line2D([], [], linestyle="none", label=f"missing points: {', '.join(causes)}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    return svg(figure)


def _scaling(axes: Axes, measure: str, rows: pd.DataFrame, condition: Condition) -> None:
    printed, measured = paper.TABLES[measure].mean, rows.dropna(subset="value")
    for model in (each for each in LOOKS if each in paper.MODELS or each in rows.index):
        if model in paper.MODELS:
            strokes = {**_strokes(model), "markerfacecolor": "none", "linestyle": DASHED}
            strokes |= {"linewidth": 0.9, "markersize": 3.5, "alpha": 0.7, "zorder": 2}
            axes.plot(printed.columns, printed.loc[model], **strokes)
        own = measured[measured["model"] == model]
        ends = [(own[f"{end}_ms"].fillna(own["value"]) - own["value"]).abs() for end in ("fastest", "slowest")]
        axes.errorbar(own["length"], own["value"], ends if len(own) else None, elinewidth=0.9, **_strokes(model))
    title = MEASURES[measure].capitalize()
    if measure == "memory" and condition.dtype != "float32":
        # Its memory numbers suggest this, although its other numbers are of bf16.
        title += "\n(the paper's: most likely of float32 weights)"
    axes.set_title(title, color=INK, fontsize="medium")
    axes.set(ylabel="MiB" if measure == "memory" else "ms", yscale="log")
    low, high = axes.get_ylim()
    # Up to three decades there is room for ticks between the powers of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,), numticks=12))
    _over_lengths(axes, sorted({*rows["length"], *printed.columns}))


def speed_chart(results: Results, condition: Condition) -> str | None:
    """Draws tokens per second over length on an axis from zero; None if no latency was measured."""
    rows = results.tables[condition].get("latency")
    if rows is None or rows["value"].isna().all():
        return None
    measured = rows.dropna(subset="value")
    (figure, axes), lines = panels((8.0, 3.6)), []
    for model in measured.index.unique("model"):
        lengths = measured.loc[model, "length"]
        speeds = 1e3 * lengths / measured.loc[model, "value"]
        (line,) = axes.plot(lengths, speeds, label=NAMES[model], **_strokes(model))
        lines.append((lengths.iloc[-1], speeds.iloc[-1], line))
    axes.set(ylabel="tokens a second", ylim=(0, None))
    _over_lengths(axes, sorted(measured["length"].unique()))
    # Labels beside the lines, with the fastest at the longest input on top.
    handles = [line for *_, line in sorted(lines, key=lambda each: each[:2], reverse=True)]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return svg(figure)


def _strokes(model: str) -> dict[str, Any]:
    """Returns the line style of a model's own numbers."""
    colour, marker = LOOKS[model]
    width, size, above = (2.8, 7, 4) if model == "mabert" else (1.4, 5, 3)
    return {"color": colour, "linewidth": width, "zorder": above, "marker": marker, "markersize": size}


def _over_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, thousands(lengths), rotation=45, fontsize="small")
    with_grid(axes, xlabel="tokens")


def latencies(content: Mapping[str, Any]) -> pd.DataFrame:
    rows = pd.DataFrame([row for row in content["rows"] if row["measure"] == "latency"])
    return rows.assign(title=[titled(name, TITLES) for name in rows["model"]])


def latency_table(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of milliseconds by length, one row per contender, with the rows of `speeds` below."""
    lengths = sorted(rows["length"].unique())
    lines = [(title, *(written(own[n], "{:,.0f}") for n in lengths)) for title, own in _medians(rows).iterrows()]
    for title, own in speeds(rows).iterrows():
        speed = (written(own[n], "**{:.2f}**") for n in lengths)
        lines.append((f"**{title}: its speed, in the fastest rival's**", *speed))
    dtype, samples = rows["dtype"].iloc[0], rows["samples"].dropna()
    notes = [f"Medians of {samples.min():.0f} to {samples.max():.0f} calls, {dtype}; {name}."]
    settings = rows.dropna(subset="setting").groupby("title", sort=False)["setting"].unique()
    notes += ["; ".join(f"{title}: {' or '.join(given)}" for title, given in settings.items()) + "."]
    missing = rows[rows["median_ms"].isna()]
    notes += [f"{row.title} at {row.length:,} tokens: {row.reason}." for row in missing.itertuples()]
    return table("Latency of a forward, ms", ("", *thousands(lengths)), lines, notes)


def speeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns by title and length how many times as fast each of ours is as the fastest rival of its precision."""
    medians = _medians(rows)
    of_ours = rows["model"].map(lambda name: split(name)[0] in OURS)
    ours, short = medians.index.isin(rows["title"][of_ours]), medians.index.str.endswith("int8")
    rivals = {kind: medians[~ours & (short == kind)].min() for kind in (False, True)}
    return pd.DataFrame({title: rivals[title.endswith("int8")] / medians.loc[title] for title in medians.index[ours]}).T


def _medians(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.pivot(index="title", columns="length", values="median_ms").reindex(rows["title"].unique())


def speed_over_length(rows: pd.DataFrame) -> str | None:
    """Draws `speeds` over length, with a line at the fastest rival; None if there is none of ours or no rival."""
    found = speeds(rows).dropna(how="all")
    if not len(found):
        return None
    figure, axes = panels((7.0, 3.4))
    places = range(len(found.columns))
    colours: dict[str, str] = {}
    for title, own in found.iterrows():
        model = title.removesuffix(", int8")
        colour = colours.setdefault(model, COLOURS[len(colours) % len(COLOURS)])
        axes.plot(places, own, "-" if model == title else "--", marker="o", ms=4, color=colour, label=title)
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate("the fastest rival", (places[-1], 1), (0, -4), textcoords="offset points", ha="right", va="top")
    axes.set_xticks(places, thousands(found.columns))
    with_grid(axes, xlabel="tokens", ylabel="times as fast", ylim=(0, None))
    figure.legend(loc="outside right center", frameon=False, fontsize="small", reverse=True)
    return svg(figure)
