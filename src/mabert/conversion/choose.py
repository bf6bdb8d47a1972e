"""Which layers keep their attention: those that a model can do without least."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mabert.conversion.watch import attention_means, held, hidden_states_of, unexplained
from mabert.data.collate import FlatteningCollator

KEPT = 1 / 3
"""Share of the layers that keep their attention, as in the paper's schedule."""

MUCH = 3.0
"""A layer matters much if it matters so many times as much as the middle one."""


@torch.no_grad()
def importance(encoder: Any, texts: Sequence[Tensor]) -> list[float]:
    """How much the attention of each layer matters: the share of the variance of the last hidden states that is lost
    when it is held at its mean.

    Args:
        encoder: That keeps all its layers.
        texts: Ids of some texts, int64 (time,) each.
    """
    row = FlatteningCollator()([{"input_ids": text} for text in texts])
    row = {name: value.to(encoder.device) if isinstance(value, Tensor) else value for name, value in row.items()}
    with hidden_states_of(encoder) as whole:
        encoder(**row)
    lost = []
    for layer, vector in attention_means(encoder, row, range(len(encoder.layers))).items():
        with held(encoder, {layer: vector}), hidden_states_of(encoder) as without:
            encoder(**row)
        lost.append(float(unexplained(without[-1], whole[-1])))
    return lost


def pattern_of(lost: Sequence[float]) -> str:
    """The schedule that keeps the attention of the layers that matter most: a third of them, at least one."""
    kept = max(1, round(KEPT * len(lost)))
    chosen = set(sorted(range(len(lost)), key=lambda layer: -lost[layer])[:kept])
    return "".join("T" if layer in chosen else "M" for layer in range(len(lost)))


def warnings_of(pattern: str, lost: Sequence[float]) -> list[str]:
    """A line for each layer whose attention matters much and does not stay."""
    middle = sorted(lost)[len(lost) // 2]
    return [
        f"layer {layer + 1} becomes Mamba, and its attention matters: without it {share:.0%} of the last hidden "
        f"states' variance is lost, where {middle:.0%} is usual here; a T in its place keeps it"
        for layer, (letter, share) in enumerate(zip(pattern, lost, strict=True))
        if letter == "M" and share > MUCH * middle
    ]
