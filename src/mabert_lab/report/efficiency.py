"""What `mabert bench models` wrote: read, checked, several files made one; and models held against one another."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from mabert_lab.report import paper
from mabert_lab.report.machine import machine_of

NAMES = {**{model: paper.MODELS[model] for model in paper.BASELINES}, "modernbert": "ModernBERT", "mabert": "MaBERT"}
"""Every model that is measured, in the order of the tables."""

MEASURES = {"memory": "peak memory", "latency": "latency", "training": "training step"}
PROFILES = ("paper", "stock", "best")
STATUSES = ("measured", "out of memory", "too slow", "failed")
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}

_TIMES = ("median_ms", "fastest_ms", "slowest_ms")
_NUMBERS = {"memory": ("peak_mib", "weights_mib"), "latency": _TIMES, "training": _TIMES}
_KNOWN = {"measure": tuple(MEASURES), "profile": PROFILES, "model": tuple(NAMES), "status": STATUSES}
_LEAST_ANCHORS = 3  # of files from before they were counted: what every protocol asked for
_LIMIT = re.compile(r"\bcall took more than (\d[\d,]*(?:\.\d+)?) ?s\b")


class Condition(NamedTuple):
    """What is the same for all models that are held against each other.

    Attributes:
        profile: ``"paper"`` for the paper's settings, ``"stock"`` for rivals as transformers runs them, ``"best"`` for
            each model's fastest.
        dtype: ``"float32"`` or ``"bfloat16"``.
        device: ``"cpu"`` or ``"cuda"``.
        machine: Its name, threads and torch's version; empty unless results of several machines are read together.
    """

    profile: str
    dtype: str
    device: str
    machine: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """One file of results: its name, when and on what it was measured, and what was found out later."""

    name: str
    date: datetime
    environment: Mapping[str, Any]
    remarks: tuple[str, ...] = ()


Row = Mapping[str, Any]
"""One measurement as its file has it, or why there is none.

``measure``, ``model``, ``length`` in tokens, ``batch`` (of a training step the texts of all of it), ``micro_batch``,
``status`` of `STATUSES`, ``reason``, ``setting``; milliseconds (``median_ms``, ``fastest_ms``, ``slowest_ms`` of
``samples`` calls; ``anchor_ms``, MaBERT's median in the turns of this row, of ``anchor_samples``) or MiB (``peak_mib``,
``weights_mib``). Reading adds ``condition``, ``source``, ``value``, the number of the paper's tables (None unless
measured), and ``at_least``, the seconds that it is known to take longer than (None unless it was too slow in a call).
"""

Rows = Mapping[str, Mapping[int, Row]]
"""One table's rows by model and length."""


@dataclass(frozen=True)
class Results:
    """Rows of one or more files.

    Attributes:
        rows: One for each measure, condition, model and length.
        parameters: Of each model, as it was measured.
        sources: The files, oldest first.
    """

    rows: tuple[Row, ...]
    parameters: Mapping[str, int]
    sources: tuple[Source, ...]

    def conditions(self) -> list[Condition]:
        """The conditions measured under, the paper's settings first, GPU before processor."""
        return sorted(
            {row["condition"] for row in self.rows},
            key=lambda each: (PROFILES.index(each.profile), each.device != "cuda", each.dtype, each.machine),
        )

    def table(self, condition: Condition, measure: str) -> dict[str, dict[int, Row]]:
        """Rows of one table by model and length, in the order of the tables; empty where none was taken."""
        rows = [row for row in self.rows if (row["condition"], row["measure"]) == (condition, measure)]
        found = {model: {row["length"]: row for row in rows if row["model"] == model} for model in NAMES}
        return {model: cells for model, cells in found.items() if cells}

    def tables(self, condition: Condition) -> dict[str, dict[str, dict[int, Row]]]:
        """Every table of a condition by measure; those that none was taken for are left out."""
        found = {measure: self.table(condition, measure) for measure in MEASURES}
        return {measure: rows for measure, rows in found.items() if rows}


def curve(rows: Mapping[int, Row]) -> dict[int, float]:
    """The measured numbers of a model's rows by length."""
    return {length: row["value"] for length, row in sorted(rows.items()) if row["value"] is not None}


def load_results(paths: Iterable[Path | str]) -> Results:
    """Read results and merge them; see `read_results` and `merged`.

    Raises:
        ValueError: No file was given, or one cannot be read.
    """
    files = [read_results(Path(path)) for path in paths]
    if not files:
        raise ValueError("no results to report: give one or more JSON files that `mabert bench models` wrote")
    return merged(files)


