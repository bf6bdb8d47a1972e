"""The paper's three efficiency tables for MaBERT and its rivals: peak memory, latency, and time of a training step.

See `mabert_lab.bench.tasks` for what is run, `mabert_lab.bench.profiles` for how it is set up, and
`mabert_lab.bench.turns` for how it is timed.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mabert.baselines.registry import FAMILIES, family_named
from mabert.environment import fast_dtype
from mabert_lab.bench.profiles import DTYPES, Cell, model_of
from mabert_lab.bench.results import measured_on, write
from mabert_lab.bench.turns import Bench, Protocol
from mabert_lab.bench.worker import Worker

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
GPU_LENGTHS = (*LENGTHS, 65536)
MEASURES = ("memory", "latency", "training")
PROFILES = ("paper", "stock", "best")

OF_RECIPE = "efficiency at a recipe's sizes"
"""The kind of results that are not of base size."""


QUICK = Protocol(warm=0, least=1, most=1)


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        models: Names of families.
        measures: Of `MEASURES`.
        profiles: Of `PROFILES`.
        dtypes: Names of dtypes; default, `mabert.environment.fast_dtype` alone.
        lengths: Tokens.
        device: ``cpu`` or ``cuda``.
        protocol: How.
        small: Whether models are small, to see that everything runs.
        recipe: The recipe (a name or a file) whose model's sizes are taken; none for base size.

    Raises:
        FileNotFoundError: There is no such recipe.
        ValueError: Something asked for is not there to be measured, or the recipe is none.
    """

    models: Sequence[str] = tuple(FAMILIES)
    measures: Sequence[str] = MEASURES
    profiles: Sequence[str] = ("best",)
    dtypes: Sequence[str] = ()
    lengths: Sequence[int] = LENGTHS
    device: str = "cpu"
    protocol: Protocol = field(default_factory=Protocol)
    small: bool = False
    recipe: str = ""

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
        if self.recipe:
            model_of(self.recipe)
        if not self.dtypes:
            object.__setattr__(self, "dtypes", (fast_dtype(self.device),))

    def cells(self) -> Iterator[Cell]:
        """The cells, shortest first."""
        for profile, dtype, measure in itertools.product(self.profiles, self.dtypes, self.measures):
            for length in sorted(self.lengths):
                cell = Cell(measure, profile, dtype, length, self.device, self.small)  # type: ignore[arg-type]
                yield replace(cell, recipe=self.recipe)

    def quick(self) -> "Plan":
        """The same with small models at the two shortest lengths, one call each."""
        return replace(self, lengths=sorted(self.lengths)[:2], protocol=QUICK, small=True)


def run(plan: Plan, quick: bool = False, output: Path | None = None, name: str = "models") -> dict[str, Any]:
    """Measure, print the tables, and return (and write, cell by cell) what came out.

    Args:
        plan: What to measure.
        quick: Small models, two lengths and one call, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.
        name: The end of its name.

    Returns:
        ``kind``, ``recipe``, ``environment``, ``quick``, ``parameters`` of each model as a classifier, ``protocol``,
        ``variables`` of the models' processes, and ``rows``. What is of a recipe's sizes is of another kind than what
        is set beside the paper's tables.
    """
    plan = plan.quick() if quick else plan
    console = Console()
    result: dict[str, Any] = {
        "kind": OF_RECIPE if plan.recipe else "efficiency",
        "recipe": plan.recipe,
        "environment": measured_on(),
        "quick": quick,
        "protocol": asdict(plan.protocol),
        "variables": {},
        "parameters": {},
        "rows": [],
    }
    bench = Bench(plan.protocol)
    cells = list(plan.cells())
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        workers = {model: stack.enter_context(closing(Worker(model))) for model in plan.models}
        bar = stack.enter_context(Progress(*columns, TimeRemainingColumn(), console=console, transient=True))
        result["variables"] = next(iter(workers.values())).variables()
        result["parameters"] = {model: worker.parameters(plan.recipe) for model, worker in workers.items()}
        task = bar.add_task("models", total=len(cells))
        for cell in cells:
            bar.update(task, description=f"{cell.measure}, {cell.profile}, {cell.dtype}, {cell.length:,} tokens")
            result["rows"] += [asdict(row) for row in bench.measure(cell, workers)]
            if output is not None:
                write(result, output, name)
            bar.advance(task)
    show(console, result)
    if output is not None:
        console.print(f"written to {write(result, output, name)}")
    return result


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
