"""What a study would cost here: steps, tokens, and hours by a short timed probe of each model."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mabert.baselines.registry import family_named
from mabert.data.tokenizer import load_tokenizer
from mabert.precision import resolve_precision
from mabert.rounds import timed
from mabert.study.cells import Cell, CellFiles
from mabert.study.live import duration
from mabert.study.plan import Plan
from mabert.study.work import micro_batch
from mabert.train.fields import build
from mabert.train.objective import at_scored_positions, mean_over_scored
from mabert.train.pretrain import model_config, new_model
from mabert.train.recipe import PretrainRecipe

PROBE_TOKENS = 1024
"""Tokens of a probe's batch on a CPU, or one row where that is longer; a GPU, which few tokens leave idle, is given the
micro-batch."""

LAYERS = ("layer_pattern", "layer_types")
"""Of a model's configuration, what names its layers in their order."""

SHORT = (8, 4)
"""Rows and tokens of the probe of a pass over few."""

PROBES = 3
"""Calls of a probe after the first."""

PATIENCE = 5.0
"""Seconds after which a probe, which has called once to warm up and once to be timed, calls no more. Where a pass over
few tokens alone takes that long, as in bf16 on a CPU that has no instructions for it, none over more is timed: each
token is taken to cost as much as each of these, which is an upper bound."""


@dataclass(frozen=True)
class Estimate:
    """What a cell would cost.

    Attributes:
        cell: It.
        left: The share of it that is to be done.
        seconds: Of all of it, on this machine, in one process.
        at_most: Whether that is an upper bound, see `PATIENCE`.
    """

    cell: Cell
    left: float
    seconds: float
    at_most: bool = False


def estimates(plan: Plan, root: Path, tell: Callable[[str], object] = lambda _: None) -> list[Estimate]:
    """The cost of every cell of a plan.

    Args:
        plan: The study.
        root: Folder of its cells.
        tell: Is called with what is timed next.

    A step is the optimizer's update and, of each micro-batch, a pass forward and backward: so much for any, and so much
    for each token. Models that differ in nothing a step's time depends on are probed once; the order of their layers is
    such a thing. Fine-tuning is taken to pass its tokens at the pace of the first stage's windows, with its own
    precision and dropout and without the vocabulary's scores. Longformer comes out too cheap: it fills inputs up to
    whole windows, and a pass over few tokens is less quick for that.
    """
    probes = Probes(tell)
    found: dict[str, Estimate] = {}
    learners: dict[str, Learner] = {}
    for name, cell in plan.cells.items():
        if cell.kind == "pretraining":
            recipe = build(PretrainRecipe, cell.order["recipe"], "")
            training = recipe.training
            training.micro_batch_size = micro_batch(training, 1)
            about = cell.title.removeprefix("pretrain ")
            timed_as = learners[name] = Learner(about, recipe, cell.content["recipe"]["model"])
            passes = training.batch_size / training.micro_batch_size
            update, seconds = probes.update(timed_as), 0.0
            for stage, steps in zip(recipe.stages, recipe.stage_steps(), strict=True):
                line = probes.line(timed_as, stage.length)
                seconds += steps * (passes * line.step + training.batch_size * stage.length * line.token + update)
        else:
            assert cell.needs is not None
            learner = learners[name] = learners[cell.needs]
            timed_as = learner.tuned(cell.content["recipe"])
            line = probes.line(timed_as, learner.recipe.stages[0].length)
            seconds = cell.steps * (line.step + probes.update(learner)) + cell.tokens * line.token
        left = CellFiles(root, name).left(cell)
        found[name] = Estimate(cell, left, seconds, at_most=probes.short(timed_as) > PATIENCE)
    return list(found.values())


@dataclass(frozen=True)
class Learner:
    """A model whose steps are timed.

    Attributes:
        title: Of its pretraining.
        recipe: Of its pretraining.
        model: Its configuration, resolved.
        dropout: Of fine-tuning, which goes without the vocabulary's scores; None while it is pretrained.
    """

    title: str
    recipe: PretrainRecipe
    model: dict[str, Any]
    dropout: float | None = None

    def tuned(self, recipe: Mapping[str, Any]) -> "Learner":
        """The same in fine-tuning by a recipe."""
        training = replace(self.recipe.training, precision=recipe["precision"], gradient_checkpointing=False)
        return replace(self, recipe=replace(self.recipe, training=training), dropout=recipe["dropout"])

    def known_by(self) -> str:
        """All that the time of its steps depends on."""
        recipe, training = self.recipe, self.recipe.training
        unordered = {name: sorted(self.model.get(name) or "") for name in LAYERS}
        takes = (resolve_precision(training.precision), training.gradient_checkpointing, recipe.masking.probability)
        return repr((recipe.architecture, {**self.model, **unordered}, *takes, self.dropout))