def read_results(path: Path) -> Results:
    """Read one file.

    Raises:
        FileNotFoundError: It is missing.
        ValueError: It is not JSON, not of this kind, incomplete, or a trial run.
    """
    from mabert.reading import read_json

    content = read_json(path)
    kind = content.get("kind")
    if kind != "efficiency":
        raise ValueError(f"{path}: kind is {kind!r}; needed is 'efficiency', as `mabert bench models` writes it")
    absent = [name for name in ("environment", "quick", "parameters", "rows") if name not in content]
    if absent or "date" not in content["environment"]:
        raise ValueError(f"{path}: lacks {', '.join(absent) or 'the date of its environment'}")
    if content["quick"]:
        raise ValueError(f"{path}: a quick trial run, whose numbers say nothing; measure without --quick")
    remarks = content.get("remarks", [])
    if not (isinstance(remarks, list) and all(isinstance(remark, str) for remark in remarks)):
        raise ValueError(f"{path}: remarks is {remarks!r}; needed is a list of sentences")
    date = datetime.fromisoformat(content["environment"]["date"])
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    source = Source(path.name, date, content["environment"], tuple(remarks))
    return Results(tuple(_row(raw, source) for raw in content["rows"]), content["parameters"], (source,))


def merged(files: Iterable[Results]) -> Results:
    """All rows of several files; what different machines or versions of torch measured stays apart, as conditions of
    their own.

    Of two rows for the same thing the one that was measured beside more models stays, so that a model measured again
    alone does not part a comparison whose sides took turns; of two such, the later. So does the later of two rows that
    each have MaBERT's time in the same turns, whatever else their files have.
    """
    read = sorted(files, key=lambda file: file.sources[0].date)
    rows = [row for file in read for row in file.rows]
    machines = _machines(rows)
    rows = [{**row, "condition": machines[row["condition"], row["source"]]} for row in rows]
    beside = Counter(itemgetter("source", "measure", "condition", "length")(row) for row in rows)

    def weight(row: Row) -> tuple[bool, int]:
        """Rows of one weight stay in the order of their dates."""
        paired = row.get("anchor_ms") is not None
        others = beside[itemgetter("source", "measure", "condition", "length")(row)]
        return paired, 0 if paired else others

    key = itemgetter("measure", "condition", "model", "length")
    kept = {key(row): row for row in sorted(rows, key=weight)}
    parameters = {model: count for file in read for model, count in file.parameters.items()}
    return Results(tuple(kept.values()), parameters, tuple(source for file in read for source in file.sources))


def _machines(rows: Iterable[Row]) -> dict[tuple[Condition, Source], Condition]:
    """The condition of each file's rows, with the machine where files of several share the rest of it.

    A file of before instructions were recorded counts to the machine that is otherwise the same, if there is only one.
    """
    sources: dict[Condition, dict[Source, None]] = {}
    for row in rows:
        sources.setdefault(row["condition"], {})[row["source"]] = None
    found: dict[tuple[Condition, Source], Condition] = {}
    for condition, files in sources.items():
        names = {file: machine_of(file.environment, condition.device) for file in files}
        like: dict[str, set[str]] = {}
        for file in files:
            if "instructions" in file.environment:
                short = machine_of(file.environment, condition.device, instructions=False)
                like.setdefault(short, set()).add(names[file])
        for file in files:
            if "instructions" not in file.environment and len(like.get(names[file], ())) == 1:
                (names[file],) = like[names[file]]
        shown = names if len(set(names.values())) > 1 else dict.fromkeys(names, "")
        found |= {(condition, file): condition._replace(machine=name) for file, name in shown.items()}
    return found


def _row(raw: Mapping[str, Any], source: Source) -> Row:
    absent = [name for name in (*_KNOWN, "dtype", "device", "length", "batch") if name not in raw]
    if absent:
        raise ValueError(f"{source.name}: a row lacks {', '.join(absent)}: {dict(raw)}")
    for name, known in _KNOWN.items():
        if raw[name] not in known:
            raise ValueError(f"{source.name}: {name} {raw[name]!r} of a row is none of {', '.join(known)}")
    names = _NUMBERS[raw["measure"]] if raw["status"] == "measured" else ()
    for name in names:
        if not (isinstance(raw.get(name), int | float) and raw[name] > 0):
            told = f"{raw['measure']} of {raw['model']} at {raw['length']}"
            raise ValueError(f"{source.name}: {told} is measured, but its {name} is {raw.get(name)!r}")
    measured = raw["status"] == "measured"
    anchors = raw.get("anchor_samples", _LEAST_ANCHORS) if raw.get("anchor_ms") is not None else None
    return {
        "reason": None,
        "setting": None,
        "samples": None,
        "micro_batch": raw["batch"],
        **raw,
        "condition": Condition(raw["profile"], raw["dtype"], raw["device"]),
        "source": source,
        "value": raw[names[0]] if measured else None,
        "anchor_samples": anchors,
        "at_least": _at_least(raw),
    }


