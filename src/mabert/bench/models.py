"""A whole MaBERT beside the BERT of the same size: random weights, no padding, both sides in one run.

BERT is transformers' own, with SDPA attention. Both have learned positions for the measured length, neither has a
pooler. Latency is one forward at batch 1; the training step is that of masked language modelling: forward, loss,
backward and AdamW, with the mini recipe's sizes on both sides.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel

from mabert.bench.results import measured_on, write
from mabert.bench.rounds import interleave
from mabert.model import MaBertConfig, MaBertForMaskedLM, MaBertModel

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MINI = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "max_position_embeddings": 512}
STEP_SHAPE = (32, 128)
SCORED = 0.15
_BUDGET = 30.0  # seconds for a cell, past its fewest rounds
_LONG = 8192  # from here on a forward takes so long that nothing is left to warm


@dataclass(frozen=True)
class Row:
    """One side's times for one task.

    Attributes:
        task: ``forward`` or ``training step``.
        side: ``mabert`` or ``bert``.
        dtype: Of the weights in a forward, of autocast in a training step.
        batch: Rows.
        length: Tokens of a row.
        tokens_per_second: At the median time.
        median_ms: See `mabert.bench.rounds.Spread`, as the rest.
    """

    task: str
    side: str
    dtype: str
    batch: int
    length: int
    tokens_per_second: float
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int


def base_models(length: int, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Build MaBERT-base and BERT-base with random weights and as many positions as are needed.

    Args:
        length: Tokens of the longest input.
        dtype: Of the weights (the recurrence's own parameters stay float32).

    Returns:
        ``mabert`` and ``bert``, in evaluation mode.
    """
    torch.manual_seed(0)
    positions = max(512, length)
    bert = BertConfig(max_position_embeddings=positions, attn_implementation="sdpa")
    models = {
        "mabert": MaBertModel(MaBertConfig(max_position_embeddings=positions)),
        "bert": BertModel(bert, add_pooling_layer=False),
    }
    return {side: model.to(dtype).eval() for side, model in models.items()}


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1000, 30000, (batch, length), generator=torch.Generator().manual_seed(0))


def forwards(length: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Make one call for each side: a forward at batch 1 without a mask."""
    ids = _tokens(1, length)

    def forward(model: nn.Module) -> Callable[[], object]:
        @torch.inference_mode()
        def call() -> object:
            return model(input_ids=ids).last_hidden_state

        return call

    return {side: forward(model) for side, model in base_models(length, dtype).items()}


def training_steps(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Make one call for each side: a step of masked language modelling with 12 layers of the mini recipe's width."""
    torch.manual_seed(0)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    models = {
        "mabert": MaBertForMaskedLM(MaBertConfig(**MINI, **dropout)),
        "bert": BertForMaskedLM(BertConfig(num_hidden_layers=12, attn_implementation="sdpa", **MINI, **dropout)),
    }
    ids = _tokens(*STEP_SHAPE)
    scored = torch.rand(STEP_SHAPE, generator=torch.Generator().manual_seed(1)) < SCORED
    labels = ids.masked_fill(~scored, -100)

    def step(model: nn.Module) -> Callable[[], object]:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def call() -> object:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        return call

    return {side: step(model) for side, model in models.items()}


def run(quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measure both models, print the table, and return (and write) what was measured.

    Args:
        quick: Two short lengths and one round, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file; None writes nothing.

    Returns:
        ``environment``, ``parameters`` of each side, ``rows``, and ``speed``: how many times BERT's speed MaBERT has,
        medians over medians, by task, dtype and length.
    """
    console = Console()
    rows: list[Row] = []
    cells = list(_cells(quick))
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("models", total=len(cells))
        for task, name, batch, length, least, most in cells:
            warm = length < _LONG
            progress.update(bar, description=f"{task}, {name}, {batch} x {length}")
            sides = forwards(length, DTYPES[name]) if task == "forward" else training_steps(DTYPES[name])
            for side, spread in interleave(sides, least=least, most=most, budget=_BUDGET, warm=warm).items():
                speed = 1e3 * batch * length / spread.median_ms
                rows.append(Row(task, side, name, batch, length, speed, **asdict(spread)))
            del sides
            gc.collect()
            progress.advance(bar)
    result = {
        "environment": measured_on(),
        "quick": quick,
        "parameters": {side: model.num_parameters() for side, model in base_models(512, torch.bfloat16).items()},
        "rows": [asdict(row) for row in rows],
        "speed": _speeds(rows),
    }
    _show(console, rows, result)
    if output is not None:
        console.print(f"written to {write(result, output, 'models')}")
    return result


def _cells(quick: bool) -> Iterator[tuple[str, str, int, int, int, int]]:
    """List task, dtype, batch, length, and the fewest and the most rounds."""
    if quick:
        yield "forward", "bfloat16", 1, 64, 1, 1
        yield "training step", "bfloat16", *STEP_SHAPE, 1, 1
        return
    for name in DTYPES:
        for length in LENGTHS:
            yield "forward", name, 1, length, 3, 15
        yield "training step", name, *STEP_SHAPE, 5, 15


def _speeds(rows: list[Row]) -> dict[str, float]:
    """Divide BERT's median by ours."""
    bert = {(row.task, row.dtype, row.length): row.median_ms for row in rows if row.side == "bert"}
    return {
        f"{row.task}, {row.dtype}, {row.length}": bert[row.task, row.dtype, row.length] / row.median_ms
        for row in rows
        if row.side == "mabert"
    }


def _show(console: Console, rows: list[Row], result: dict[str, Any]) -> None:
    title = f"MaBERT beside BERT, {result['environment']['threads']} threads"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("task", "dtype", "tokens", "side"):
        table.add_column(column, no_wrap=True)
    for column in ("median ms", "range", "tokens/s", "speed"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        speed = result["speed"][f"{row.task}, {row.dtype}, {row.length}"]
        table.add_row(
            {"forward": "fwd", "training step": "step"}[row.task],
            {"float32": "fp32", "bfloat16": "bf16"}[row.dtype],
            f"{row.batch} x {row.length:,}",
            row.side,
            f"{row.median_ms:,.0f}",
            f"{row.fastest_ms:,.0f}-{row.slowest_ms:,.0f}",
            f"{row.tokens_per_second:,.0f}",
            f"{speed:.2f}x" if row.side == "mabert" else "",
        )
    console.print(table)
