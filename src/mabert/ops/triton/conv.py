"""The convolution on a GPU."""

from typing import Any

import torch
import triton
from torch import Tensor

from mabert.ops.layout import readable, steps_before
from mabert.ops.triton import conv_kernels as kernels
from mabert.ops.triton.launch import as_bytes, launch, numbered, strides

STEPS, BLOCK = 32, 64
WARPS = 4

WALKED, GROUP = 64, 4
"""Steps that a warp of the backward walks, and how many it reads at a time."""


def conv_forward(*inputs: Any) -> Tensor:
    """Returns the convolution of ``u``; takes the arguments of `mabert.ops.library.CONV`."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse = inputs
    rows, time, channels = u.shape
    width = weight.shape[1]
    sequence = None if cu_seqlens is None else numbered(cu_seqlens, time).numbers
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    if y.numel() == 0:
        return y
    u, mask = readable(u), as_bytes(mask)
    tensors, sizes = (u, weight.contiguous(), readable(bias), mask, sequence, y), (*strides(u, mask), time, channels)
    form = {"WIDTH": width, "BEFORE": steps_before(width, mode, reverse), "SILU": silu, "REVERSE": reverse}
    programs = rows * -(-time // STEPS) * triton.cdiv(channels, BLOCK)
    launch(kernels.conv_forward, programs, *tensors, *sizes, **form, STEPS=STEPS, BLOCK=BLOCK, warps=WARPS)
    return y


def conv_backward(grad: Tensor, *inputs: Any) -> list[Tensor | None]:
    """Returns the gradients of ``u``, ``weight`` and ``bias``; None of an absent bias."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse = inputs
    rows, time, channels = u.shape
    width = weight.shape[1]
    sequence = None if cu_seqlens is None else numbered(cu_seqlens, time).numbers
    du = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    tiles = -(-time // WALKED)
    dweight = torch.empty((rows * tiles, width, channels), dtype=torch.float32, device=u.device)
    dbias = torch.empty((rows * tiles, channels), dtype=torch.float32, device=u.device)
    if u.numel():
        grad, u, mask = readable(grad), readable(u), as_bytes(mask)
        tensors = grad, u, weight.contiguous(), readable(bias), mask, sequence, du, dweight, dbias
        sizes = *strides(grad, u, mask), time, channels
        form = {"WIDTH": width, "BEFORE": steps_before(width, mode, reverse), "SILU": silu, "REVERSE": reverse}
        programs = rows * tiles * triton.cdiv(channels, BLOCK)
        launch(kernels.conv_backward, programs, *tensors, *sizes, **form, STEPS=WALKED, GROUP=GROUP, BLOCK=BLOCK)
    of_bias = None if bias is None else dbias.sum(0).to(bias.dtype)
    return [du, dweight.sum(0).t().contiguous().to(weight.dtype), of_bias]
