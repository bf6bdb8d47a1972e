"""The two recurrent operators in torch's own operations, for graphs that run without this package.

`torch.export` and the ONNX exporter capture the recurrence as one loop over time (`torch.scan`) whose body holds a few
small operations on a state of (batch, state, channel). It is for these graphs only: `mabert.ops.reference` is the
specification, and the kernels are fast.
"""

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn.functional import conv1d, pad, silu

from mabert.ops.layout import steps_before
from mabert.ops.reference import silence


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    *,
    mask: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
) -> Tensor:
    """Scans by a loop over time; see `mabert.ops.selective_scan` for the contract."""
    u, delta, B, C = (silence(tensor, mask) for tensor in (u, delta, B, C))
    delta = delta if delta_bias is None else delta + delta_bias
    delta = silence(_softplus(delta) if delta_softplus else delta, mask)  # a step of size zero keeps the state
    rates = A.T.contiguous()

    def step(state: Tensor, given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        size, written, enters, reads = given
        state = torch.exp(size.unsqueeze(1) * rates) * state + enters.unsqueeze(2) * written.unsqueeze(1)
        return state, (reads.unsqueeze(1) @ state).squeeze(1)

    start = u.new_zeros(u.shape[0], A.shape[1], A.shape[0])
    by_time = tuple(tensor.transpose(0, 1) for tensor in (delta, delta * u, B, C))
    y = scan(step, start, by_time, reverse=reverse)[1].transpose(0, 1)
    y = y if D is None else y + D * u
    y = y if z is None else y * silu(silence(z, mask))
    return silence(y, mask)


def depthwise_conv1d(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    mode: str,
    activation: str | None,
    reverse: bool,
) -> Tensor:
    """Convolves by torch's convolution; see `mabert.ops.depthwise_conv1d` for the contract."""
    before = steps_before(weight.shape[1], mode, reverse)
    weight = weight.flip(1) if reverse else weight
    padded = pad(silence(u, mask).transpose(1, 2), (before, weight.shape[1] - 1 - before))
    y = conv1d(padded, weight.unsqueeze(1), bias, groups=weight.shape[0]).transpose(1, 2)
    return silence(silu(y) if activation == "silu" else y, mask)


def _softplus(x: Tensor) -> Tensor:
    """Returns log(1 + exp(x)) to float32's last digits, for step sizes of any size.

    OpenVINO's own loses small results: at x = -12 it is 13 % off, and a scan adds such errors up over the text. With
    e = exp(-|x|) it is max(x, 0) + log(1 + e), and log(1 + e) = 2 artanh(e / (2 + e)), whose series converges fast.
    """
    e = torch.exp(-x.abs())
    s = e / (2 + e)
    z = s * s
    return torch.relu(x) + 2 * s * (1 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z / 13))))))
