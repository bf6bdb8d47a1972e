"""Texts of uneven length: MaBERT without padding and masked, beside BERT and ModernBERT padded, all in one run.

Lengths are drawn as ModernBERT's efficiency tables draw them (Warner et al., 2024): normal around 256 and around 4,096
tokens; or they are those of a person's own texts. Random weights of base size, prepacked where that can be, one batch
of texts in random order; tokens of padding are not counted. The control is MaBERT on as many tokens in rows of equal
length. BERT and ModernBERT also run one text after the other, which is how they do without padding; so does MaBERT, as
it does for the same bits in any batch (`--deterministic`).

Two runs of equal cost differ by more than 5 % on a machine that others use too. So MaBERT unpadded and on even rows are
also profiled some times, and the least time of every single call of an operation is kept: how much of the difference is
the work's, and which part's. What lies between these calls, Python and the profiler's own work among it, is one part.
"""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from mabert.baselines import attention
from mabert.environment import fast_dtype
from mabert.model import MaBertConfig, MaBertModel
from mabert.model.prepack import can_prepack, prepack
from mabert.rounds import Spread, in_turns
from mabert_lab.bench.parts import PRODUCTS, REST, profiled
from mabert_lab.bench.profiles import DTYPES
from mabert_lab.bench.results import measured_on, write
from mabert_lab.bench.worker import ALLOCATION

NORMAL = {"N(256,64)": (256, 64, 512, 16), "N(4096,1024)": (4096, 1024, 8192, 3)}
"""Name to mean, standard deviation, longest, and texts of a batch; the shortest are of 16 tokens."""

REAL = {
    "CoLA": (14, 12, 11, 10, 13, 11, 16, 9, 8, 19, 23, 6, 9, 8, 10, 7),
    "SST-2": (34, 29, 27, 22, 31, 25, 36, 20, 14, 40, 46, 9, 18, 16, 24, 12),
    "IMDb": (381, 285, 254, 192, 327, 229, 459, 177, 140, 581, 865, 69, 165, 154, 209, 109),
}
"""Tokens of 16 texts by BERT's vocabulary, picked evenly from the dev sets of CoLA and SST-2 and IMDb's test set, for
machines that have none of these texts."""

TEXTS = 16
"""Texts of a batch of a person's own."""

SHORTEST = 16
SIDES = {
    "unpadded": "MaBERT unpadded",
    "even": "MaBERT even rows",
    "alone": "MaBERT singly",
    "masked": "MaBERT masked",
    "bert": "BERT padded",
    "bert alone": "BERT singly",
    "modernbert": "ModernBERT padded",
    "modernbert alone": "ModernBERT singly",
}
PADDED = ("masked", "bert", "modernbert")
"""Sides that run what a batch is filled up with."""

RIVALS = ("bert", "modernbert")

CONTROLLED = ("unpadded", "even")
"""Sides whose parts are set beside each other."""

SAME = PRODUCTS
"""The part that is the same work by the token on both of these."""

SHORT = {SAME: "products", "convolution": "conv", "activation": "gelu", REST: "rest"}
"""Parts by the names that fit a terminal of 80 columns."""

_ROUNDS: dict[str, Any] = {"least": 3, "most": 100, "budget": 40.0}


@dataclass(frozen=True)
class Row:
    """One side's times on one batch; see `mabert.rounds.Spread` for the times."""

    lengths: str
    side: str
    texts: int
    tokens: int
    padded_tokens: int
    tokens_per_second: float
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int


def draw(mean: float, deviation: float, longest: int, texts: int) -> list[int]:
    """Draw lengths from a normal distribution, cut to 16 and ``longest``; the same each time."""
    normal = torch.randn(texts, generator=torch.Generator().manual_seed(0))
    return (mean + deviation * normal).round().clamp(SHORTEST, longest).int().tolist()


def pick(lengths: Sequence[int], texts: int = TEXTS) -> list[int]:
    """Pick the lengths of texts spread evenly over all, from short to long, in random order."""
    ordered = sorted(lengths)
    if len(ordered) < texts:
        raise ValueError(f"{len(ordered)} texts are too few to pick {texts} lengths from")
    picked = [ordered[int((place + 0.5) * len(ordered) / texts)] for place in range(texts)]
    order = torch.randperm(texts, generator=torch.Generator().manual_seed(0))
    return [picked[place] for place in order.tolist()]


def models(longest: int, dtype: torch.dtype, rivals: Sequence[str] = RIVALS) -> dict[str, nn.Module]:
    """Build MaBERT-base and the rivals, of base size with random weights and their fastest attention."""
    torch.manual_seed(0)
    positions = max(512, longest)
    bert = BertConfig(max_position_embeddings=positions, attn_implementation=attention.NAME)
    modern = ModernBertConfig(max_position_embeddings=max(8192, longest), attn_implementation=attention.NAME)
    built: dict[str, Callable[[], nn.Module]] = {
        "mabert": lambda: MaBertModel(MaBertConfig(max_position_embeddings=positions)),
        "bert": lambda: BertModel(bert, add_pooling_layer=False),
        "modernbert": lambda: ModernBertModel(modern),
    }
    return {name: built[name]().to(dtype).eval() for name in ("mabert", *rivals)}


