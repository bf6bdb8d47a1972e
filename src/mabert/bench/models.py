"""The paper's three efficiency tables for MaBERT and its rivals: peak memory, latency, and time of a training step.

Each model lives in a process of its own. All models of a cell are timed in turns, so that whatever else the machine
does falls on all alike. A model that takes too long or too much memory is recorded as such. See `mabert.bench.tasks`
for what is run.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mabert.baselines.registry import FAMILIES, family_named
from mabert.bench.results import measured_on, write
from mabert.bench.rounds import Spread
from mabert.bench.tasks import DTYPES, Cell
from mabert.bench.worker import CellError, Ready, Worker, free_memory

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
GPU_LENGTHS = (*LENGTHS, 65536)
MEASURES = ("memory", "latency", "training")
PROFILES = ("paper", "best")


@dataclass(frozen=True)
class Protocol:
    """How a cell is timed (Table A2, cut short where a machine is too slow for it).

    Attributes:
        warm: Calls that are not counted; fewer after `warm_seconds`, none for a model whose first call takes longer.
        least: Samples of a model, whatever they cost.
        most: Samples that are never exceeded.
        warm_seconds: Seconds of warm-up at most.
        budget: Seconds of a model's samples, after which only `least` is still filled up.
        limit: Seconds of one call, after which the model is too slow for this length, and for longer ones.
    """

    warm: int = 20
    least: int = 3
    most: int = 100
    warm_seconds: float = 2.0
    budget: float = 20.0
    limit: float = 150.0


QUICK = Protocol(warm=0, least=1, most=1)


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        models: Names of families.
        measures: Of `MEASURES`.
        profiles: Of `PROFILES`.
        dtypes: Names of dtypes.
        lengths: Tokens.
        device: ``cpu`` or ``cuda``.
        protocol: How.
        small: Whether models are small, to see that everything runs.
    """

    models: Sequence[str] = tuple(FAMILIES)
    measures: Sequence[str] = MEASURES
    profiles: Sequence[str] = ("best",)
    dtypes: Sequence[str] = ("bfloat16",)
    lengths: Sequence[int] = LENGTHS
    device: str = "cpu"
    protocol: Protocol = field(default_factory=Protocol)
    small: bool = False

    def __post_init__(self) -> None:
        for name in self.models:
            family_named(name)
        known = {"measures": MEASURES, "profiles": PROFILES, "dtypes": tuple(DTYPES), "device": ("cpu", "cuda")}
        for what, allowed in known.items():
            given = getattr(self, what)
            for name in (given,) if isinstance(given, str) else given:
                if name not in allowed:
                    raise ValueError(f"{what} is {name!r}; there are {', '.join(allowed)}")
        for length in self.lengths:
            if length < 1:
                raise ValueError(f"a length is {length}; it must be at least 1")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', and torch sees no GPU")

    def cells(self) -> Iterator[Cell]:
        """The cells, shortest first."""
        for profile, dtype, measure in itertools.product(self.profiles, self.dtypes, self.measures):
            for length in sorted(self.lengths):
                yield Cell(measure, profile, dtype, length, self.device, self.small)  # type: ignore[arg-type]

    def quick(self) -> "Plan":
        """The same with small models at the two shortest lengths, one call each."""
        return replace(self, lengths=sorted(self.lengths)[:2], protocol=QUICK, small=True)


@dataclass(frozen=True)
class Row:
    """One model in one cell.

    Attributes:
        measure: See `Cell`, as the four that follow.
        profile: Likewise.
        dtype: Likewise.
        device: Likewise.
        length: Likewise.
        model: Name of the family.
        batch: Rows of an input; of a training step those of the whole step.
        micro_batch: Rows at once.
        status: ``measured``, ``out of memory``, ``too slow`` or ``failed``.
        reason: Why there is no number, in a line.
        setting: The attention it ran with.
        median_ms: See `mabert.bench.rounds.Spread`, as the three that follow; of a whole step.
        peak_mib: MiB held at the height of a forward, weights included.
        weights_mib: MiB of the weights.
        resident_mib: MiB by which the process grew during that forward, as the system sees it; None where it does not
            tell.
    """

    measure: str
    profile: str
    dtype: str
    device: str
    length: int
    model: str
    batch: int = 1
    micro_batch: int = 1
    status: str = "measured"
    reason: str | None = None
    setting: str | None = None
    median_ms: float | None = None
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    samples: int | None = None
    peak_mib: float | None = None
    weights_mib: float | None = None
    resident_mib: float | None = None


