"""Texts of uneven length: MaBERT unpadded and masked against padded rivals, all in one run.

Lengths are drawn as in ModernBERT's efficiency tables (Warner et al., 2024), normal around 256 and around 4,096 tokens,
or taken from the user's own texts. Models have random weights of base size, prepacked if possible, and run one batch of
texts in random order; padding tokens are not counted. The control is MaBERT on as many tokens in rows of equal length.
Rivals, in any engine, also run one text at a time, which avoids padding; so does MaBERT, as with `--deterministic`,
which gives the same bits in any batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from mabert.baselines.registry import FAMILIES
from mabert.machine.environment import fast_dtype
from mabert.machine.rounds import Spread
from mabert.schema.check import check
from mabert_lab.bench.engines import RUNTIMES, contender, title_of
from mabert_lab.bench.profiles import Cell, Dtype
from mabert_lab.bench.results import measured_on, place_of, record, table, times_of
from mabert_lab.bench.tasks import even
from mabert_lab.bench.turns import QUICK, Bench, Measurement, Protocol
from mabert_lab.bench.worker import workers_of

NORMAL = {"N(256,64)": ((256, 64, 512), 16), "N(4096,1024)": ((4096, 1024, 8192), 3)}
"""Mean, standard deviation and maximum length, and texts per batch, by name; the minimum length is 16 tokens."""

TEXTS = 16  # texts per batch of the user's own
RIVALS = ("bert", "modernbert")  # default contenders besides MaBERT


class Side(NamedTuple):
    """One of those that are compared."""

    title: str  # in tables
    contender: str
    layout: str  # of the texts, see `mabert_lab.bench.profiles.Cell`
    pads: bool = False  # whether it computes padding


OURS = {
    "unpadded": Side("MaBERT unpadded", "mabert", "together"),
    "even": Side("MaBERT even rows", "mabert", "even"),
    "alone": Side("MaBERT singly", "mabert", "alone"),
    "masked": Side("MaBERT masked", "mabert", "masked", pads=True),
}


def sides_of(rivals: Sequence[str] = RIVALS) -> dict[str, Side]:
    """Returns MaBERT's sides, and two per rival: all texts at once, and one by one."""
    found = dict(OURS)
    for name in rivals:
        family, engine, _ = contender(name)
        title = title_of(name)
        pads = family is not FAMILIES["mabert"] or engine in RUNTIMES  # a MaBERT only in an engine outside torch
        found[name] = Side(f"{title} {'padded' if pads else 'unpadded'}", name, "together", pads)
        found[f"{name} alone"] = Side(f"{title} singly", name, "alone")
    return found


BUDGET = 40.0
PROTOCOL = Protocol(warm=1, least=3, limit=400.0)


def draw(mean: float, deviation: float, longest: int, texts: int) -> list[int]:
    """Draws lengths from a normal distribution, clipped to 16 and ``longest``; always the same ones."""
    normal = torch.randn(texts, generator=torch.Generator().manual_seed(0))
    return (mean + deviation * normal).round().clamp(16, longest).int().tolist()


def pick(lengths: Sequence[int], texts: int = TEXTS) -> list[int]:
    """Picks lengths at even ranks from shortest to longest, in random order."""
    ordered = sorted(lengths)
    if len(ordered) < texts:
        raise ValueError(f"{len(ordered)} texts are too few to pick {texts} lengths from")
    picked = [ordered[int((place + 0.5) * len(ordered) / texts)] for place in range(texts)]
    order = torch.randperm(texts, generator=torch.Generator().manual_seed(0))
    return [picked[place] for place in order.tolist()]


