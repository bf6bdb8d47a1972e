"""Tokens a second over many texts by ModernBERT's protocol (Warner et al., 2024), each model at its best batch.

Texts of 512 and of 8,192 tokens each, and lengths drawn from N(256, 64) within 16 to 512 and from N(4096, 1024)
within 16 to 8,192. The protocol has 8,192 texts; a CPU gets the share that stands in `SHARES`. Texts come in the order
they are drawn in; tokens of padding are not counted. MaBERT runs without padding, the others padded; at a batch of one
text nothing is padded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from mabert.baselines.registry import FAMILIES
from mabert.machine.environment import fast_dtype
from mabert_lab.bench.engines import contender
from mabert_lab.bench.lengths import draw
from mabert_lab.bench.models import Plan, grid
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.results import measured_on, record
from mabert_lab.bench.turns import FIRST_CALL, QUICK, Bench, Protocol, Row
from mabert_lab.bench.worker import CellError, workers_of

TEXTS = 8192
"""Texts of the protocol."""

SHARES = {"N(256,64)": 16, "512 each": 16, "N(4096,1024)": 3, "8,192 each": 2}
"""Texts that a CPU is given; short ones first, since a model that is too slow is not asked for longer ones."""

TRIALS = 3
"""Timed calls of a batch that is tried, at most."""

PROTOCOL = Protocol(warm=0, least=3, most=10, budget=30.0, limit=400.0)


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
        tried: Seconds of each batch that they tried for a collection, by its lengths and the side.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tried: dict[tuple[tuple[int, ...], str], dict[int, float]] = {}

    def warm(self, side: str) -> None:
        """Try batches of 1, 4, 16 and so on texts, up to all, until one does not fit; lay out the fastest.

        The fastest of `TRIALS` calls counts, or of as many as the budget has time for, after one that warms it up and
        counts where there is time for no other; a model that was built anew after a batch that did not fit is warmed
        up once more. A family whose answers depend on the batch is given one text at a time.
        """
        texts, worker = self.cells[side].texts, self.workers[side]
        family = contender(worker.name).family
        sizes = sorted({min(4**power, len(texts)) for power in range(8)})
        seconds = self.tried[texts, side] = {}
        anew = False
        for size in [1] if family.depends_on_batch(family.base_config(), texts) else sizes:
            try:
                worker.ask("cut", size)
                first = self.sample(side, FIRST_CALL).whole
                affordable = min(TRIALS, int(self.protocol.budget / first))
                seconds[size] = min((self.sample(side).whole for _ in range(affordable)), default=first)
            except CellError as error:
                if not seconds or error.status == "failed":
                    raise
                self.prepare(side)
                anew = True
                break
        self.rows[side] = replace(self.rows[side], setting=worker.ask("cut", best_of(seconds)))
        if anew:
            self.sample(side)


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
) -> dict[str, Any]:
    """Measure every model on every collection, print the table, and return (and write, collection by collection) it.

    Args:
        models: Names of contenders, see `mabert_lab.bench.engines.contender`.
        dtype: Of the weights; default, `mabert.machine.environment.fast_dtype`.
        quick: Small models and two short texts, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.
        device: ``cpu`` or ``cuda``.
        times: How many times the texts that a CPU gets.
        protocol: How; a call is all texts of a collection.

    Returns:
        ``kind``, ``environment``, ``quick``, ``protocol``, ``variables`` of the models' processes, ``share`` of the
        protocol's texts by collection, ``lengths`` of the texts, and ``rows``, see `speed`.
    """
    dtype = fast_dtype(device) if dtype is None else dtype
    Plan(models=models, dtypes=(dtype,), device=device)
    if times < 1:
        raise ValueError(f"times is {times}; it must be at least 1")
    texts = {"two texts": (9, 30)} if quick else collections(times)
    protocol = QUICK if quick else protocol
    with workers_of({name: name for name in models}) as workers:
        result: dict[str, Any] = {
            "kind": "throughput",
            "environment": measured_on(),
            "quick": quick,
            "dtype": dtype,
            "protocol": asdict(protocol),
            "variables": next(iter(workers.values())).ask("variables"),
            "share": {name: len(lengths) / TEXTS for name, lengths in texts.items()},
            "lengths": {name: list(lengths) for name, lengths in texts.items()},
            "rows": [],
        }
        bench = ManyTexts(protocol, workers)

        def job(name: str, lengths: tuple[int, ...]) -> None:
            rows = bench.measure(Cell("throughput", "best", dtype, max(lengths), device, quick, lengths))
            result["rows"] += [speed(name, lengths, bench.tried.get((lengths, row.model), {}), row) for row in rows]

        jobs = {name: partial(job, name, lengths) for name, lengths in texts.items()}
        return record(result, jobs, show, output, "throughput")


def speed(name: str, lengths: Sequence[int], tried: Mapping[int, float], row: Row) -> dict[str, Any]:
    """One model's times as tokens a second.

    Returns:
        ``lengths``, the collection's name; ``model``; ``texts`` and ``tokens``, how many; ``batch``, texts of the best
        batch; ``tried_ms``, what all texts took with each batch tried; and of the row the status, reason, setting and
        times, with ``tokens_per_second`` at the median. What was not found is None.
    """
    tokens = sum(lengths)
    return {
        "lengths": name,
        "model": row.model,
        "texts": len(lengths),
        "tokens": tokens,
        "batch": best_of(tried) if row.status == "measured" else None,
        "tried_ms": {str(batch): 1e3 * seconds for batch, seconds in tried.items()},
        **{what: getattr(row, what) for what in ("status", "reason", "setting")},
        **{what: getattr(row, what) for what in ("median_ms", "fastest_ms", "slowest_ms")},
        "tokens_per_second": None if row.median_ms is None else 1e3 * tokens / row.median_ms,
    }


def show(console: Console, result: dict[str, Any]) -> None:
    """Print tokens a second: models down, collections across, the best batch in brackets."""
    title = f"tokens a second without padding's, {result['dtype']}; in brackets texts of a batch"
    shown = grid(title, result["rows"], "lengths", lambda row: f"{row['tokens_per_second']:,.0f} ({row['batch']})")
    console.print(shown)
