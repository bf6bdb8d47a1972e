"""Hooks that record the output of an encoder's layers or hold it constant, and measures that compare outputs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mabert.data.collate import FlatteningCollator
from mabert.model.boundaries import read_boundaries
from mabert.model.packing import Packing
from mabert.model.pooling import Pooler

Item = dict[str, Tensor]
"""A text: `input_ids`, int64 (time,), and `token_type_ids` where pairs need them."""

PackedRow = dict[str, Any]
"""A packed row of texts as `FlatteningCollator` makes it."""


def packed(texts: Sequence[Item], device: torch.device) -> PackedRow:
    """Packs texts in a row on a device."""
    row = FlatteningCollator()(texts)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in row.items()}


class _EnoughError(Exception):
    """Ends a forward once everything wanted has been recorded."""


@torch.no_grad()
def attention_of(encoder: Any, row: PackedRow, layers: Collection[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Returns input and output of some layers' attention, (1, total, D) each, by layer; stops after the last."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def note(layer: int) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            seen[layer] = (given[0], output[0])
            if len(seen) == len(layers):
                raise _EnoughError

        return hook

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(encoder.layers[layer].attention.register_forward_hook(note(layer)))
        with suppress(_EnoughError):
            encoder(**row)
    return seen


@contextmanager
def hidden_states_of(encoder: Any) -> Iterator[list[Tensor]]:
    """Records each layer's output while the block runs, (1, total, D) each."""
    seen: list[Tensor] = []

    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        seen.append(output)

    with ExitStack() as hooks:
        for block in encoder.layers:
            hooks.enter_context(block.register_forward_hook(note))
        yield seen


class Constant(nn.Module):
    """Replaces attention and returns the same vector (D,) at every token."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.vector = vector

    def forward(self, hidden: Tensor, *given: Any, **named: Any) -> tuple[Tensor, None]:
        """Returns the vector at every token, (batch, time, D)."""
        return self.vector.expand_as(hidden), None


@contextmanager
def held(encoder: Any, vectors: Mapping[int, Tensor]) -> Iterator[None]:
    """Replaces the output of some layers' attention with a vector (D,) each while the block runs."""
    before = {layer: encoder.layers[layer].attention for layer in vectors}
    try:
        for layer, vector in vectors.items():
            encoder.layers[layer].attention = Constant(vector)
        yield
    finally:
        for layer, attention in before.items():
            encoder.layers[layer].attention = attention


def attention_means(encoder: Any, row: PackedRow, layers: Collection[int]) -> dict[int, Tensor]:
    """Returns the mean output of some layers' attention over a row, (D,) by layer."""
    return {layer: given.mean((0, 1)) for layer, (_, given) in attention_of(encoder, row, layers).items()}


def unexplained(given: Tensor, wanted: Tensor) -> Tensor:
    """Returns the unexplained share of the variance of `wanted` (1, total, D): 1 for the best constant, 0 if equal."""
    given, wanted = given.float(), wanted.float()
    return (given - wanted).square().sum() / (wanted - wanted.mean(1, keepdim=True)).square().sum()


def packing_of(row: PackedRow) -> Packing:
    """Returns the sequences of a row."""
    packing = read_boundaries(row, row["input_ids"], None, row["position_ids"])
    assert packing is not None
    return packing


def pooled(hidden: Tensor, packing: Packing, pooling: str) -> Tensor:
    """Pools (1, total, D) to one vector per sequence, (sequences, D); `pooling` is `mean` or `cls`."""
    batches = packing.batches()
    return batches.in_order(batches.each(hidden, Pooler.FIXED[pooling]))