def _at_least(raw: Mapping[str, Any]) -> float | None:
    """Seconds that the whole takes at least; of files from before that was written, by the reason, which tells the
    limit of a call, and the calls that the whole has."""
    if raw["status"] != "too slow":
        return None
    if raw.get("at_least_ms") is not None:
        return raw["at_least_ms"] / 1000
    told = _LIMIT.search(raw.get("reason") or "")
    return float(told[1].replace(",", "")) * raw["batch"] / raw.get("micro_batch", raw["batch"]) if told else None


class Span(NamedTuple):
    """What a number lies between, in ms or MiB.

    Attributes:
        low: Of the fastest call; of what was too slow, the bound.
        middle: The median; None where only a bound is known.
        high: Of the slowest call; infinite where only a bound is known.
        rounds: Timed calls; None for memory, which is the same each time, and for bounds.
        beside: Calls of MaBERT in the same turns; None where all models took turns together.
    """

    low: float
    middle: float | None
    high: float
    rounds: int | None = None
    beside: int | None = None


class Ratio(NamedTuple):
    """The mean of rivals over one model.

    Attributes:
        value: Of the medians, or of peak memory, over the rivals that have a number; None where none has.
        counted: How many those are.
        at_least: Lower bound of the mean over all, where each rival without a number is known to exceed one.
        span: What the ratio lies between, from the rivals' fastest calls over the one's slowest to their slowest over
            its fastest; None where a rival has neither a number nor a bound.
        rounds: Of the pair of models that has the fewest timed calls, those of either side; None where nothing was
            timed.
    """

    value: float | None
    counted: int
    at_least: float | None
    span: tuple[float, float] | None
    rounds: tuple[int, int] | None


def span_of(rows: Rows, model: str, length: int, start: int | None = None, beside: str = "") -> Span | None:
    """What a model needs at a length, or by how much more than at a shorter one; None where that is not known.

    A rival that took turns with MaBERT alone is scaled by MaBERT's own median over that in those turns, so that an hour
    in which the machine was slower does not count against either.

    Args:
        rows: Of one table.
        model: One of `NAMES`.
        length: Tokens.
        start: The shorter length, to measure growth.
        beside: The model that it is held against; only beside MaBERT is anything scaled.
    """
    row, ours = rows.get(model, {}).get(length), rows.get(beside, {}).get(length) if beside == "mabert" else None
    if row is not None and row["value"] is not None:
        anchor, value = row.get("anchor_ms"), row["value"]
        scale = 1.0 if anchor is None or ours is None or ours["value"] is None else ours["value"] / anchor
        low, high = (scale * (row.get(name) or value) for name in ("fastest_ms", "slowest_ms"))
        found = Span(low, scale * value, high, row["samples"], row["anchor_samples"] if ours else None)
    elif row is not None and row["at_least"] is not None and row["measure"] != "memory":
        found = Span(1000 * row["at_least"], None, math.inf)
    else:
        return None
    if start is None:
        return found
    first = span_of(rows, model, start, beside=beside)
    if first is None or first.middle is None:
        return None
    rounds = min((each for each in (found.rounds, first.rounds) if each is not None), default=None)
    middle = None if found.middle is None else found.middle - first.middle
    return Span(found.low - first.high, middle, found.high - first.low, rounds, found.beside)


def ratio(
    rows: Rows, length: int, rivals: Sequence[str], ours: str = "mabert", start: int | None = None
) -> Ratio | None:
    """How many times one model's number the mean of its rivals' is; None where the one has no number.

    Args:
        rows: Of one table.
        length: Tokens.
        rivals: Models to average over.
        ours: The model that they are held against.
        start: The shorter length, to compare growth.
    """
    own = span_of(rows, ours, length, start)
    if own is None or own.middle is None or own.middle <= 0:
        return None
    spans = [span for rival in rivals if (span := span_of(rows, rival, length, start, ours)) is not None]
    middles = [span.middle for span in spans if span.middle is not None]
    whole = len(spans) == len(rivals)
    pairs = [(span.rounds, span.beside or own.rounds) for span in spans]
    timed = [(first, second) for first, second in pairs if first is not None and second is not None]
    high = fmean(span.high for span in spans) / own.low if whole and own.low > 0 else math.inf
    return Ratio(
        fmean(middles) / own.middle if middles else None,
        len(middles),
        fmean(span.middle or span.low for span in spans) / own.middle if whole and len(middles) < len(spans) else None,
        (fmean(span.low for span in spans) / own.high, high) if whole else None,
        min(timed, key=lambda pair: math.comb(sum(pair), pair[0]), default=None),
    )
