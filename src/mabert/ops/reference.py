"""The specification: the operators in plain PyTorch, as a simple loop over time (or over filter taps).

Every fast backend is compared with these functions, outputs and gradients. They need no compiler, run on any device in
float32, bfloat16 or float64, and are differentiated by autograd. Arguments have the order of `mabert.ops.library`.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, silu, softplus

from mabert.ops.layout import spans, steps_before


def _working_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Returns float32, or float64 if any tensor has it: bfloat16 is only a storage format here."""
    present = [tensor.dtype for tensor in tensors if tensor is not None]
    return torch.float64 if torch.float64 in present else torch.float32


def silence(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """Sets masked steps to zero, whatever they hold (NaN too), so that no gradient flows to them."""
    return tensor if mask is None else tensor.masked_fill(~mask.unsqueeze(-1), 0.0)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    delta_softplus: bool = True,
    reverse: bool = False,
) -> Tensor:
    """Scans step by step; see `mabert.ops.selective_scan` for the contract.

    The recurrence is the zero-order hold on A and the Euler step on B of Mamba (Gu and Dao, 2023, Algorithm 2), with
    the padding rule of the MaBERT paper: a masked step neither decays nor writes the state.
    """
    dtype = _working_dtype(u, delta, A, B, C, D, z, delta_bias)
    output_dtype = u.dtype
    u, delta, B, C = (silence(tensor.to(dtype), mask) for tensor in (u, delta, B, C))
    A = A.to(dtype)
    if delta_bias is not None:
        delta = delta + delta_bias.to(dtype)
    if delta_softplus:
        delta = softplus(delta, threshold=40.0)  # torch's default of 20 drops 2e-9, which float64 resolves

    rows, time, channels = u.shape
    order = range(time - 1, -1, -1) if reverse else range(time)
    starts = {end - 1 if reverse else start for _, start, end in spans(cu_seqlens, rows, time) if end > start}
    state = u.new_zeros(rows, channels, A.shape[1])
    outputs = [u[:, t] for t in range(time)]
    for t in order:
        if t in starts:
            state = torch.zeros_like(state)
        decay = torch.exp(delta[:, t, :, None] * A)
        written = delta[:, t, :, None] * B[:, t, None, :] * u[:, t, :, None]
        new_state = decay * state + written
        state = new_state if mask is None else torch.where(mask[:, t, None, None], new_state, state)
        outputs[t] = (state * C[:, t, None, :]).sum(-1)
    y = torch.stack(outputs, dim=1) if outputs else u

    if D is not None:
        y = y + D.to(dtype) * u
    if z is not None:
        y = y * silu(silence(z.to(dtype), mask))
    return silence(y, mask).to(output_dtype)


def depthwise_conv1d(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    mode: str = "causal",
    activation: str | None = "silu",
    reverse: bool = False,
) -> Tensor:
    """Convolves tap by tap; see `mabert.ops.depthwise_conv1d` for the contract."""
    dtype = _working_dtype(u, weight, bias)
    output_dtype = u.dtype
    rows, time, _ = u.shape
    width = weight.shape[1]
    u, weight = silence(u.to(dtype), mask), weight.to(dtype)
    before = steps_before(width, mode, reverse=False)

    outputs = []
    for row, start, end in spans(cu_seqlens, rows, time):
        sequence = u[row, start:end]
        if reverse:
            sequence = sequence.flip(0)
        padded = pad(sequence, (0, 0, before, width - 1 - before))
        y = torch.zeros_like(sequence)
        for tap in range(width):
            y = y + weight[:, tap] * padded[tap : tap + end - start]
        outputs.append(y.flip(0) if reverse else y)
    y = torch.cat(outputs).view(u.shape) if outputs else torch.zeros_like(u)

    if bias is not None:
        y = y + bias.to(dtype)
    if activation == "silu":
        y = silu(y)
    return silence(y, mask).to(output_dtype)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Attends sequence by sequence; see `mabert.ops.softmax_attention` for the contract."""
    dtype = _working_dtype(query, key, value)
    rows, time, width = query.shape
    valid = torch.ones(rows, time, dtype=torch.bool, device=query.device) if mask is None else mask
    output_dtype = query.dtype
    query, key, value = query.to(dtype), silence(key.to(dtype), mask), silence(value.to(dtype), mask)
    outputs = []
    for row, start, end in spans(cu_seqlens, rows, time):
        split = (end - start, heads, width // heads)
        q, k, v = (tensor[row, start:end].reshape(split).transpose(0, 1) for tensor in (query, key, value))
        steps = torch.arange(end - start, device=query.device)
        near = (steps[:, None] - steps).abs() <= (end - start if window is None else window)
        seen = near & valid[row, start:end]
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
        weights = scores.softmax(dim=-1).masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)
        outputs.append((weights @ v).transpose(0, 1).reshape(end - start, width))
    attended = torch.cat(outputs).view(rows, time, width) if outputs else torch.zeros_like(query)
    return attended.to(output_dtype)
