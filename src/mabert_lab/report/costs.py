"""Memory and times: tables and figures over length, and the claims that they decide."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from string import ascii_uppercase
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from mabert_lab.bench.bounds import chance_apart
from mabert_lab.bench.notation import digits
from mabert_lab.report import efficiency, paper
from mabert_lab.report.charts import DASHED, INK, LOOKS, panels, svg, with_grid
from mabert_lab.report.document import MISSING, table, thousands
from mabert_lab.report.efficiency import MEASURES, NAMES, Condition, Results, code_of, machine_of, ratio, spans
from mabert_lab.report.paper import UNMEASURED, Claim, Comparison, Needs, Verdict, verdict_on
from mabert_lab.report.studies import LEVEL

GROUPS: dict[str, Sequence[str]] = {
    "mean of the paper's five baselines": paper.BASELINES,
    "the same without DeBERTa": tuple(model for model in paper.BASELINES if model != "deberta"),
    "BERT alone": ("bert",),
}

HEADLINE_LENGTH = 4096  # length in tokens of the paper's headline
PRINTED = [paper.TABLES[name] for name in ("parameters", *MEASURES)]  # the paper's tables of sizes and costs


def headlines(results: Results) -> pd.DataFrame:
    """Makes a table of the paper's headline under every condition."""
    short, (printed,) = letters(results), efficiency.papers_results().tables.values()
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
    return f"{efficiency.PROFILES[condition.profile]}, {condition._replace(machine=machine).place}"


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
    lengths, (printed,) = sorted(rows["length"].unique()), efficiency.papers_results().tables.values()
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


ALIKE = 0.01  # relative difference of peak memory that counts, and share of it that growth must be
SUBSTANTIAL, SLIGHT = 1.25, 1.1  # from the first ratio on rivals need substantially more, below the second they do not
LEAST_CALLS = 4  # minimum timed calls of each model for a decision


def of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Yields a verdict for each machine, device and precision in the paper's settings, over all lengths of the claim;
    if none can be judged, in any settings. Places that lack a number are told only if no place can be judged."""
    rule = claim.rule
    found = {each: tables[rule["measure"]] for each, tables in results.tables.items() if rule["measure"] in tables}
    reach = {
        each: rows
        for each, rows in found.items()
        if any(len(spans(rows, length, rule["less"], rule.get("from"))) for length in rule["at"])
    }
    asked = list(product(rule["at"], rule["less"], rule["than"]))
    start = f"{rule['from']:,} to " if "from" in rule else "at "
    length = f"{start}{rule['at'][0]:,} tokens, " if len(rule["at"]) == 1 else ""
    every = []
    for condition, rows in (reach or found).items():
        compared = [_held(rows, rule, *each, of=len(asked)) for each in asked]
        settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
        every.append((condition, verdict_on(claim, f"{length}{settings}{condition.place}", compared)))
    told = [(each, verdict) for each, verdict in every if verdict.verdict != UNMEASURED] or every
    papers = [verdict for each, verdict in told if each.profile == "paper"]
    yield from papers or [verdict for _, verdict in told]


def _held(
    rows: pd.DataFrame, rule: Mapping[str, Any], length: int, model: str, group: Sequence[str], of: int
) -> Comparison:
    """Compares the ratio of the rivals' cost to a model's with what the claim needs."""
    start = rule.get("from")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        lacking = []
        for each, at in product((model, *group), (start, length)):
            if at is not None and not spans(rows, at, [each]):
                out_of_memory = rows["status"].get((each, at)) == "out of memory"
                lacking.append(("more memory for" if out_of_memory else "a number of", f"{NAMES[each]} at {at:,}"))
        return Comparison(who, None, needs=lacking)
    value = "" if found.value is None else f" {_times(found.value)}" if found.at_least is None else " at least"
    low, high = map(_times, found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    at = f" at {length:,} tokens" if len(rule["at"]) > 1 else ""
    calls = "" if found.calls is None else f", {found.calls} calls or more"
    sign, needs = _parted(found, found.span, rule, of)
    outcome = ("undecided", "as claimed", "the other way")[sign]
    numbers = f"{who}{value}{spread} times {NAMES[model]}{at}{calls}"
    return Comparison("", sign, outcome, numbers, found.span[0], needs)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "\u221e"


def _parted(found: efficiency.Ratio, span: tuple[float, float], rule: Mapping[str, Any], of: int) -> tuple[int, Needs]:
    """Returns whether a ratio is as large as claimed, as a sign, and what a decision would need. A time decides if its
    bounds do, and so few calls would part by chance in less than 5 % of cases. A ratio that refutes a claim is
    corrected for the number of comparisons."""
    low, high = span
    memory, substantial, factor = rule["measure"] == "memory", rule.get("substantial", False), rule.get("factor")
    if substantial:
        is_above, is_below = low >= SUBSTANTIAL, high < SLIGHT
    elif factor:
        is_above, is_below = round(low, 2) >= factor, round(high, 2) < factor
    else:
        is_above, is_below = low > 1, high < 1
    if memory and found.share < ALIKE:
        return 0, [("lengths", f"over which memory grows by {ALIKE:.0%} or more")]
    if memory and not substantial and abs(low - 1) < ALIKE:
        return 0, [("nothing", f"they differ by less than {ALIKE:.0%}")]
    if not is_above and not is_below:
        word = ("the paper's definition", 'how much is "substantially"')
        return 0, [word if memory else ("timings", "more, or steadier ones")]
    chance = found.chance * (of if is_below else 1)
    if chance < 1 - LEVEL and (found.calls is None or found.calls >= LEAST_CALLS):
        return (1 if is_above else -1), []
    few, many = least_calls(of)
    each = f"{few} of each model or more" if few == many else f"{few} of one model and {many} of the other, or more"
    return 0, [("calls", each)]


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Returns the minimum calls of each of two models that decide, if one of so many comparisons refutes a claim."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next(pair for pair in pairs if comparisons * chance_apart(*pair) < 1 - LEVEL)


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
    if causes := [status for status in efficiency.STATUSES[1:] if status in set(shown["status"])]:
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