def run(
    quick: bool = False,
    output: Path | None = None,
    own: Mapping[str, Sequence[int]] | None = None,
    dtype: str | None = None,
    rivals: Sequence[str] = RIVALS,
    budget: float = BUDGET,
    device: str = "cpu",
    resume: bool = False,
) -> dict[str, Any]:
    """Measures MaBERT and its rivals on texts of every distribution of lengths: the drawn ones, and the user's `own`.

    `own` has the texts' lengths in tokens, by name; `rivals` are named as in `mabert_lab.bench.engines.contender`. The
    sides share the `budget` of seconds per batch, and each gets at least three calls.

    The result has ``lengths`` of the texts, ``rows``, see `row_of`, and ``speed``: by distribution, the unpadded run's
    speed over each other side's, from medians. Raises ValueError for an unknown dtype, model or engine, and
    RuntimeError if an operator is wrong on the GPU, before anything is timed.
    """
    dtype = fast_dtype(device) if dtype is None else check(Dtype, dtype, "dtype")
    more = 8 if device == "cuda" else 1  # a GPU has room for more texts
    batches = {name: draw(*how, more * texts) for name, (how, texts) in NORMAL.items()}
    batches |= {name: pick(lengths, more * TEXTS) for name, lengths in (own or {}).items()}
    if quick:
        batches = {"two texts": [9, 30]}
    sides = sides_of(rivals)
    protocol = QUICK if quick else replace(PROTOCOL, budget=budget / len(sides))
    with workers_of({name: side.contender for name, side in sides.items()}, device) as workers:
        variables = next(iter(workers.values())).ask("variables")
        result: dict[str, Any] = {"environment": measured_on(), "variables": variables, "quick": quick, "dtype": dtype}
        result |= {"device": device, "lengths": batches, "speed": {}, "rows": []}

        def job(name: str, lengths: Sequence[int]) -> None:
            bench = Bench(protocol, workers)  # a new one, because the next texts may be shorter
            cell = Cell("throughput", "best", dtype, max(lengths), device, small=quick, texts=tuple(lengths))
            measured = bench.measure(cell, {key: side.layout for key, side in sides.items()})
            rows = [row_of(name, *side, lengths, row) for side, row in zip(sides.items(), measured, strict=True)]
            result["rows"] += rows
            rates = {row["side"]: row["tokens_per_second"] for row in rows}
            ours = rates.pop("unpadded")
            result["speed"][name] = {side: ours / theirs for side, theirs in rates.items() if ours and theirs}

        jobs = {name: partial(job, name, lengths) for name, lengths in batches.items()}
        return record(result, jobs, show, output, "lengths", resume)


def row_of(name: str, key: str, side: Side, lengths: Sequence[int], row: Measurement) -> dict[str, Any]:
    """Returns one side's row on one batch; ``tokens_per_second`` is at the median and without padding."""
    tokens = len(lengths) * even(lengths) if side.layout == "even" else sum(lengths)
    return {
        "lengths": name,
        "side": key,
        "title": side.title,
        "texts": len(lengths),
        "tokens": tokens,
        "padded_tokens": len(lengths) * max(lengths) if side.pads else tokens,
        "tokens_per_second": None if row.median_ms is None else 1e3 * tokens / row.median_ms,
        **{what: getattr(row, what) for what in (*Spread.__dataclass_fields__, "status", "reason")},
    }


def show(console: Console, result: dict[str, Any]) -> None:
    title = f"texts of uneven length, {result['dtype']}, {place_of(result)}"
    caption = "tokens: padding included; tokens/s: without it; gain: speed of the unpadded run in this one's"
    lines = []
    for row in result["rows"]:
        numbers = [row["status"], "", "", ""]
        if row["status"] == "measured":
            ratio = result["speed"][row["lengths"]].get(row["side"])
            numbers = [*times_of(row), f"{row['tokens_per_second']:,.0f}", f"{ratio:.2f}" if ratio else ""]
        lines.append((row["lengths"], row["title"], f"{row['padded_tokens']:,}", *numbers))
    heads = ("lengths", "side"), ("tokens", "ms", "range", "tokens/s", "gain")
    console.print(table(title, *heads, lines, caption))