def batch_of(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Make random token ids and their mask, padded on the right, (texts, longest) each."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.randint(1000, 30000, mask.shape, generator=torch.Generator().manual_seed(0))
    return ids.masked_fill(~mask, 0), mask.long()


def calls(
    lengths: Sequence[int], dtype: torch.dtype, device: str = "cpu", rivals: Sequence[str] = RIVALS
) -> dict[str, Callable[[], object]]:
    """Make one call for each side: a forward of the batch."""
    ids, mask = (tensor.to(device) for tensor in batch_of(lengths))
    even_ids = batch_of([even(lengths)] * len(lengths))[0].to(device)
    built: dict[str, Any] = {name: model.to(device) for name, model in models(ids.shape[1], dtype, rivals).items()}
    built = {name: prepack(model) if can_prepack(model.device, dtype) else model for name, model in built.items()}

    def forward(name: str, ids: Tensor, mask: Tensor | None, unpad: str | None = None) -> Callable[[], object]:
        @torch.inference_mode()
        def call() -> object:
            if unpad is not None:
                built[name].config.unpad = unpad
            return built[name](input_ids=ids, attention_mask=mask).last_hidden_state

        return call

    def one_by_one(name: str) -> Callable[[], object]:
        alone = [forward(name, row[:length].unsqueeze(0), None) for row, length in zip(ids, lengths, strict=True)]
        return lambda: [call() for call in alone]

    sides: dict[str, Callable[[], object]] = {
        "unpadded": forward("mabert", ids, mask, "auto"),
        "even": forward("mabert", even_ids, None),
        "alone": one_by_one("mabert"),
        "masked": forward("mabert", ids, mask, "never"),
    }
    for rival in rivals:
        sides |= {rival: forward(rival, ids, mask), f"{rival} alone": one_by_one(rival)}
    return sides


def even(lengths: Sequence[int]) -> int:
    """The length of a control's rows, which are as many and in all as long as the texts, up to rounding."""
    return round(sum(lengths) / len(lengths))


def tokens_of(side: str, lengths: Sequence[int]) -> int:
    """The tokens that a side runs, without those of padding."""
    return len(lengths) * even(lengths) if side == "even" else sum(lengths)


def row_of(name: str, side: str, lengths: Sequence[int], spread: Spread) -> Row:
    """Put one side's times beside what it had to do."""
    tokens = tokens_of(side, lengths)
    padded = len(lengths) * max(lengths) if side in PADDED else tokens
    speed = 1e3 * tokens / spread.median_ms
    return Row(name, side, len(lengths), tokens, padded, speed, **asdict(spread))


def run(
    quick: bool = False,
    output: Path | None = None,
    own: Mapping[str, Sequence[int]] | None = None,
    dtype: str | None = None,
    rivals: Sequence[str] = RIVALS,
    budget: float = _ROUNDS["budget"],
) -> dict[str, Any]:
    """Measure every side at every distribution of lengths, print the table, and return (and write) it.

    Args:
        quick: Two short texts and one round, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.
        own: Name to the lengths of a person's texts, in tokens, beside the drawn ones.
        dtype: Of the weights; default, `mabert.environment.fast_dtype`.
        rivals: Of `RIVALS`, beside MaBERT.
        budget: Seconds for the rounds of a batch, half of them to be timed whole and half in parts; after that no round
            past the third is begun.

    Returns:
        ``environment``, ``variables`` of the C library, as `mabert_lab.bench.worker` sets them, ``dtype``, ``rows``,
        ``speed``: for each distribution how many times the speed of each other side the unpadded run has, by the
        medians, ``rounds``: the quartiles of the same within a round, ``parts``: see `least_parts`, and ``profiled``:
        of how many rounds.

    Raises:
        ValueError: For a dtype or a rival that is not there.
    """
    for rival in rivals:
        if rival not in RIVALS:
            raise ValueError(f"rivals has {rival!r}; there are {', '.join(RIVALS)}")
    dtype = fast_dtype("cpu") if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(DTYPES)}")
    console = Console()
    batches = {name: draw(*how) for name, how in NORMAL.items()}
    batches |= {name: pick(lengths) for name, lengths in (own or {}).items()}
    if quick:
        batches = {"two texts": [9, 30]}
    rounds: dict[str, Any] = {"least": 1, "most": 1, "budget": 0.0} if quick else _ROUNDS | {"budget": budget / 2}
    rows: list[Row] = []
    within: dict[str, dict[str, list[float]]] = {}
    parts: dict[str, dict[str, dict[str, float]]] = {}
    profiles: dict[str, int] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("lengths", total=len(batches))
        for name, lengths in batches.items():
            progress.update(bar, description=name)
            sides = calls(lengths, DTYPES[dtype], rivals=rivals)
            samples = in_turns(sides, **rounds)
            rows += [row_of(name, side, lengths, Spread.of(seconds)) for side, seconds in samples.items()]
            within[name] = within_rounds(samples, lengths)
            parts[name], profiles[name] = least_parts({side: sides[side] for side in CONTROLLED}, **rounds)
            del sides
            gc.collect()
            progress.advance(bar)
    result = {
        "environment": measured_on(),
        "variables": {name: os.environ.get(name) for name in ALLOCATION},
        "quick": quick,
        "dtype": dtype,
        "lengths": {name: list(lengths) for name, lengths in batches.items()},
        "rows": [asdict(row) for row in rows],
        "speed": speeds(rows),
        "rounds": within,
        "parts": parts,
        "profiled": profiles,
    }
    _show(console, rows, result)
    if output is not None:
        console.print(f"written to {write(result, output, 'lengths')}")
    return result


