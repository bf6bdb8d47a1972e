"""The paper's three efficiency tables for MaBERT and its rivals: peak memory, latency, and training step time.

See `mabert_lab.bench.tasks` for what is run, `mabert_lab.bench.profiles` for how it is set up, and
`mabert_lab.bench.turns` for how it is timed.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from mabert.baselines.registry import FAMILIES
from mabert.machine.environment import fast_dtype
from mabert_lab.bench.engines import contender, title_of
from mabert_lab.bench.profiles import DTYPES, Cell
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.bench.turns import QUICK, Bench, Protocol
from mabert_lab.bench.worker import workers_of

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
MEASURES = ("memory", "latency", "training")
PROFILES = ("paper", "stock", "best")

OF_ENGINES = "engines"
"""Kind of results with contenders other than families run by torch."""


@dataclass(frozen=True)
class Plan:
    """A set of measurements.

    Attributes:
        models: Names of contenders, see `mabert_lab.bench.engines.contender`.
        measures: Names in `MEASURES`.
        profiles: Names in `PROFILES`.
        dtypes: Names of dtypes; default, `mabert.machine.environment.fast_dtype` alone.
        lengths: Tokens.
        protocol: How calls are timed.
        small: Whether models are small, to test that everything runs.

    Raises:
        ValueError: A requested name is unknown.
    """

    models: Sequence[str] = tuple(FAMILIES)
    measures: Sequence[str] = MEASURES
    profiles: Sequence[str] = ("best",)
    dtypes: Sequence[str] = ()
    lengths: Sequence[int] = LENGTHS
    protocol: Protocol = field(default_factory=Protocol)
    small: bool = False

    @property
    def kind(self) -> str:
        """The kind of its results."""
        return "efficiency" if set(self.models) <= set(FAMILIES) else OF_ENGINES

    def __post_init__(self) -> None:
        for name in self.models:
            contender(name)
        known = {"measures": MEASURES, "profiles": PROFILES, "dtypes": tuple(DTYPES)}
        for what, allowed in known.items():
            for name in getattr(self, what):
                if name not in allowed:
                    raise ValueError(f"{what} is {name!r}; there are {', '.join(allowed)}")
        for length in self.lengths:
            if length < 1:
                raise ValueError(f"a length is {length}; it must be at least 1")
        if not self.dtypes:
            object.__setattr__(self, "dtypes", (fast_dtype("cpu"),))

    def cells(self) -> Iterator[Cell]:
        """Yields the cells, shortest first."""
        for profile, dtype, measure in itertools.product(self.profiles, self.dtypes, self.measures):
            for length in sorted(self.lengths):
                yield Cell(measure, profile, dtype, length, small=self.small)  # type: ignore[arg-type]

    def quick(self) -> "Plan":
        """Returns the same plan with small models, the two shortest lengths and one call each."""
        return replace(self, lengths=sorted(self.lengths)[:2], protocol=QUICK, small=True)


def run(plan: Plan, quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measures a plan, cell by cell; see `mabert_lab.bench.results`.

    Returns:
        ``kind``, ``environment``, ``quick``, ``parameters`` of each model as a classifier, ``protocol``,
        ``variables`` of the models' processes, and ``rows``, see `mabert_lab.bench.turns.Row`. Results with engines,
        presets or folders have another ``kind`` than those compared with the paper's tables.
    """
    plan = plan.quick() if quick else plan
    with workers_of({name: name for name in plan.models}) as workers:
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
            result["rows"] += [asdict(row) for row in bench.measure(cell)]

        jobs = {
            f"{cell.measure}, {cell.profile}, {cell.dtype}, {cell.length:,} tokens": partial(job, cell)
            for cell in plan.cells()
        }
        return record(result, jobs, show, output, "models")


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table per measure, profile and dtype, with models as rows and lengths as columns; a missing number shows
    its reason."""
    rows = result["rows"]
    for kind in dict.fromkeys((row["measure"], row["profile"], row["dtype"]) for row in rows):
        chosen = [row for row in rows if (row["measure"], row["profile"], row["dtype"]) == kind]
        measure, profile, dtype = kind
        unit, number = ("MiB", "peak_mib") if measure == "memory" else ("ms", "median_ms")
        title = f"{measure}, {unit}: profile {profile}, {dtype}"
        lengths = dict.fromkeys(row["length"] for row in chosen)
        cells = {
            (row["model"], row["length"]): f"{row[number]:,.0f}" if row["status"] == "measured" else row["status"]
            for row in chosen
        }
        names = dict.fromkeys(row["model"] for row in chosen)
        lines = [(title_of(name), *(cells.get((name, length), "-") for length in lengths)) for name in names]
        console.print(table(title, ["model"], [f"{length:,}" for length in lengths], lines))
