"""Texts of uneven length: MaBERT unpadded and masked against padded rivals, all in one run.

Lengths are drawn as in ModernBERT's efficiency tables (Warner et al., 2024), normal around 256 and around 4,096 tokens,
or taken from the user's own texts. Models have random weights of base size, prepacked if possible, and run one batch of
texts in random order; padding tokens are not counted. The control is MaBERT on as many tokens in rows of equal length.
Rivals, in any engine, also run one text at a time, which avoids padding; so does MaBERT, as with `--deterministic`,
which gives the same bits in any batch.

On a shared machine, two runs of equal cost differ by more than 5 %. So MaBERT unpadded and on even rows are also
profiled several times, keeping the minimum time of every operation call. This shows how much of the difference is real
work, and in which part. The time between these calls, including Python and the profiler itself, is one part.
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
from mabert.machine.rounds import Spread, timed
from mabert_lab.bench.engines import OUTSIDE, contender, split, title_of
from mabert_lab.bench.parts import PRODUCTS, REST
from mabert_lab.bench.profiles import DTYPES, Cell
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.bench.tasks import Sample, even
from mabert_lab.bench.turns import QUICK, Bench, Protocol, Row, take_turns
from mabert_lab.bench.worker import workers_of

NORMAL = {"N(256,64)": (256, 64, 512, 16), "N(4096,1024)": (4096, 1024, 8192, 3)}
"""Mean, standard deviation, maximum length and texts per batch, by name; the minimum length is 16 tokens."""

TEXTS = 16
"""Texts per batch of the user's own."""

SHORTEST = 16
RIVALS = ("bert", "modernbert")
"""Default contenders besides MaBERT."""


class Side(NamedTuple):
    """A side's title in tables, its contender, and its layout of texts, see `mabert_lab.bench.tasks`."""

    title: str
    contender: str
    layout: str


OURS = {
    "unpadded": Side("MaBERT unpadded", "mabert", "together"),
    "even": Side("MaBERT even rows", "mabert", "even"),
    "alone": Side("MaBERT singly", "mabert", "alone"),
    "masked": Side("MaBERT masked", "mabert", "masked"),
}

CONTROLLED = ("unpadded", "even")
"""Sides whose parts are compared."""

SHORT = {PRODUCTS: "products", "convolution": "conv", "activation": "gelu", REST: "rest"}
"""Short names of parts, for a terminal of 80 columns."""


def sides_of(rivals: Sequence[str] = RIVALS) -> dict[str, Side]:
    """Returns MaBERT's sides, and two per rival: all texts at once, and one by one."""
    found = dict(OURS)
    for name in rivals:
        title = title_of(name)
        found[name] = Side(f"{title} {'padded' if pads(name) else 'unpadded'}", name, "together")
        found[f"{name} alone"] = Side(f"{title} singly", name, "alone")
    return found


def pads(name: str) -> bool:
    """Checks whether a contender computes padding; a MaBERT does so only in an engine outside torch."""
    return contender(name).family is not FAMILIES["mabert"] or split(name)[1] in OUTSIDE


BUDGET = 40.0
PROTOCOL = Protocol(warm=1, least=3, limit=400.0)


def draw(mean: float, deviation: float, longest: int, texts: int) -> list[int]:
    """Draws lengths from a normal distribution, clipped to 16 and ``longest``; always the same ones."""
    normal = torch.randn(texts, generator=torch.Generator().manual_seed(0))
    return (mean + deviation * normal).round().clamp(SHORTEST, longest).int().tolist()


def pick(lengths: Sequence[int], texts: int = TEXTS) -> list[int]:
    """Picks lengths at even ranks from shortest to longest, in random order."""
    ordered = sorted(lengths)
    if len(ordered) < texts:
        raise ValueError(f"{len(ordered)} texts are too few to pick {texts} lengths from")
    picked = [ordered[int((place + 0.5) * len(ordered) / texts)] for place in range(texts)]
    order = torch.randperm(texts, generator=torch.Generator().manual_seed(0))
    return [picked[place] for place in order.tolist()]