def speeds(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Divide the unpadded run's tokens a second by each other side's."""
    ours = {row.lengths: row.tokens_per_second for row in rows if row.side == "unpadded"}
    speeds: dict[str, dict[str, float]] = {name: {} for name in ours}
    for row in rows:
        if row.side != "unpadded" and row.lengths in ours:
            speeds[row.lengths][row.side] = ours[row.lengths] / row.tokens_per_second
    return speeds


def within_rounds(samples: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> dict[str, list[float]]:
    """Divide the unpadded run's tokens a second by each other side's of the same round; quartiles over the rounds.

    What a machine does beside falls on both sides of a round more than on the medians of all rounds.
    """
    parts = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    speed = {
        side: tokens_of(side, lengths) / torch.tensor(seconds, dtype=torch.float64) for side, seconds in samples.items()
    }
    ours = speed.pop("unpadded")
    return {side: torch.quantile(ours / theirs, parts).tolist() for side, theirs in speed.items()}


def least_parts(sides: Mapping[str, Callable[[], object]], **rounds: Any) -> tuple[dict[str, dict[str, float]], int]:
    """Profile forwards in turns.

    Args:
        sides: Name to what is profiled; every round makes the same calls.
        rounds: As of `mabert.rounds.in_turns`.

    Returns:
        Each side's milliseconds by part, of each call the least of all rounds; and how many rounds there were.
    """
    runs: dict[str, list[dict[str, list[float]]]] = {side: [] for side in sides}

    def keep(side: str) -> None:
        runs[side].append(profiled(sides[side]))

    in_turns({side: partial(keep, side) for side in sides}, **rounds, warm=False)
    least = {
        side: {part: sum(map(min, zip(*(run[part] for run in every), strict=True))) for part in every[0]}
        for side, every in runs.items()
    }
    return least, len(next(iter(runs.values())))


def differences(parts: Mapping[str, Mapping[str, float]], lengths: Sequence[int]) -> dict[str, float]:
    """What each part costs the unpadded run more than the even rows, as a share of all that those take.

    Both by the token, since the even rows have a few more or less of them.
    """
    unpadded, even = (
        {part: milliseconds / tokens_of(side, lengths) for part, milliseconds in parts[side].items()}
        for side in CONTROLLED
    )
    whole = sum(even.values())
    return {part: (unpadded[part] - even[part]) / whole for part in even}


def _show(console: Console, rows: list[Row], result: dict[str, Any]) -> None:
    title = f"texts of uneven length, {result['dtype']}, {result['environment']['threads']} threads"
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="tokens: padding included; tokens/s: without it; gain: speed of the unpadded run in this one's",
    )
    for column in ("lengths", "side"):
        table.add_column(column, no_wrap=True)
    for column in ("tokens", "ms", "range", "tokens/s", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ratio = result["speed"][row.lengths].get(row.side)
        table.add_row(
            row.lengths,
            SIDES[row.side],
            f"{row.padded_tokens:,}",
            f"{row.median_ms:,.0f}",
            f"{row.fastest_ms:,.0f}-{row.slowest_ms:,.0f}",
            f"{row.tokens_per_second:,.0f}",
            f"{ratio:.2f}" if ratio else "",
        )
    console.print(table)
    shares = {name: differences(parts, result["lengths"][name]) for name, parts in result["parts"].items()}
    told = Table(
        title="least time of each operation: unpadded beside even rows",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="percent of the even rows' time by the token; added: all but the products, which are as many",
    )
    told.add_column("lengths", no_wrap=True)
    for part in (*next(iter(shares.values())), "added"):
        told.add_column(SHORT.get(part, part), justify="right", no_wrap=True)
    for name, share in shares.items():
        added = sum(value for part, value in share.items() if part != SAME)
        told.add_row(name, *(f"{100 * value:+.1f}" for value in (*share.values(), added)))
    console.print(told)
