"""The two recurrent operators of the Mamba block, and attention for inference, on any device that torch supports.

One layout at every boundary: ``(batch, time, channel)``. `mabert.ops.reference` specifies the arithmetic; `explain`
tells which backend serves a call, and `use_backend` sets it.
"""

from typing import Any

import torch
from torch import Tensor

from mabert.ops import derivatives
from mabert.ops.backends import (
    PORTABLE,
    Choice,
    SlowBackendWarning,
    attention_pays,
    explain,
    refuse_unless_portable,
    requested_backend,
    use_backend,
)
from mabert.ops.layout import check_float, check_input, check_matrix, check_steps, widen

__all__ = [
    "HEAD_SIZE_STEP",
    "Choice",
    "SlowBackendWarning",
    "attention_pays",
    "depthwise_conv1d",
    "explain",
    "selective_scan",
    "softmax_attention",
    "use_backend",
]

HEAD_SIZE_STEP = 32
"""The size of an attention head is a multiple of this."""


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """Runs the selective state-space recurrence along time.

    With Δ = softplus(delta + delta_bias), for each channel and sequence::

        h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t
        y_t = C_t · h_t + D u_t              (times SiLU(z_t) where z is given)

    This is the selective scan of Mamba (Gu and Dao, 2023), step (ii) of the MaBERT paper's Mamba core, with the paper's
    padding rule built in. The state starts at zero and is kept in float32 (float64 if an input is float64). For the
    backward, only the states at the ends of chunks are saved (`mabert.ops.layout`: 64 steps, 16 on a GPU); the others
    are recomputed.

    Args:
        u: ``(batch, time, channel)`` input in float32, bfloat16, float16 (widened to float32 in a copy) or float64; its
            dtype is the output's. Any strides; a last dimension of stride 1 is read without a copy.
        delta: ``(batch, time, channel)`` step size, before bias and softplus.
        A: ``(channel, state)`` real, negative decay rates.
        B: ``(batch, time, state)`` input matrix of each step.
        C: ``(batch, time, state)`` output matrix of each step.
        D: ``(channel,)`` skip connection; None for none.
        z: ``(batch, time, channel)`` gate; None for none.
        delta_bias: ``(channel,)`` added to ``delta`` before the softplus; None for none.
        delta_softplus: Whether to pass ``delta + delta_bias`` through softplus; otherwise it is used unchanged.
        mask: ``(batch, time)`` bool, True at valid steps. A False step neither decays nor writes the state and outputs
            0; its inputs (even NaN) have no effect and get gradient 0. None if all are valid.
        cu_seqlens: ``(sequences + 1,)`` int32, rising from 0 to ``time``, if the batch is one packed row: the state
            restarts at zero at every offset. Sequences of length zero are legal. None if each row is a sequence.
        reverse: Scan from the end of each sequence to its start: flip, scan, flip back.

    Returns:
        ``(batch, time, channel)``, contiguous, in the dtype of ``u``.

    Raises:
        ValueError: A shape, dtype, device or offset is wrong, or the requested backend cannot serve the call.
    """
    check_input("u", u)
    check_matrix("A", A, "state")
    check_steps(u, mask, cu_seqlens)
    batch, time, channel = u.shape
    state = A.shape[1]
    check_float("A", A, (channel, state), "(channel, state)", u.device)
    check_float("delta", delta, (batch, time, channel), "(batch, time, channel)", u.device)
    check_float("B", B, (batch, time, state), "(batch, time, state)", u.device)
    check_float("C", C, (batch, time, state), "(batch, time, state)", u.device)
    check_float("z", z, (batch, time, channel), "(batch, time, channel)", u.device)
    check_float("D", D, (channel,), "(channel,)", u.device)
    check_float("delta_bias", delta_bias, (channel,), "(channel,)", u.device)
    floats: tuple[Any, ...] = tuple(widen(t) for t in (u, delta, A, B, C, D, z, delta_bias))
    if requested_backend() == PORTABLE:
        refuse_unless_portable(cu_seqlens)
        from mabert.ops import portable

        return portable.selective_scan(*floats, mask=mask, delta_softplus=delta_softplus, reverse=reverse).to(u.dtype)
    # jit.trace runs a second time without gradients and expects the same graph.
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in floats)
    keep_states = wanted or torch.jit.is_tracing()
    y = derivatives.scan(*floats, mask, cu_seqlens, delta_softplus, reverse, keep_states, requested_backend())
    return y.to(u.dtype)


