"""Chooses the layers that keep their attention: those that the model needs most."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from mabert.conversion.watch import Item, attention_means, held, packed, unexplained
from mabert.conversion.windows import windows_of

SHARE_KEPT = 1 / 3
"""Share of the layers that keep their attention, as in the paper's schedule."""

MUCH = 3.0
"""A layer's attention matters if its loss is more than this many times the middle layer's."""


class Survey:
    """Measures, on a few texts, what an encoder that keeps all its layers loses without the attention of some. It reads
    texts beyond its positions in windows."""

    @torch.no_grad()
    def __init__(self, encoder: Any, texts: Sequence[Item]) -> None:
        self.row = windows_of(packed(texts, encoder.device), encoder.config.max_position_embeddings).row
        self.encoder, self.depth = encoder, len(encoder.layers)
        self.means = attention_means(encoder, self.row, range(self.depth))
        self.whole = encoder(**self.row).last_hidden_state

    @torch.no_grad()
    def lost(self, layers: Collection[int]) -> float:
        """Returns the share of the last hidden states' variance lost if these layers' attention is held at its mean."""
        with held(self.encoder, {layer: self.means[layer] for layer in layers}):
            return float(unexplained(self.encoder(**self.row).last_hidden_state, self.whole))

    def importance(self) -> list[float]:
        """Returns the loss without the attention of each single layer."""
        return [self.lost([layer]) for layer in range(self.depth)]

    def pattern(self) -> str:
        """Chooses a schedule that keeps the attention of `layers_kept` layers.

        It adds one layer at a time: the one that loses the most if it is missing from the layers kept so far.
        """
        kept: set[int] = set()
        while len(kept) < layers_kept(self.depth):
            rest = [layer for layer in range(self.depth) if layer not in kept]
            kept.add(min(rest, key=lambda layer: self.lost([each for each in rest if each != layer])))
        return "".join("T" if layer in kept else "M" for layer in range(self.depth))


def layers_kept(depth: int) -> int:
    """Returns how many of a teacher's layers keep their attention: a third, at least one, but not the only one."""
    return min(max(1, round(SHARE_KEPT * depth)), depth - 1)


def warnings_of(pattern: str, lost: Sequence[float]) -> list[str]:
    """Returns a warning for each layer that loses attention that matters."""
    middle = sorted(lost)[len(lost) // 2]
    return [
        f"layer {layer + 1} becomes Mamba, and its attention matters: without it {share:.0%} of the last hidden "
        f"states' variance is lost, where {middle:.0%} is usual here; a T in its place keeps it"
        for layer, (letter, share) in enumerate(zip(pattern, lost, strict=True))
        if letter == "M" and share > MUCH * middle
    ]