class Probes:
    """Times of passes and updates, each taken once.

    Args:
        tell: As of `estimates`.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self.tell = tell
        self.taken: dict[tuple[Any, ...], Times] = {}

    def line(self, learner: Learner, length: int) -> "Line":
        """Of a pass over windows of a length."""
        most = PROBE_TOKENS // length if not torch.cuda.is_available() else learner.recipe.training.micro_batch_size
        rows = max(1, min(learner.recipe.training.micro_batch_size, most))
        short = self.short(learner)
        if short > PATIENCE:
            rows, length = SHORT
        long = self.times(learner, rows, length).forward_backward
        return Line.through((SHORT[0] * SHORT[1], short), (rows * length, long))

    def short(self, learner: Learner) -> float:
        """Of a pass over few tokens."""
        return self.times(learner, *SHORT).forward_backward

    def update(self, learner: Learner) -> float:
        """Of the optimizer's step."""
        return self.times(learner, *SHORT).update

    def times(self, learner: Learner, rows: int, length: int) -> "Times":
        """Of a model, or of another one that takes as long."""
        key = (learner.known_by(), rows, length)
        if key not in self.taken:
            kind = "pretraining" if learner.dropout is None else "fine-tuning"
            self.tell(f"{kind} {learner.title}: {rows} x {length} tokens")
            self.taken[key] = probe(learner.recipe, rows, length, learner.dropout)
        return self.taken[key]


class Times(NamedTuple):
    """Seconds of a training step.

    Attributes:
        forward_backward: Of the pass.
        update: Of the optimizer's step.
    """

    forward_backward: float
    update: float


class Line(NamedTuple):
    """Seconds of a pass as a line over its tokens.

    Attributes:
        step: Of a pass, however few tokens it has.
        token: Of every token more.
    """

    step: float
    token: float

    @classmethod
    def through(cls, short: tuple[int, float], long: tuple[int, float]) -> "Line":
        """The line through two passes, of tokens and seconds each, that falls nowhere."""
        token = max(0.0, (long[1] - short[1]) / (long[0] - short[0])) if long[0] > short[0] else short[1] / short[0]
        return cls(max(0.0, short[1] - token * short[0]), token)


def probe(recipe: PretrainRecipe, rows: int, length: int, dropout: float | None = None) -> Times:
    """Times a training step on windows of a length.

    Args:
        recipe: The pretraining's.
        rows: Of the batch.
        length: Tokens of a row.
        dropout: Of fine-tuning, whose pass is without the vocabulary's scores; None for the pretraining's.
    """
    assert recipe.tokenizer is not None
    family, config = family_named(recipe.architecture), model_config(recipe, load_tokenizer(recipe.tokenizer))
    for name, value in {} if dropout is None else family.classifier_dropout(dropout).items():
        setattr(config, name, value)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(config).to(device).train()
    if recipe.training.gradient_checkpointing:
        model.activation_checkpointing_enable()
    head = getattr(model, family.head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    ids = torch.randint(5, config.vocab_size, (rows, length), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) >= recipe.masking.probability, -100)
    labels[0, 0] = ids[0, 0]  # a batch of few tokens may draw none
    bf16 = resolve_precision(recipe.training.precision) == "bf16"

    def forward_backward() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16), at_scored_positions(head, labels):
            if dropout is None:
                loss = mean_over_scored(model(input_ids=ids), labels)
            else:
                loss = model.base_model(input_ids=ids).last_hidden_state.float().mean()
        loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    forward_backward()  # which may compile kernels for half a minute
    update()
    began = time.monotonic()
    taken = [Times(timed(forward_backward), timed(update))]
    while len(taken) < PROBES and time.monotonic() - began < PATIENCE:
        taken.append(Times(timed(forward_backward), timed(update)))
    return Times(*(statistics.median(column) for column in zip(*taken, strict=True)))


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
        table.add_row(cell.name, Text(cell.title), f"{cell.steps:,}", shown(cell.tokens), shown(cell.parameters), took)
    console.print(table)
    left = [cost for cost in costs if cost.left]
    kinds = [sum(cost.cell.kind == kind for cost in left) for kind in ("pretraining", "finetuning")]
    tokens = sum(cost.left * cost.cell.tokens for cost in left)
    console.print(
        f"{plan.name} at scale {plan.scale_name}: {kinds[0]} pretrainings and {kinds[1]} fine-tunings to run, "
        f"{sum(cost.left * cost.cell.steps for cost in left):,.0f} steps, {shown(tokens)} tokens, "
        f"{'at most' if any(cost.at_most for cost in left) else 'about'} "
        f"{duration(sum(cost.left * cost.seconds for cost in left))} on this machine in one process (times by a probe "
        "of each model, fine-tunings' tokens from the length of their texts; evaluation and tokenising come on top)",
        soft_wrap=True,
        markup=False,
        emoji=False,
    )


def shown(number: float) -> str:
    """A count with the unit that suits it."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"
