"""Reads and merges results of `mabert bench models`, compares models, and describes machines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mabert_lab.bench.tables import chance_apart
from mabert_lab.report import paper


def machine_of(environment: Mapping[str, Any], device: str | None = None) -> str:
    """Describes device or processor, threads and torch's version; the processor with its vector instructions, because
    those of one name differ in them. Without a device, ``cpu`` or ``cuda``, it describes both if there is a GPU."""
    processor, gpu = environment.get("processor"), environment.get("device")
    if instructions := environment.get("instructions"):
        processor = f"{processor} ({instructions})"
    if device is None:
        where = processor if gpu in (None, "cpu") else f"{gpu}, {processor}"
    else:
        where = gpu if device == "cuda" else processor
    threads = environment.get("threads")
    torch = (environment.get("packages") or {}).get("torch")
    return f"{where}, {threads} thread{'s' * (threads != 1)}, torch {torch}"


def code_of(environment: Mapping[str, Any]) -> str:
    """Returns the commit of the measuring code, or its version if it was installed without one."""
    if commit := environment.get("commit"):
        return f"commit {commit}"
    return f"mabert {(environment.get('packages') or {}).get('mabert') or 'of an unknown version'}"


NAMES = {model: paper.NAMES[model] for model in (*paper.BASELINES, "modernbert", "mabert")}  # in the tables' order

MEASURES = {"memory": "peak memory", "latency": "latency", "training": "training step"}

PROFILES = {
    "paper": "The paper's settings",
    "stock": "Rivals as transformers runs them",
    "best": "Each model at its best",
}

STATUSES = ("measured", "out of memory", "too slow", "failed")
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
_TIMES = ("median_ms", "fastest_ms", "slowest_ms", "low_ms", "high_ms")
MAY_LACK = ("samples", "anchor_ms", "anchor_samples", "weights_mib", "at_least_ms", *_TIMES)  # which a row may lack


class Condition(NamedTuple):
    """What all models in a comparison have in common."""

    profile: str  # a key of `PROFILES`
    dtype: str  # ``"float32"`` or ``"bfloat16"``
    device: str  # ``"cpu"`` or ``"cuda"``
    machine: str = ""  # name, threads and torch's version; empty unless results of several machines are read together

    @property
    def place(self) -> str:
        """Precision, device and machine, as printed."""
        on = f" on {self.machine}" if self.machine else ""
        return f"{DTYPES.get(self.dtype, self.dtype)}, {self.device}{on}"


_CONDITION = list(Condition._fields)


@dataclass(frozen=True, eq=False)
class Source:
    """One file of results: its name, date and environment of the measurement, and later remarks."""

    name: str
    date: datetime
    environment: Mapping[str, Any]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Results:
    """Measurements of one or more files."""

    # One per measure, condition, model and length, as `mabert_lab.bench.turns.Measurement` describes it; files from
    # before 2026-11-28 lack ``low_ms`` and ``high_ms``. Reading adds ``source``; ``value``, the number in the unit of
    # the paper's tables (NaN unless measured); and ``at_least``, a lower bound in seconds (NaN unless too slow).
    rows: pd.DataFrame
    parameters: Mapping[str, int]  # of each measured model
    sources: tuple[Source, ...]  # the files, oldest first

    @cached_property
    def tables(self) -> dict[Condition, dict[str, pd.DataFrame]]:
        """Rows by condition and measure, by model and length in the tables' order; the paper's settings come first."""
        order = {"profile": PROFILES, "device": ("cuda", "cpu"), "measure": MEASURES, "model": NAMES}
        keys = ["profile", "device", "dtype", "machine", "measure", "model", "length"]
        rows = self.rows.sort_values(
            keys, key=lambda column: column.map(list(order[column.name]).index) if column.name in order else column
        )
        found: dict[Condition, dict[str, pd.DataFrame]] = {}
        for (*condition, measure), own in rows.groupby([*_CONDITION, "measure"], sort=False):
            table = own.set_index(["model", "length"], drop=False)
            found.setdefault(Condition(*condition), {})[measure] = table
        return found


def read_results(content: Mapping[str, Any], file: str) -> Results:
    """Checks the rows of a file. KeyError if a field is missing; ValueError for no rows, a trial, or unknown names."""
    if content["quick"]:
        raise ValueError("a quick trial run, whose numbers say nothing; measure without --quick")
    if not content["rows"]:
        raise ValueError("no rows")
    date = datetime.fromisoformat(content["environment"]["date"])
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    source = Source(Path(file).name, date, content["environment"], tuple(content.get("remarks", ())))
    rows = pd.DataFrame([_row(raw) for raw in content["rows"]]).astype(dict.fromkeys(MAY_LACK, float))
    rows = rows.assign(source=[source] * len(rows), machine="", at_least=rows["at_least_ms"] / 1000)
    return Results(rows, content["parameters"], (source,))


def merged(files: Iterable[Results]) -> Results:
    """Merges the rows of several files; different machines or versions of torch stay apart as separate conditions. Of
    duplicate rows, the one measured beside more models stays, then the later one, so that a model measured again alone
    does not break up a comparison whose sides took turns. Rows with MaBERT's time in the same turns win over others."""
    read = sorted(files, key=lambda file: file.sources[0].date)
    rows = pd.concat([file.rows for file in read if len(file.rows)], ignore_index=True)
    for (_, _, device, _), own in rows.groupby(_CONDITION, sort=False):
        machines = own["source"].map({each: machine_of(each.environment, device) for each in own["source"].unique()})
        if machines.nunique() > 1:
            rows.loc[own.index, "machine"] = machines
    same = ["measure", *_CONDITION, "length"]
    paired = rows["anchor_ms"].notna()
    beside = rows.groupby([*same, "source"], sort=False)["model"].transform("size").mask(paired, 0)
    kept = rows.assign(paired=paired, beside=beside).sort_values(["paired", "beside"], kind="stable")
    kept = kept.drop_duplicates([*same, "model"], keep="last").drop(columns=["paired", "beside"])
    parameters = {model: count for file in read for model, count in file.parameters.items()}
    return Results(kept, parameters, tuple(source for file in read for source in file.sources))


