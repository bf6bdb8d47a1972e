"""The paper's three efficiency tables for MaBERT and its rivals: peak memory, latency, and training step time."""

import itertools
import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console

from mabert.baselines.registry import FAMILIES
from mabert.machine.environment import fast_dtype
from mabert.schema.check import Checked
from mabert.schema.ranges import Range, Read, Tokens
from mabert_lab.bench.engines import contender, title_of
from mabert_lab.bench.profiles import Cell, Dtype, Profile
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.bench.tables import digits
from mabert_lab.bench.turns import QUICK, Bench, Protocol
from mabert_lab.bench.worker import workers_of

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
PAPER_LENGTHS = LENGTHS[:5]  # lengths of the paper's tables of memory, latency and training

Measure = Literal["memory", "latency", "training"]

OF_BATCHES = "batches"  # kind of results with batches whose rows were named; the paper's tables have none

Shape = Annotated[
    tuple[Annotated[int, Range(0, 2**20)], Tokens], Read(lambda shape: (0, shape) if isinstance(shape, int) else shape)
]
"""Rows and tokens of each; no rows, or tokens alone, for one text, in training for 32."""


@dataclass(frozen=True)
class Plan(Checked):
    """A set of measurements; ValueError if a requested name is unknown."""

    models: Sequence[str] = tuple(FAMILIES)  # names of contenders, see `mabert_lab.bench.engines.contender`
    measures: Sequence[Measure] = typing.get_args(Measure)
    profiles: Sequence[Profile] = ("best",)
    dtypes: Sequence[Dtype] = ()  # default, `mabert.machine.environment.fast_dtype` alone
    lengths: Sequence[Shape] = field(default_factory=lambda: [(0, length) for length in LENGTHS])
    protocol: Protocol = field(default_factory=Protocol)
    small: bool = False  # whether models are small, to test that everything runs
    device: str = "cpu"  # or `cuda`

    @property
    def kind(self) -> str:
        """The kind of results: ``engines`` have contenders other than families run by torch."""
        if any(rows for rows, _ in self.shapes()):
            return OF_BATCHES
        return "efficiency" if set(self.models) <= set(FAMILIES) else "engines"

    def shapes(self) -> list[Shape]:
        """Returns rows and tokens of each batch, shortest first."""
        return sorted(self.lengths, key=lambda shape: shape[::-1])

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.models:
            contender(name)
        if not self.dtypes:
            object.__setattr__(self, "dtypes", (fast_dtype(self.device),))

    def cells(self) -> Iterator[Cell]:
        """Yields the cells, shortest first."""
        for profile, dtype, measure in itertools.product(self.profiles, self.dtypes, self.measures):
            for rows, length in self.shapes():
                what = Cell(measure, profile, dtype, length, self.device, self.small)
                yield replace(what, texts=(length,) * rows, layout="together") if rows else what

    def quick(self) -> "Plan":
        """Returns the same plan with small models, the two shortest lengths and one call each."""
        return replace(self, lengths=self.shapes()[:2], protocol=QUICK, small=True)


def run(plan: Plan, quick: bool = False, output: Path | None = None, resume: bool = False) -> dict[str, Any]:
    """Measures a plan, cell by cell; each of the ``rows`` is a `mabert_lab.bench.turns.Measurement`, of batches with
    ``tokens_per_second`` too. RuntimeError if an operator is wrong on the GPU; nothing was timed then."""
    plan = plan.quick() if quick else plan
    with workers_of({name: name for name in plan.models}, plan.device) as workers:
        result: dict[str, Any] = {
            "kind": plan.kind,
            "environment": measured_on(),
            "quick": quick,
            "protocol": asdict(plan.protocol),
            "variables": next(iter(workers.values())).ask("variables"),
            "parameters": {name: worker.ask("parameters") for name, worker in workers.items()},
            "rows": [],
        }
        bench = Bench(plan.protocol, workers)

        def job(cell: Cell) -> None:
            for row in map(asdict, bench.measure(cell)):
                if rows := len(cell.texts):
                    tokens, took = 1e3 * rows * cell.length, row["median_ms"]
                    row |= {"batch": rows, "tokens_per_second": None if took is None else tokens / took}
                result["rows"].append(row)

        jobs = {}
        for cell in plan.cells():
            size = size_of(len(cell.texts), cell.length)
            jobs[f"{cell.measure}, {cell.profile}, {cell.dtype}, {size} tokens"] = partial(job, cell)
        return record(result, jobs, show, output, "models", resume)


def size_of(rows: int, length: int) -> str:
    """Returns a batch's rows and tokens of each; of one text (no rows), its tokens."""
    return f"{rows} x {length:,}" if rows else f"{length:,}"


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table per measure, profile and dtype; a missing number shows its reason."""
    batches = result["kind"] == OF_BATCHES
    tables: dict[tuple[str, ...], dict[str, dict[tuple[int, int], str]]] = {}  # by kind, model, and tokens and rows
    for row in result["rows"]:
        if row["measure"] == "memory":
            unit, number = "MiB", "peak_mib"
        else:
            unit, number = ("tokens a second", "tokens_per_second") if batches else ("ms", "median_ms")
        cell = digits(row[number]) if row["status"] == "measured" else row["status"]
        lines = tables.setdefault((row["measure"], unit, row["profile"], row["dtype"]), {})
        lines.setdefault(row["model"], {})[row["length"], row["batch"] * batches] = cell
    for (measure, unit, profile, dtype), lines in tables.items():
        sizes = sorted({size for line in lines.values() for size in line})
        heads = [size_of(rows, length) for length, rows in sizes]
        cells = [(title_of(name), *(line.get(size, "-") for size in sizes)) for name, line in lines.items()]
        console.print(table(f"{measure}, {unit}: profile {profile}, {dtype}", ["model"], heads, cells))
