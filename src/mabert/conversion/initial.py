"""Initial weights of a Mamba core that replaces attention: the output of that attention with uniform weights."""

from typing import Any

import torch
from transformers import initialization as init

from mabert.model.attention import SelfAttention
from mabert.model.mamba import MambaMixer

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