def depthwise_conv1d(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    mode: str = "causal",
    activation: str | None = "silu",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """Convolves each channel with its own short filter along time, then applies the activation.

    The depth-wise convolution of the Mamba block, step (i) of the MaBERT paper's Mamba core. As in
    `torch.nn.functional.conv1d` this is a cross-correlation: in causal mode the last tap meets the current step.

    Args:
        u: ``(batch, time, channel)`` input in float32, bfloat16, float16 (widened to float32 in a copy) or float64; its
            dtype is the output's. Any strides; a last dimension of stride 1 is read without a copy.
        weight: ``(channel, width)``, any width of at least 1.
        bias: ``(channel,)``; None for none.
        mode: ``causal`` (a step sees itself and the ``width - 1`` before) or ``centered`` (padding as torch's
            ``same``: ``(width - 1) // 2`` steps before, the rest after).
        activation: ``silu``, or None.
        mask: ``(batch, time)`` bool, True at valid steps. Masked steps are read as zero, whatever they hold, and output
            zero. None if all are valid.
        cu_seqlens: ``(sequences + 1,)`` int32, rising from 0 to ``time``, for one packed row: windows never cross an
            offset. None if each row is a sequence.
        reverse: Flip each sequence, convolve, flip back: the causal window then looks ahead.

    Returns:
        ``(batch, time, channel)``, contiguous, in the dtype of ``u``.

    Raises:
        ValueError: A shape, dtype, device, offset or option is wrong, or the requested backend cannot serve the call.
    """
    check_input("u", u)
    check_matrix("weight", weight, "width")
    check_steps(u, mask, cu_seqlens)
    channel = u.shape[2]
    check_float("weight", weight, (channel, weight.shape[1]), "(channel, width)", u.device)
    check_float("bias", bias, (channel,), "(channel,)", u.device)
    if mode not in ("causal", "centered"):
        raise ValueError(f"mode must be 'causal' or 'centered', got {mode!r}")
    if activation not in ("silu", None):
        raise ValueError(f"activation must be 'silu' or None, got {activation!r}")
    wide, silu = (widen(u), widen(weight), widen(bias)), activation == "silu"
    if requested_backend() == PORTABLE:
        refuse_unless_portable(cu_seqlens)
        from mabert.ops import portable

        return portable.depthwise_conv1d(*wide, mask, mode, activation, reverse).to(u.dtype)
    return derivatives.conv(*wide, mask, cu_seqlens, mode, silu, reverse, requested_backend()).to(u.dtype)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Attends from every step to every valid step of its sequence, without a full matrix of scores. For inference.

    Each head h is softmax(scale · Q_h K_hᵀ) V_h, MHSA of the MaBERT paper's Eq. 1 before its output projection. Scores,
    sums and the output are computed in float32 (float64 if an input is float64). A step's output depends only on the
    valid steps of its sequence, to the last bit: neither on the amount of padding nor on the rest of the batch.

    Args:
        query: ``(batch, time, width)``, heads side by side, in float32, bfloat16, float16 (widened in a copy) or
            float64; its dtype is the output's. Any strides; a last dimension of stride 1 is read without a copy.
        key: As ``query``, of the same dtype.
        value: As ``query``, of the same dtype.
        heads: Number of heads in ``width``; each has a multiple of 32 channels.
        scale: Positive factor on the scores; None for the head's size to the power of -½.
        mask: ``(batch, time)`` bool, True at steps that may be looked at. The values at other steps have no effect. A
            sequence without valid steps outputs 0. None if all are valid.
        cu_seqlens: ``(sequences + 1,)`` int32, rising from 0 to ``time``, for one packed row: no step looks across an
            offset. None if each row is a sequence.
        window: Number of steps that a step looks at on each side, besides itself, as in Longformer (Beltagy et al.,
            2020) and ModernBERT; masked steps count. A step without a valid one in its window outputs 0. NaN and
            infinity may spread from any valid step of a sequence to any other, as through a full matrix of weights.
            None for no window.

    Returns:
        ``(batch, time, width)``, contiguous, in the dtype of ``query``.

    Raises:
        ValueError: A shape, dtype, device, offset or option is wrong, a gradient is required, or the requested backend
            cannot serve the call.
    """
    check_input("query", query)
    check_steps(query, mask, cu_seqlens)
    width = query.shape[2]
    if heads < 1 or width % (heads * HEAD_SIZE_STEP):
        raise ValueError(f"heads must divide width={width} into multiples of {HEAD_SIZE_STEP} channels, got {heads}")
    for name, tensor in (("key", key), ("value", value)):
        check_float(name, tensor, tuple(query.shape), "(batch, time, width)", query.device)
        if tensor.dtype != query.dtype:
            raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {tensor.dtype}")
    scale = (width // heads) ** -0.5 if scale is None else scale
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}")
    if window is not None and window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        raise ValueError(
            "softmax_attention has no gradient: call it under torch.no_grad(), or use "
            "torch.nn.functional.scaled_dot_product_attention"
        )
    wide = (widen(query), widen(key), widen(value))
    return derivatives.attention(*wide, heads, scale, mask, cu_seqlens, window, requested_backend()).to(query.dtype)
