"""What `mabert bench models` wrote: read, checked, several files made one."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mabert.reading import read_json
from mabert_lab.report import paper
from mabert_lab.report.efficiency.scaling import Curve
from mabert_lab.report.machine import machine_of

NAMES = {
    **{model: paper.NAMES[model] for model in paper.BASELINES},
    "modernbert": "ModernBERT",
    "mabert": paper.NAMES["mabert"],
}
"""Every model that is measured, in the order of the tables."""

MEASURES = ("memory", "latency", "training")
PROFILES = ("paper", "stock", "best")
STATUSES = ("measured", "out of memory", "too slow", "failed")

Key = tuple[datetime, str]
"""What tells a file from others: when it was measured, and where it lies."""

_TIMES = ("median_ms", "fastest_ms", "slowest_ms")
_NUMBERS = {"memory": ("peak_mib", "weights_mib"), "latency": _TIMES, "training": _TIMES}
_BESIDE = ("anchor_ms",)
_KNOWN = {"measure": MEASURES, "profile": PROFILES, "model": tuple(NAMES), "status": STATUSES}
_NEEDED = (*_KNOWN, "dtype", "device", "length", "batch")
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


@dataclass(frozen=True)
class Source:
    """One file of results.

    Attributes:
        name: Of the file.
        path: Where it lies.
        date: Of the measurement, with its time zone.
        environment: Machine, versions and commit.
        remarks: What was found out about the measurement afterwards, as its file says.
    """

    name: str
    path: Path
    date: datetime
    environment: Mapping[str, Any]
    remarks: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """What tells it from a file of the same name in another folder too."""
        return self.date, str(self.path)


@dataclass(frozen=True)
class Row:
    """One measurement, or why there is none.

    Attributes:
        measure: One of ``MEASURES``.
        condition: What it shares with the models beside it.
        model: One of ``NAMES``.
        length: Tokens.
        batch: Texts a call; of a training step those of the whole step.
        micro_batch: Texts at once.
        status: One of ``STATUSES``.
        reason: Why there is no number, in one line.
        setting: What the model ran with, such as its attention.
        numbers: By name as in the file, milliseconds and MiB; empty unless measured. ``anchor_ms`` is MaBERT's median
            in the turns of this row, where MaBERT's own row is of more turns.
        samples: Timed calls behind them; None for memory.
        anchor_samples: Those behind ``anchor_ms``; None where that is not there.
        at_least: Seconds that the whole is known to take longer than; None unless it was too slow in a call. A model
            that was too slow to build, say, has none: that bounds no call.
        source: The file it stood in.
    """

    measure: str
    condition: Condition
    model: str
    length: int
    batch: int
    micro_batch: int
    status: str
    reason: str | None
    setting: str | None
    numbers: Mapping[str, float]
    samples: int | None
    anchor_samples: int | None
    at_least: float | None
    source: Source

    @property
    def value(self) -> float | None:
        """The number of the paper's tables: median milliseconds, or peak MiB; None unless measured."""
        return self.numbers.get("peak_mib" if self.measure == "memory" else "median_ms")


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
        found = {row.condition for row in self.rows}
        return sorted(
            found, key=lambda each: (PROFILES.index(each.profile), each.device != "cuda", each.dtype, each.machine)
        )

    def has_numbers(self, condition: Condition) -> bool:
        """Whether anything under it was measured, and not all was too slow or too large."""
        return any(row.value is not None for row in self.rows if row.condition == condition)

    def table(self, condition: Condition, measure: str) -> dict[str, dict[int, Row]]:
        """Rows of one table by model and length, in the order of the tables; empty where none was taken."""
        rows = [row for row in self.rows if row.condition == condition and row.measure == measure]
        found = {model: [row for row in rows if row.model == model] for model in NAMES}
        return {model: {row.length: row for row in part} for model, part in found.items() if part}


def of_one_run(rows: Mapping[int, Row]) -> dict[int, Row]:
    """Those of a model's rows that are of one file, the one with most lengths, or the later of two such.

    Between runs the machine was not the same, or the models ran otherwise, so nothing is fitted across them.
    """
    lengths = Counter(row.source.key for row in rows.values() if row.value is not None)
    chosen = max(lengths, key=lambda key: (lengths[key], key), default=None)
    return {length: row for length, row in rows.items() if row.source.key == chosen}


def curve(rows: Mapping[int, Row]) -> Curve:
    """The measured numbers of a model's rows by length."""
    return {length: row.value for length, row in sorted(rows.items()) if row.value is not None}


def comparable(rows: Mapping[str, Mapping[int, Row]]) -> dict[str, Curve]:
    """The measured numbers of one table by model, each as it stands to MaBERT's.

    A rival that took turns with MaBERT alone is set beside what MaBERT took in those turns: its number is scaled by
    MaBERT's own over that, so that an hour in which the machine was slower does not count against either.
    """
    ours = rows.get("mabert", {})
    return {
        model: {length: value * factor(cells[length], ours.get(length)) for length, value in curve(cells).items()}
        for model, cells in rows.items()
    }


