"""Chooses which attention layers a student keeps, and the first weights of the Mamba cores in place of the others:
their output is that of attention with uniform weights."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import initialization as init

from mabert.conversion.watch import Item, attention_means, held, packed, unexplained
from mabert.conversion.windows import windows_of
from mabert.model.attention import SelfAttention
from mabert.model.mamba import MambaMixer

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


def pattern_warnings(pattern: str, lost: Sequence[float]) -> list[str]:
    """Returns a warning for each layer that loses attention that matters."""
    middle = sorted(lost)[len(lost) // 2]
    return [
        f"layer {layer + 1} becomes Mamba, and its attention matters: without it {share:.0%} of the last hidden "
        f"states' variance is lost, where {middle:.0%} is usual here; a T in its place keeps it"
        for layer, (letter, share) in enumerate(zip(pattern, lost, strict=True))
        if letter == "M" and share > MUCH * middle
    ]


OPEN = 1.278
"""Bias at which SiLU is 1, so that a gate lets everything through."""


@torch.no_grad()
def begin_from(mixer: MambaMixer, attention: SelfAttention) -> None:
    """Initializes a mixer, of any expansion and with biases, near the attention of the same width that it will replace.

    Its channels are the attention's values twice, v and -v, read out by the attention's output weights, O and -O: since
    SiLU(v) - SiLU(-v) = v, each pair's output is linear in v. The gate starts open, the convolution near the identity,
    and everything else with variances that preserve a signal's scale. With fewer than two channels per value, some
    values get one channel or none.
    """
    width, channels = attention.value.in_features, mixer.out_proj.in_features
    init.normal_(mixer.in_proj.weight, std=width**-0.5)
    values, sign = paired(attention.value.weight, channels)
    mixer.in_proj.weight[:channels] = values
    mixer.in_proj.weight[channels:] *= 0.3
    mixer.in_proj.bias[:channels] = 0.0
    if attention.value.bias is not None:
        mixer.in_proj.bias[:channels] = paired(attention.value.bias, channels)[0]
    mixer.in_proj.bias[channels:] = OPEN
    read = attention.output.weight.T.repeat(-(-channels // width), 1)[:channels] * sign
    # A pair passes its value on once, however many pairs there are; a channel without a partner passes half.
    mixer.out_proj.weight.copy_(read.T * (2 * width / channels / len(mixer.cores)))
    mixer.out_proj.bias.zero_()
    if attention.output.bias is not None:
        mixer.out_proj.bias.copy_(attention.output.bias)
    for core in mixer.cores:
        begin_core(core, width)


def paired(weight: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeats a weight's rows to `channels`, negating every second copy; also returns the signs, (channels, 1)."""
    times = -(-channels // len(weight))
    sign = torch.tensor([1.0, -1.0]).repeat(times)[:times].repeat_interleave(len(weight))[:channels]
    repeated = weight.repeat(times, *([1] * (weight.dim() - 1)))[:channels]
    return repeated * sign.view(-1, *([1] * (weight.dim() - 1))), sign[:, None]


def begin_core(core: Any, width: int) -> None:
    """Initializes one direction as Mamba-1 does, with both channels of a pair alike."""
    core.init_weights()
    scan = core.recurrence
    init.normal_(core.x_proj.weight, std=core.x_proj.in_features**-0.5)
    kernel = core.local_mixing.weight
    kernel *= 0.1
    here = (kernel.shape[1] - 1) // 2 if core.local_mixing.mode == "centered" else -1
    kernel[:, here] += 1.0
    core.local_mixing.bias.zero_()
    scan.D.fill_(0.3)
    for each in (kernel, scan.delta_bias, core.dt_proj.weight):
        each[width : 2 * width] = each[:width][: len(each) - width]
