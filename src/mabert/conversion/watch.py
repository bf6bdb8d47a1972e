"""What goes on inside an encoder: recorded, compared, and held constant for a while."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mabert.model.packing import Packing
from mabert.model.pooling import Pooler

Row = dict[str, Any]
"""A packed row as `FlatteningCollator` makes it."""


class _EnoughError(Exception):
    """Ends a forward behind which nothing is wanted."""


@torch.no_grad()
def attention_of(encoder: Any, row: Row, layers: Collection[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """What the attention of some layers reads and gives, (1, total, D) each, by layer; what follows the last of them is
    not computed."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def note(layer: int) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            seen[layer] = (given[0], output[0])
            if len(seen) == len(layers):
                raise _EnoughError

        return hook

    handles = [encoder.layers[layer].attention.register_forward_hook(note(layer)) for layer in layers]
    try:
        encoder(**row)
    except _EnoughError:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen


@contextmanager
def hidden_states_of(encoder: Any) -> Iterator[list[Tensor]]:
    """Records what each layer gives while the block runs, (1, total, D) each."""
    seen: list[Tensor] = []

    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        seen.append(output)

    handles = [block.register_forward_hook(note) for block in encoder.layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Constant(nn.Module):
    """Stands for attention, and gives the same vector (D,) at every token."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.vector = vector

    def forward(self, hidden: Tensor, *given: Any, **named: Any) -> tuple[Tensor, None]:
        """(batch, time, D) to the same."""
        return self.vector.expand_as(hidden), None


@contextmanager
def held(encoder: Any, vectors: Mapping[int, Tensor]) -> Iterator[None]:
    """Holds the attention of some layers at a vector (D,) each while the block runs."""
    before = {layer: encoder.layers[layer].attention for layer in vectors}
    try:
        for layer, vector in vectors.items():
            encoder.layers[layer].attention = Constant(vector)
        yield
    finally:
        for layer, attention in before.items():
            encoder.layers[layer].attention = attention


def attention_means(encoder: Any, row: Row, layers: Collection[int]) -> dict[int, Tensor]:
    """What the attention of some layers gives on the average over a row, (D,) by layer."""
    return {layer: given.mean((0, 1)) for layer, (_, given) in attention_of(encoder, row, layers).items()}


def unexplained(given: Tensor, wanted: Tensor) -> Tensor:
    """Share of the variance of vectors (1, total, D) that others do not explain: 1 for the best constant, 0 for all."""
    given, wanted = given.float(), wanted.float()
    return (given - wanted).square().sum() / (wanted - wanted.mean(1, keepdim=True)).square().sum()


def packing_of(row: Row) -> Packing:
    """The sequences of a row."""
    packing = Packing.from_caller(row, row["input_ids"], None, row["position_ids"])
    assert packing is not None
    return packing


def pooled(hidden: Tensor, packing: Packing, pooling: str) -> Tensor:
    """One vector a sequence, (1, total, D) to (sequences, D); `pooling` is `mean` or `cls`."""
    batches, pool = packing.batches(), Pooler.FIXED[pooling]
    parts = zip(batches.cut(hidden), batches.masks, strict=True)
    return batches.in_order([pool(part, valid) for part, valid in parts])
