"""Tokens a second over many texts by ModernBERT's protocol (Warner et al., 2024), each model at its best batch.

Texts of 512 and of 8,192 tokens each, and lengths drawn from N(256, 64) within 16 to 512 and from N(4096, 1024)
within 16 to 8,192. The protocol has 8,192 texts; a CPU gets the share that stands in `SHARES`. Texts come in the order
they are drawn in; tokens of padding are not counted. MaBERT runs without padding, the others padded; at a batch of one
text nothing is padded.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mabert.baselines.registry import FAMILIES
from mabert.environment import fast_dtype
from mabert_lab.bench.lengths import draw
from mabert_lab.bench.models import QUICK, Plan
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.results import measured_on, write
from mabert_lab.bench.turns import FIRST_CALL, Bench, Protocol, Row
from mabert_lab.bench.worker import CellError, Worker

TEXTS = 8192
"""Texts of the protocol."""

SHARES = {"N(256,64)": 16, "512 each": 16, "N(4096,1024)": 3, "8,192 each": 2}
"""Texts that a CPU is given; short ones first, since a model that is too slow is not asked for longer ones."""

TRIALS = 3
"""Timed calls of a batch that is tried, at most."""

PROTOCOL = Protocol(warm=0, least=3, most=10, budget=30.0, limit=400.0)


@dataclass(frozen=True)
class Speed:
    """One model on one collection of texts.

    Attributes:
        lengths: Name of the collection.
        model: Name of the family.
        texts: How many.
        tokens: Of all texts.
        batch: Texts of the best batch; None where none was found.
        tried_ms: What all texts took with each batch tried, by its size as JSON tells names; see `ManyTexts.warm`.
        status: See `mabert_lab.bench.turns.Row`, as the five that follow.
        reason: Likewise.
        setting: Likewise.
        median_ms: Likewise.
        fastest_ms: Likewise.
        slowest_ms: Likewise.
        tokens_per_second: At the median.
    """

    lengths: str
    model: str
    texts: int
    tokens: int
    batch: int | None
    tried_ms: dict[str, float]
    status: str
    reason: str | None
    setting: str | None
    median_ms: float | None
    fastest_ms: float | None
    slowest_ms: float | None
    tokens_per_second: float | None


def collections(times: int = 1) -> dict[str, tuple[int, ...]]:
    """The lengths of the texts by name of the collection, `times` as many as a CPU gets."""
    count = {name: times * share for name, share in SHARES.items()}
    return {
        "N(256,64)": tuple(draw(256, 64, 512, count["N(256,64)"])),
        "512 each": (512,) * count["512 each"],
        "N(4096,1024)": tuple(draw(4096, 1024, 8192, count["N(4096,1024)"])),
        "8,192 each": (8192,) * count["8,192 each"],
    }


class ManyTexts(Bench):
    """Lets every model choose its batch before it is timed.

    Attributes:
        tried: Seconds of each batch that they tried for the collection at hand, by name of the family.
        settings: What the best batch runs with, likewise.
    """

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol)
        self.tried: dict[str, dict[int, float]] = {}
        self.settings: dict[str, str] = {}

    def warm(self, cell: Cell, worker: Worker) -> None:
        """Try batches of 1, 4, 16 and so on texts, up to all, until one does not fit; lay out the fastest.

        The fastest of `TRIALS` calls counts, or of as many as the budget has time for, after one that warms it up and
        counts where there is time for no other; a model that was built anew after a batch that did not fit is warmed
        up once more. A family whose answers depend on the batch is given one text at a time.
        """
        family = FAMILIES[worker.name]
        sizes = sorted({min(4**power, len(cell.texts)) for power in range(8)})
        seconds = self.tried[worker.name] = {}
        anew = False
        for size in [1] if family.depends_on_batch(family.base_config(), cell.texts) else sizes:
            try:
                worker.cut(size)
                first = worker.call(FIRST_CALL * self.protocol.limit)
                affordable = min(TRIALS, int(self.protocol.budget / first))
                seconds[size] = min((worker.call(self.protocol.limit) for _ in range(affordable)), default=first)
            except CellError as error:
                if not seconds or error.status == "failed":
                    raise
                worker.prepare(cell, self.protocol.limit)
                anew = True
                break
        self.settings[worker.name] = worker.cut(best_of(seconds))
        if anew:
            worker.call(self.protocol.limit)


def best_of(tried: Mapping[int, float]) -> int:
    """The batch that took the least seconds."""
    return min(tried, key=tried.__getitem__)


def run(
    models: Sequence[str] = tuple(FAMILIES),
    dtype: str | None = None,
    quick: bool = False,
    output: Path | None = None,
    device: str = "cpu",
    times: int = 1,
    protocol: Protocol = PROTOCOL,
    name: str = "throughput",
) -> dict[str, Any]:
    """Measure every model on every collection, print the table, and return (and write, collection by collection) it.

    Args:
        models: Names of families.
        dtype: Of the weights; default, `mabert.environment.fast_dtype`.
        quick: Small models and two short texts, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.
        device: ``cpu`` or ``cuda``.
        times: How many times the texts that a CPU gets.
        protocol: How; a call is all texts of a collection.
        name: The end of the file's name.

    Returns:
        ``kind``, ``environment``, ``quick``, ``protocol``, ``variables`` of the models' processes, ``share`` of the
        protocol's texts by collection, and ``rows``.
    """
    dtype = fast_dtype(device) if dtype is None else dtype
    Plan(models=models, dtypes=(dtype,), device=device)
    if times < 1:
        raise ValueError(f"times is {times}; it must be at least 1")
    texts = {"two texts": (9, 30)} if quick else collections(times)
    bench = ManyTexts(QUICK if quick else protocol)
    console = Console()
    result: dict[str, Any] = {
        "kind": "throughput",
        "environment": measured_on(),
        "quick": quick,
        "dtype": dtype,
        "protocol": asdict(bench.protocol),
        "variables": {},
        "share": {name: len(lengths) / TEXTS for name, lengths in texts.items()},
        "lengths": {name: list(lengths) for name, lengths in texts.items()},
        "rows": [],
    }
    with ExitStack() as stack:
        workers = {model: stack.enter_context(closing(Worker(model))) for model in models}
        result["variables"] = next(iter(workers.values())).variables()
        bar = stack.enter_context(Progress(console=console, transient=True))
        task = bar.add_task("throughput", total=len(texts))
        for kind, lengths in texts.items():
            bar.update(task, description=kind)
            cell = Cell("throughput", "best", dtype, max(lengths), device, quick, lengths)
            bench.tried.clear()
            bench.settings.clear()
            for row in bench.measure(cell, workers):
                row = replace(row, setting=bench.settings.get(row.model, row.setting))
                result["rows"].append(asdict(speed(kind, lengths, bench.tried.get(row.model, {}), row)))
            if output is not None:
                write(result, output, name)
            bar.advance(task)
    show(console, result)
    if output is not None:
        console.print(f"written to {write(result, output, name)}")
    return result


def speed(name: str, lengths: Sequence[int], tried: Mapping[int, float], row: Row) -> Speed:
    """One model's times as tokens a second."""
    tokens = sum(lengths)
    rate = None if row.median_ms is None else 1e3 * tokens / row.median_ms
    times = (row.median_ms, row.fastest_ms, row.slowest_ms)
    told = {str(batch): 1e3 * seconds for batch, seconds in tried.items()}
    batch = best_of(tried) if row.status == "measured" else None
    return Speed(name, row.model, len(lengths), tokens, batch, told, row.status, row.reason, row.setting, *times, rate)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print tokens a second: models down, collections across, the best batch in brackets."""
    rows = result["rows"]
    names = list(dict.fromkeys(row["lengths"] for row in rows))
    title = f"tokens a second without padding's, {result['dtype']}; in brackets texts of a batch"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = {row["lengths"]: _shown(row) for row in rows if row["model"] == model}
        table.add_row(FAMILIES[model].title, *(cells[name] for name in names))
    console.print(table)


def _shown(row: dict[str, Any]) -> str:
    if row["status"] != "measured":
        return row["status"]
    return f"{row['tokens_per_second']:,.0f} ({row['batch']})"