def _row(raw: Mapping[str, Any]) -> dict[str, Any]:
    for name, names in (("measure", MEASURES), ("profile", PROFILES), ("model", NAMES), ("status", STATUSES)):
        if raw[name] not in names:
            raise ValueError(f"{name} {raw[name]!r} of a row is none of {', '.join(names)}")
    number = "peak_mib" if raw["measure"] == "memory" else "median_ms"
    value = float(raw[number]) if raw["status"] == "measured" else math.nan
    # Files without counts are of protocols that called at least three times.
    anchors = None if raw.get("anchor_ms") is None else raw.get("anchor_samples", 3)
    row = dict.fromkeys(("reason", "setting", *MAY_LACK)) | {"micro_batch": raw["batch"], **raw}
    return row | {"value": value, "anchor_samples": anchors}


@cache
def papers_results() -> Results:
    """Returns the paper's memory and times as results without a spread."""
    source = Source("paper", datetime.min.replace(tzinfo=UTC), {})
    printed = {measure: paper.TABLES[measure].mean.stack() for measure in MEASURES}
    rows = pd.concat(printed, names=["measure", "model", "length"]).rename("value").reset_index()
    about = Condition("paper", "bfloat16", "cuda")._asdict() | dict.fromkeys(("at_least", *MAY_LACK), math.nan)
    return Results(rows.assign(**about, status="measured", source=[source] * len(rows)), {}, (source,))


class Ratio(NamedTuple):
    """The ratio of the mean of rivals to one model."""

    value: float | None  # ratio of medians or of peak memory over the rivals with a number; None if none has one
    counted: int  # number of those rivals
    at_least: float | None  # lower bound of the mean over all rivals, if each without a number has a bound
    span: tuple[float, float] | None  # from lower bounds over the upper to upper ones over the lower; None if unbounded
    calls: int | None  # the fewest timed calls of a model; None if nothing was timed
    chance: float  # largest for any pair that bounds of so many calls lie apart at equal speed; 0 if nothing was timed
    share: float  # the largest share of a model's whole cost that is compared: 1, or less of growth