class Uneven(Bench):
    """A bench that profiles the controlled sides after all are timed.

    Attributes:
        runs: For each controlled side, the results of `mabert_lab.bench.parts.profiled` by round.
    """

    runs: dict[str, list[dict[str, list[float]]]]

    def after(self, group: Sequence[str]) -> None:
        """Profiles forwards of the controlled sides in turns."""
        self.runs = {side: [] for side in CONTROLLED if self.rows[side].status == "measured"}

        def profile(side: str) -> Sample:
            limit = 2 * self.protocol.limit
            seconds = timed(lambda: self.runs[side].append(self.workers[side].ask("profile", limit=limit)))
            return Sample(seconds, seconds)

        def failed(side: str, *_: object) -> None:
            del self.runs[side]

        # The timing budget was shared by all sides; here these two share it.
        budget = self.protocol.budget * len(self.workers) / len(CONTROLLED)
        calls = {side: partial(profile, side) for side in self.runs}
        take_turns(calls, replace(self.protocol, budget=budget), failed)


def run(
    quick: bool = False,
    output: Path | None = None,
    own: Mapping[str, Sequence[int]] | None = None,
    dtype: str | None = None,
    rivals: Sequence[str] = RIVALS,
    budget: float = BUDGET,
) -> dict[str, Any]:
    """Measures every side at every distribution of lengths; prints, returns and optionally writes the result.

    Args:
        quick: Use small models, two short texts and one round to test that everything runs; ignore the numbers.
        output: Folder for the dated JSON file; None writes nothing.
        own: Lengths of the user's texts in tokens, by name, in addition to the drawn ones.
        dtype: Dtype of the weights; default, `mabert.machine.environment.fast_dtype`.
        rivals: Contenders besides MaBERT, see `mabert_lab.bench.engines.contender`.
        budget: Seconds per batch, half for timing the whole and half for profiling parts. The sides share it equally;
            each gets at least three calls.

    Returns:
        ``environment``, ``variables`` of the models' processes, ``dtype``, ``lengths`` of the texts, ``rows``, see
        `row_of`, ``speed`` (by distribution, the unpadded run's speed over each other side's, from medians),
        ``rounds``, see `within_rounds`, ``parts``, see `least_parts`, and ``profiled``, the number of profiled rounds.

    Raises:
        ValueError: For an unknown dtype, model or engine.
    """
    dtype = fast_dtype("cpu") if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(DTYPES)}")
    batches = {name: draw(*how) for name, how in NORMAL.items()}
    batches |= {name: pick(lengths) for name, lengths in (own or {}).items()}
    if quick:
        batches = {"two texts": [9, 30]}
    sides = sides_of(rivals)
    protocol = QUICK if quick else replace(PROTOCOL, budget=budget / 2 / len(sides))
    with workers_of({name: side.contender for name, side in sides.items()}) as workers:
        result: dict[str, Any] = {
            "environment": measured_on(),
            "variables": next(iter(workers.values())).ask("variables"),
            "quick": quick,
            "dtype": dtype,
            "lengths": batches,
            **{what: {} for what in ("speed", "rounds", "parts", "profiled")},
            "rows": [],
        }
        layouts = {name: side.layout for name, side in sides.items()}

        def job(name: str, lengths: Sequence[int]) -> None:
            bench = Uneven(protocol, workers)  # a new one, because the next texts may be shorter
            cell = Cell("throughput", "best", dtype, max(lengths), small=quick, texts=tuple(lengths))
            measured = dict(zip(sides, bench.measure(cell, layouts), strict=True))
            rows = [row_of(name, side, sides[side], lengths, row) for side, row in measured.items()]
            result["rows"] += rows
            result["speed"][name] = speeds(rows)
            seconds = {side: [sample.whole for sample in taken] for side, taken in bench.samples.items() if taken}
            result["rounds"][name] = within_rounds(seconds, lengths)
            result["parts"][name], result["profiled"][name] = least_parts(bench.runs)

        jobs = {name: partial(job, name, lengths) for name, lengths in batches.items()}
        return record(result, jobs, show, output, "lengths")


def tokens_of(side: str, lengths: Sequence[int]) -> int:
    """Returns the number of tokens that a side runs, without padding."""
    return len(lengths) * even(lengths) if side == "even" else sum(lengths)


def row_of(name: str, key: str, side: Side, lengths: Sequence[int], row: Row) -> dict[str, Any]:
    """Returns one side's row on one batch.

    Returns:
        ``lengths``, the batch's name; ``side``, its key; the counts ``texts``, ``tokens`` and ``padded_tokens``;
        ``tokens_per_second`` at the median, without padding; and the row's status, reason and times.
    """
    tokens = tokens_of(key, lengths)
    filled = side.layout == "masked" or (side.layout == "together" and pads(side.contender))
    return {
        "lengths": name,
        "side": key,
        "title": side.title,
        "texts": len(lengths),
        "tokens": tokens,
        "padded_tokens": len(lengths) * max(lengths) if filled else tokens,
        "tokens_per_second": None if row.median_ms is None else 1e3 * tokens / row.median_ms,
        **{what: getattr(row, what) for what in (*Spread.__dataclass_fields__, "status", "reason")},
    }


def speeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Divides the unpadded run's tokens per second by each other measured side's."""
    found = {row["side"]: row["tokens_per_second"] for row in rows if row["tokens_per_second"] is not None}
    ours = found.pop("unpadded", None)
    return {} if ours is None else {side: ours / theirs for side, theirs in found.items()}


def within_rounds(seconds: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> dict[str, list[float]]:
    """Returns quartiles of the unpadded run's tokens per second over each other side's at about the same time.

    Other load on the machine affects two successive calls more equally than the medians of all. For a side with another
    number of calls, the call at the same relative position is taken, since calls are spread evenly.
    """
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    speed = {side: [tokens_of(side, lengths) / each for each in taken] for side, taken in seconds.items()}
    ours = speed.pop("unpadded", [])
    found = {}
    for side, theirs in speed.items() if ours else ():
        beside = [theirs[int((place + 0.5) * len(theirs) / len(ours))] for place in range(len(ours))]
        ratios = torch.tensor(ours, dtype=torch.float64) / torch.tensor(beside, dtype=torch.float64)
        found[side] = torch.quantile(ratios, quartiles).tolist()
    return found


def least_parts(runs: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> tuple[dict[str, dict[str, float]], int]:
    """Sums the profiled time of each part, taking the minimum of each call over all rounds.

    Args:
        runs: By side, one dict per round: the milliseconds of each call of each part.

    Returns:
        Each side's milliseconds by part, and the number of rounds used, which every side has.
    """
    rounds = min(map(len, runs.values()), default=0)
    least = {
        side: {part: sum(map(min, zip(*(run[part] for run in every[:rounds]), strict=True))) for part in every[0]}
        for side, every in runs.items()
    }
    return least, rounds


def differences(parts: Mapping[str, Mapping[str, float]], lengths: Sequence[int]) -> dict[str, float]:
    """Returns the extra cost of each part in the unpadded run over even rows, as a share of the even rows' total.

    Both are per token, since the even rows have slightly more or fewer tokens.
    """
    unpadded, even_rows = (
        {part: milliseconds / tokens_of(side, lengths) for part, milliseconds in parts[side].items()}
        for side in CONTROLLED
    )
    whole = sum(even_rows.values())
    return {part: (unpadded[part] - even_rows[part]) / whole for part in even_rows}


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table of the sides by batch, and one of the unpadded run's extra cost over even rows."""
    title = f"texts of uneven length, {result['dtype']}, {result['environment']['threads']} threads"
    caption = "tokens: padding included; tokens/s: without it; gain: speed of the unpadded run in this one's"
    lines = [
        (row["lengths"], row["title"], f"{row['padded_tokens']:,}", *_numbers(row, result["speed"]))
        for row in result["rows"]
    ]
    numbers = ("tokens", "ms", "range", "tokens/s", "gain")
    console.print(table(title, ("lengths", "side"), numbers, lines, caption))
    shares = {
        name: differences(parts, result["lengths"][name])
        for name, parts in result["parts"].items()
        if set(parts) == set(CONTROLLED)
    }
    lines = []
    for name, share in shares.items():
        # The products are the same work per token on both sides.
        added = sum(value for part, value in share.items() if part != PRODUCTS)
        lines.append((name, *(f"{100 * value:+.1f}" for value in (*share.values(), added))))
    title = "least time of each operation: unpadded beside even rows"
    caption = "percent of the even rows' time by the token; added: all but the products, which are as many"
    heads = [SHORT.get(part, part) for part in next(iter(shares.values()), ())]
    console.print(table(title, ("lengths",), (*heads, "added"), lines, caption))


def _numbers(row: Mapping[str, Any], speed: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    if row["status"] != "measured":
        return row["status"], "", "", ""
    ratio = speed[row["lengths"]].get(row["side"])
    return (
        f"{row['median_ms']:,.0f}",
        f"{row['fastest_ms']:,.0f}-{row['slowest_ms']:,.0f}",
        f"{row['tokens_per_second']:,.0f}",
        f"{ratio:.2f}" if ratio else "",
    )