def run(plan: Plan, quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measure, print the tables, and return (and write, cell by cell) what came out.

    Args:
        plan: What to measure.
        quick: Small models, two lengths and one call, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.

    Returns:
        ``kind``, ``environment``, ``quick``, ``parameters`` of each model as a classifier, ``protocol`` and ``rows``.
    """
    plan = plan.quick() if quick else plan
    console = Console()
    result: dict[str, Any] = {
        "kind": "efficiency",
        "environment": measured_on(),
        "quick": quick,
        "protocol": asdict(plan.protocol),
        "parameters": {},
        "rows": [],
    }
    bench = Bench(plan.protocol)
    cells = list(plan.cells())
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        workers = {name: stack.enter_context(closing(Worker(name))) for name in plan.models}
        bar = stack.enter_context(Progress(*columns, TimeRemainingColumn(), console=console, transient=True))
        result["parameters"] = {name: worker.parameters() for name, worker in workers.items()}
        task = bar.add_task("models", total=len(cells))
        for cell in cells:
            bar.update(task, description=f"{cell.measure}, {cell.profile}, {cell.dtype}, {cell.length:,} tokens")
            result["rows"] += [asdict(row) for row in bench.measure(cell, workers)]
            if output is not None:
                write(result, output, "models")
            bar.advance(task)
    show(console, result)
    if output is not None:
        console.print(f"written to {write(result, output, 'models')}")
    return result


class Sample(NamedTuple):
    """Seconds of a call, and of what comes once beside all of them."""

    call: float
    rest: float


class Bench:
    """Measures cells, and remembers which models are too slow or too large for longer inputs.

    Args:
        protocol: How.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.given_up: dict[tuple[str, ...], CellError] = {}

    def measure(self, cell: Cell, workers: dict[str, Worker]) -> list[Row]:
        """All models in one cell."""
        if cell.measure == "memory":
            done = {name: self.memory(cell, worker) for name, worker in workers.items()}
        elif cell.device == "cuda":
            # A GPU is steady, and what one model holds of it another lacks: one after the other.
            done = {name: self.times(cell, {name: worker})[name] for name, worker in workers.items()}
        else:
            done = self.times(cell, workers)
        return [done[name] for name in workers]

    def blank(self, cell: Cell, model: str) -> Row:
        """A row without numbers."""
        return Row(cell.measure, cell.profile, cell.dtype, cell.device, cell.length, model)

    def memory(self, cell: Cell, worker: Worker) -> Row:
        """Peak memory of one model."""
        row = self.blank(cell, worker.name)
        try:
            self.refuse(cell, worker.name)
            ready = worker.prepare(cell)
            held = worker.memory(self.protocol.limit)
            sizes = {f"{what}_mib": None if size is None else size / 2**20 for what, size in held.items()}
            row = replace(row, setting=ready.setting, **sizes)
        except CellError as error:
            row = self.without_number(cell, row, error)
        worker.release()
        return row

    def times(self, cell: Cell, workers: dict[str, Worker]) -> dict[str, Row]:
        """Times, the models in turns."""
        rows = {name: self.blank(cell, name) for name in workers}
        ready = self.prepared(cell, workers, rows)
        samples: dict[str, list[Sample]] = {}
        for name in ready:
            try:
                samples[name] = self.warm(cell, workers[name])
            except CellError as error:
                rows[name] = self.without_number(cell, rows[name], error)
        self.rounds(cell, workers, samples, rows)
        for name, taken in samples.items():
            whole = [ready[name].calls * sample.call + sample.rest for sample in taken]
            rows[name] = replace(rows[name], **asdict(Spread.of(whole)))
        for worker in workers.values():
            worker.release()
        return rows

    def prepared(self, cell: Cell, workers: dict[str, Worker], rows: dict[str, Row]) -> dict[str, Ready]:
        """Build all models, then bound all to the same memory: what is left when each holds its weights."""
        ready = {}
        for name, worker in workers.items():
            try:
                self.refuse(cell, name)
                ready[name] = it = worker.prepare(cell)
                rows[name] = replace(rows[name], setting=it.setting, batch=it.batch, micro_batch=it.micro_batch)
            except CellError as error:
                rows[name] = self.without_number(cell, rows[name], error)
        if cell.device == "cpu":
            allowed = free_memory()
            for name in ready:
                workers[name].bound(allowed)
        return ready

    def warm(self, cell: Cell, worker: Worker) -> list["Sample"]:
        """Warm a model up; return the samples that were good enough to keep: a call so long that it warmed itself."""
        protocol, spent = self.protocol, 0.0
        for _ in range(protocol.warm):
            sample = self.sample(worker)
            spent += sample.call
            if spent > protocol.budget:
                return [sample]
            if spent > protocol.warm_seconds:
                break
        return []

    def sample(self, worker: Worker) -> "Sample":
        """One call, and what comes once beside all of them."""
        return Sample(worker.call(self.protocol.limit), worker.rest())

    def rounds(
        self, cell: Cell, workers: dict[str, Worker], samples: dict[str, list["Sample"]], rows: dict[str, Row]
    ) -> None:
        """Fill up the samples in turns; a model that fails on the way loses its own."""
        protocol = self.protocol
        for _ in range(protocol.most):
            waiting = [
                name
                for name, taken in samples.items()
                if len(taken) < protocol.least
                or (len(taken) < protocol.most and sum(sum(sample) for sample in taken) < protocol.budget)
            ]
            if not waiting:
                return
            for name in waiting:
                try:
                    samples[name].append(self.sample(workers[name]))
                except CellError as error:
                    rows[name] = self.without_number(cell, rows[name], error)
                    del samples[name]

    def refuse(self, cell: Cell, name: str) -> None:
        """Raises CellError where a shorter input of this kind was too much already."""
        error = self.given_up.get(_kind(cell, name))
        if error is not None:
            raise error

    def without_number(self, cell: Cell, row: Row, error: CellError) -> Row:
        """The row of a model that gave none; longer inputs are not tried."""
        if error.status != "failed" and _kind(cell, row.model) not in self.given_up:
            reason = f"{error.reason} at {cell.length:,} tokens"
            self.given_up[_kind(cell, row.model)] = CellError(error.status, reason)
        return replace(row, status=error.status, reason=error.reason)


def _kind(cell: Cell, name: str) -> tuple[str, ...]:
    return (cell.measure, cell.profile, cell.dtype, cell.device, name)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print a table for every measure, profile and dtype: models down, lengths across."""
    rows = result["rows"]
    kinds = dict.fromkeys((row["measure"], row["profile"], row["dtype"]) for row in rows)
    for measure, profile, dtype in kinds:
        chosen = [row for row in rows if (row["measure"], row["profile"], row["dtype"]) == (measure, profile, dtype)]
        lengths = sorted({row["length"] for row in chosen})
        unit = "MiB" if measure == "memory" else "ms"
        table = Table(title=f"{measure}, {unit}: profile {profile}, {dtype}", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("model", no_wrap=True)
        for length in lengths:
            table.add_column(f"{length:,}", justify="right", no_wrap=True)
        for name in dict.fromkeys(row["model"] for row in chosen):
            cells = {row["length"]: _shown(row) for row in chosen if row["model"] == name}
            table.add_row(FAMILIES[name].title, *(cells.get(length, "-") for length in lengths))
        console.print(table)


def _shown(row: dict[str, Any]) -> str:
    if row["status"] != "measured":
        return row["status"]
    return f"{row['peak_mib'] if row['measure'] == 'memory' else row['median_ms']:,.0f}"
