"""Tokens per second over many texts by ModernBERT's protocol (Warner et al., 2024), each model at its best batch size.

Texts of 512 and of 8,192 tokens each, and lengths drawn from N(256, 64) within 16 to 512 and from N(4096, 1024) within
16 to 8,192. The protocol has 8,192 texts; a CPU gets the number in `SHARES`. Texts come in the order of the draw, and
padding tokens are not counted. MaBERT runs unpadded, the others padded; a batch of one text has no padding.
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
"""Number of texts in the protocol."""

SHARES = {"N(256,64)": 16, "512 each": 16, "N(4096,1024)": 3, "8,192 each": 2}
"""Number of texts on a CPU; short ones first, because a model that is too slow skips longer ones."""

TRIALS = 3
"""Maximum timed calls per batch size tried."""

PROTOCOL = Protocol(warm=0, least=3, most=10, budget=30.0, limit=400.0)


def collections(times: int = 1) -> dict[str, tuple[int, ...]]:
    """Returns the text lengths of each collection, `times` as many as a CPU gets."""
    count = {name: times * share for name, share in SHARES.items()}
    return {
        "N(256,64)": tuple(draw(256, 64, 512, count["N(256,64)"])),
        "512 each": (512,) * count["512 each"],
        "N(4096,1024)": tuple(draw(4096, 1024, 8192, count["N(4096,1024)"])),
        "8,192 each": (8192,) * count["8,192 each"],
    }


class ManyTexts(Bench):
    """A bench in which every model chooses its batch size before it is timed.

    Attributes:
        tried: Seconds by batch size tried, for each collection (its lengths) and side.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tried: dict[tuple[tuple[int, ...], str], dict[int, float]] = {}

    def warm(self, side: str) -> None:
        """Tries batches of 1, 4, 16, ... texts, up to all, until one does not fit; keeps the fastest.

        After a warm-up call, the fastest of `TRIALS` calls counts, or of as many as the budget allows; if it allows
        none, the warm-up counts. A model that was rebuilt after a batch that did not fit is warmed up again. Families
        whose outputs depend on the batch get one text at a time.
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
    """Returns the fastest batch size."""
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
    """Measures every model on every collection; prints, returns and optionally writes the result after each collection.

    Args:
        models: Names of contenders, see `mabert_lab.bench.engines.contender`.
        dtype: Dtype of the weights; default, `mabert.machine.environment.fast_dtype`.
        quick: Use small models and two short texts to test that everything runs; ignore the numbers.
        output: Folder for the dated JSON file; None writes nothing.
        device: ``cpu`` or ``cuda``.
        times: Factor on the CPU's number of texts.
        protocol: How calls are timed; one call runs all texts of a collection.

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
    """Returns one model's row in tokens per second.

    Returns:
        ``lengths``, the collection's name; ``model``; the counts ``texts`` and ``tokens``; ``batch``, the best batch
        size; ``tried_ms``, the time of all texts by batch size tried; the row's status, reason, setting and times; and
        ``tokens_per_second`` at the median. Missing values are None.
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
    """Prints tokens per second, with models as rows, collections as columns and the best batch size in brackets."""
    title = f"tokens a second without padding's, {result['dtype']}; in brackets texts of a batch"
    shown = grid(title, result["rows"], "lengths", lambda row: f"{row['tokens_per_second']:,.0f} ({row['batch']})")
    console.print(shown)