class Span(NamedTuple):
    """The cost of a model at a length, in ms or MiB, or its growth from a shorter length; NaN is not known."""

    low: float  # lower bound, in older files the fastest call; if the model was too slow to be timed, the time limit
    middle: float  # the median; NaN if it was too slow
    high: float  # upper bound, in older files the slowest call; if too slow, infinity
    calls: float  # how many were timed; NaN for memory, which does not vary, and if too slow
    beside: float  # MaBERT's calls in the same turns; NaN if all models took turns
    whole: float  # the median at the length


def spans(rows: pd.DataFrame, length: int, models: Iterable[str], start: int | None = None) -> dict[str, Span]:
    """Returns the known costs of models at a length, or their growth from a shorter one (`start`), from the rows of one
    table. A model that took turns only with MaBERT is scaled by MaBERT's own median over its median in those turns, so
    that a slower time of the machine does not count against any. What shrinks has grown by 0."""
    found = {model: _span(rows, length, model) for model in models if (model, length) in rows.index}
    if start is not None:
        first = {model: span for model, span in spans(rows, start, found).items() if not math.isnan(span.middle)}
        found = {model: _growth(first[model], found[model]) for model in first}
    return {model: span for model, span in found.items() if not math.isnan(span.low)}


def _span(rows: pd.DataFrame, length: int, model: str) -> Span:
    row = rows.loc[(model, length)]
    ours = rows["value"].get(("mabert", length), math.nan)
    value, beside = row["value"], row["anchor_samples"] if ours > 0 else math.nan
    if math.isnan(value):
        slow = math.nan if row["measure"] == "memory" else 1000 * row["at_least"]
        return Span(slow, math.nan, math.inf, math.nan, beside, math.nan)
    scale = _first(ours / row["anchor_ms"], 1.0)
    low, high = _first(row["low_ms"], row["fastest_ms"], value), _first(row["high_ms"], row["slowest_ms"], value)
    return Span(low * scale, value * scale, high * scale, row["samples"], beside, value * scale)


def _growth(first: Span, last: Span) -> Span:
    grown = (last.low - first.high, last.middle - first.middle, last.high - first.low)
    low, middle, high = np.maximum(grown, 0)  # NaN stays
    return Span(low, middle, high, np.fmin(first.calls, last.calls), np.fmin(first.beside, last.beside), last.whole)


def _first(*values: float) -> float:
    """Returns the first that is known."""
    return next((value for value in values if not math.isnan(value)), math.nan)


def ratio(
    rows: pd.DataFrame, length: int, rivals: Sequence[str], ours: str = "mabert", start: int | None = None
) -> Ratio | None:
    """Returns the mean of the rivals' numbers over one model's, of costs or of growth, see `spans`; None if that model
    has neither a number nor a bound. Of growth a model may have none: then any of the rivals is infinitely more."""
    own = spans(rows, length, [ours], start).get(ours)
    if own is None:
        return None
    found = list(spans(rows, length, rivals, start).values())
    middles = [each.middle for each in found if not math.isnan(each.middle)]
    whole, timed = len(found) == len(rivals), not math.isnan(own.middle)
    value = at_least = span = None
    if middles and timed:
        value = _over(fmean(middles), own.middle)
    if whole and timed and len(middles) < len(found):
        at_least = _over(fmean(_first(each.middle, each.low) for each in found), own.middle)
    if whole:
        low, high = fmean(each.low for each in found), fmean(each.high for each in found)
        span = (_over(low, own.high), _over(high, own.low))
    pairs = [(each.calls, _first(each.beside, own.calls) if ours == "mabert" else own.calls) for each in found]
    calls = [(int(one), int(two)) for one, two in pairs if not any(map(math.isnan, (one, two, own.calls)))]
    fewest = min(chain.from_iterable(calls), default=None)
    chance = max((chance_apart(*pair) for pair in calls), default=0.0)
    share = max(each.middle / each.whole if each.whole > 0 else 0.0 for each in (*found, own))
    return Ratio(value, len(middles), at_least, span, fewest, chance, share)


def _over(more: float, less: float) -> float:
    """Divides; over 0 or less, by whether the first is larger, equal or smaller."""
    if less > 0:
        return more / less
    return math.inf if more > less else float(more == less)
