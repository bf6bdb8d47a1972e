"""What a study would cost here: steps, tokens, and hours by a short timed probe of each model."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from mabert.baselines.registry import family_named
from mabert.bench.rounds import timed
from mabert.data.tokenizer import load_tokenizer
from mabert.study.cells import Cell, CellFiles
from mabert.study.live import duration
from mabert.study.plan import Plan
from mabert.train.objective import at_scored_positions, mean_over_scored
from mabert.train.pretrain import model_config, new_model
from mabert.train.recipe import PretrainRecipe, build
from mabert.train.trainer import resolve_precision

PROBE_TOKENS = 1024
"""Tokens of a probe's batch, or one row where that is longer."""

SHORT = (32, 4)
"""Rows and tokens of the probe of a fine-tuning step on short texts."""

PROBES = 3
"""Calls of a probe after the first."""

SCORED = 0.15


@dataclass(frozen=True)
class Estimate:
    """What a cell would cost.

    Attributes:
        cell: It.
        left: The share of it that is to be done.
        seconds: Of all of it, on this machine, in this process.
    """

    cell: Cell
    left: float
    seconds: float


def estimates(plan: Plan, root: Path) -> list[Estimate]:
    """The cost of every cell of a plan.

    Models that differ in nothing a step's time depends on are probed once. A step of fine-tuning is taken to cost what
    one of its model's pretraining costs with as many tokens, between a batch of short texts and one of windows of the
    first stage.
    """
    probes = Probes()
    found: dict[str, float] = {}
    tuning: dict[str, Line] = {}
    for name, cell in plan.cells.items():
        if cell.kind == "pretraining":
            recipe = build(PretrainRecipe, cell.order["recipe"], "")
            seconds = partial(probes.seconds, cell, recipe)
            found[name] = 0.0
            for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True):
                rows = max(1, min(recipe.training.micro_batch_size, PROBE_TOKENS // stage.length))
                found[name] += steps * recipe.training.batch_size / rows * seconds(rows, stage.length)
            first = recipe.stages[0].length
            rows = max(1, PROBE_TOKENS // first)
            short, long = (SHORT[0] * SHORT[1], seconds(*SHORT)), (rows * first, seconds(rows, first))
            tuning[name] = Line.through(short, long)
        else:
            assert cell.needs is not None
            tuning[name] = line = tuning[cell.needs]
            found[name] = cell.steps * line.step + cell.tokens * line.token
    return [Estimate(cell, CellFiles(root, name).left(cell), found[name]) for name, cell in plan.cells.items()]


class Probes:
    """Times of steps, each taken once."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}

    def seconds(self, cell: Cell, recipe: PretrainRecipe, rows: int, length: int) -> float:
        """Of a step of a pretraining, or of another one that takes as long."""
        about = cell.content["recipe"]
        key = repr((recipe.architecture, about["model"], about["training"]["precision"], rows, length))
        if key not in self.taken:
            self.taken[key] = probe(recipe, rows, length)
        return self.taken[key]


class Line(NamedTuple):
    """Seconds of a step as a line over its tokens.

    Attributes:
        step: Of a step, however few tokens it has.
        token: Of every token more.
    """

    step: float
    token: float

    @classmethod
    def through(cls, short: tuple[int, float], long: tuple[int, float]) -> "Line":
        """The line through two steps, of tokens and seconds each, that falls nowhere."""
        token = max(0.0, (long[1] - short[1]) / (long[0] - short[0])) if long[0] > short[0] else short[1] / short[0]
        return cls(max(0.0, short[1] - token * short[0]), token)


def probe(recipe: PretrainRecipe, rows: int, length: int) -> float:
    """Seconds of a training step on windows of a length."""
    assert recipe.tokenizer is not None
    config = model_config(recipe, load_tokenizer(recipe.tokenizer))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(config).to(device).train()
    head = getattr(model, family_named(recipe.architecture).head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    ids = torch.randint(5, config.vocab_size, (rows, length), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) >= SCORED, -100)
    labels[0, 0] = ids[0, 0]  # a batch of few tokens may draw none
    bf16 = resolve_precision(recipe.training.precision) == "bf16"

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16), at_scored_positions(head, labels):
            loss = mean_over_scored(model(input_ids=ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    return statistics.median(timed(step) for _ in range(PROBES))


def show(plan: Plan, costs: Iterable[Estimate], console: Console) -> None:
    """Prints the cells and their cost."""
    costs = list(costs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "what"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "tokens", "parameters", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        cell = cost.cell
        took = duration(cost.left * cost.seconds) if cost.left else "done"
        table.add_row(cell.name, cell.title, f"{cell.steps:,}", shown(cell.tokens), shown(cell.parameters), took)
    console.print(table)
    left = [cost for cost in costs if cost.left]
    kinds = [sum(cost.cell.kind == kind for cost in left) for kind in ("pretraining", "finetuning")]
    tokens = sum(cost.left * cost.cell.tokens for cost in left)
    console.print(
        f"{plan.name} at scale {plan.scale_name}: {kinds[0]} pretrainings and {kinds[1]} fine-tunings to run, "
        f"{sum(cost.left * cost.cell.steps for cost in left):,.0f} steps, {shown(tokens)} tokens, "
        f"about {duration(sum(cost.left * cost.seconds for cost in left))} on this machine (times by a probe of each "
        "model, fine-tunings' tokens from the length of their texts; evaluation and tokenising come on top)",
        soft_wrap=True,
    )


def shown(number: float) -> str:
    """A count with the unit that suits it."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"