def factor(row: Row, ours: Row | None) -> float:
    """By what a rival's number is scaled to stand beside MaBERT's own; see `comparable`."""
    anchor = row.numbers.get("anchor_ms")
    return 1.0 if anchor is None or ours is None or ours.value is None else ours.value / anchor


@dataclass(frozen=True)
class File:
    """One file's content.

    Attributes:
        source: Where and when it was measured.
        parameters: Of each model.
        rows: As they stand in it.
    """

    source: Source
    parameters: Mapping[str, int]
    rows: tuple[Row, ...]


def load_results(paths: Iterable[Path | str]) -> Results:
    """Read results and merge them; see `read_results` and `merged`.

    Raises:
        ValueError: No file was given, or one cannot be read.
    """
    files = [read_results(Path(path)) for path in paths]
    if not files:
        raise ValueError("no results to report: give one or more JSON files that `mabert bench models` wrote")
    return merged(files)


def read_results(path: Path) -> File:
    """Read one file.

    Raises:
        FileNotFoundError: It is missing.
        ValueError: It is not JSON, not of this kind, incomplete, or a trial run.
    """
    source, content = _read(path)
    return File(source, content["parameters"], tuple(_row(raw, source) for raw in content["rows"]))


def merged(files: Iterable[File]) -> Results:
    """All rows of several files; what different machines or versions of torch measured stays apart, as conditions of
    their own.

    Of two rows for the same thing the one that was measured beside more models stays, so that a model measured again
    alone does not part a comparison whose sides took turns; of two such, the later. So does the later of two rows that
    each have MaBERT's time in the same turns, whatever else their files have.
    """
    read = sorted(files, key=lambda file: file.source.date)
    parameters: dict[str, int] = {}
    for file in read:
        parameters |= file.parameters
    every = [(number, row) for number, file in enumerate(read) for row in file.rows]
    machines = _machines(row for _, row in every)
    found = [(number, replace(row, condition=machines[row.condition, row.source.key])) for number, row in every]
    beside = Counter((number, row.measure, row.condition, row.length) for number, row in found)

    def weight(number: int, row: Row) -> tuple[bool, int, int]:
        paired = "anchor_ms" in row.numbers
        return paired, 0 if paired else beside[number, row.measure, row.condition, row.length], number

    found.sort(key=lambda each: weight(*each))
    rows = {(row.measure, row.condition, row.model, row.length): row for _, row in found}
    return Results(tuple(rows.values()), parameters, tuple(file.source for file in read))


def _machines(rows: Iterable[Row]) -> dict[tuple[Condition, Key], Condition]:
    """The condition of each file's rows, with the machine where files of several share the rest of it.

    A file of before instructions were recorded counts to the machine that is otherwise the same, if there is only one.
    """
    sources: dict[Condition, dict[Key, Source]] = {}
    for row in rows:
        sources.setdefault(row.condition, {})[row.source.key] = row.source
    found: dict[tuple[Condition, Key], Condition] = {}
    for condition, each in sources.items():
        names = _names({key: source.environment for key, source in each.items()}, condition.device)
        several = len(set(names.values())) > 1
        found |= {(condition, key): condition._replace(machine=name if several else "") for key, name in names.items()}
    return found


def _names(environments: Mapping[Key, Mapping[str, Any]], device: str) -> dict[Key, str]:
    """The machine of each environment; of one that does not tell its instructions, as said above."""
    names: dict[Key, str] = {}
    like: dict[str, set[str]] = {}
    for key, environment in environments.items():
        names[key] = machine_of(environment, device)
        if "instructions" in environment:
            like.setdefault(machine_of(environment, device, instructions=False), set()).add(names[key])
    for key, environment in environments.items():
        same = like.get(names[key], set())
        if "instructions" not in environment and len(same) == 1:
            (names[key],) = same
    return names


def _read(path: Path) -> tuple[Source, dict[str, Any]]:
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
    return Source(path.name, path.resolve(), date, content["environment"], tuple(remarks)), content


def _row(raw: Mapping[str, Any], source: Source) -> Row:
    absent = [name for name in _NEEDED if name not in raw]
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
    return Row(
        measure=raw["measure"],
        condition=Condition(raw["profile"], raw["dtype"], raw["device"]),
        model=raw["model"],
        length=raw["length"],
        batch=raw["batch"],
        micro_batch=raw.get("micro_batch", raw["batch"]),
        status=raw["status"],
        reason=raw.get("reason"),
        setting=raw.get("setting"),
        numbers={name: raw[name] for name in (*names, *_BESIDE) if raw.get(name) is not None},
        samples=raw.get("samples"),
        anchor_samples=raw.get("anchor_samples", _LEAST_ANCHORS) if raw.get("anchor_ms") is not None else None,
        at_least=_at_least(raw),
        source=source,
    )


def _at_least(raw: Mapping[str, Any]) -> float | None:
    """Seconds that the whole takes at least; of files from before that was written, by the reason, which tells the
    limit of a call, and the calls that the whole has."""
    if raw["status"] != "too slow":
        return None
    if raw.get("at_least_ms") is not None:
        return raw["at_least_ms"] / 1000
    told = _LIMIT.search(raw.get("reason") or "")
    return float(told[1].replace(",", "")) * raw["batch"] / raw.get("micro_batch", raw["batch"]) if told else None
