"""Argument checks of the operators: one clear line with both values, before anything is computed.

They look only at shapes and dtypes, so that tracing never reads data; the values of ``cu_seqlens`` are checked where
they are read.
"""

from typing import overload

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_float(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str, device: torch.device) -> None:
    """Requires a floating tensor of one shape on one device, or none; ``what`` names the dimensions in messages."""
    if tensor is None:
        return
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be float32, bfloat16, float16 or float64, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {what} = {shape}, got {tuple(tensor.shape)}")
    check_device(name, tensor, device)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Requires a tensor to be on the device of the first argument."""
    if tensor.device != device:
        raise ValueError(f"{name} must lie on the device of the first argument, {device}, got {tensor.device}")


def check_input(name: str, tensor: Tensor) -> None:
    """Requires the first argument to be a floating ``(batch, time, channel)`` tensor."""
    if tensor.dim() != 3:
        raise ValueError(f"{name} must have 3 dimensions (batch, time, channel), got shape {tuple(tensor.shape)}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be float32, bfloat16, float16 or float64, got {tensor.dtype}")


def check_matrix(name: str, tensor: Tensor, columns: str) -> None:
    """Requires a two-dimensional ``(channel, columns)`` tensor with at least one column."""
    if tensor.dim() != 2 or tensor.shape[1] < 1:
        raise ValueError(f"{name} must have shape (channel, {columns}) with {columns} >= 1, got {tuple(tensor.shape)}")


def check_steps(u: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """Requires the mask to be boolean ``(batch, time)`` and ``cu_seqlens`` to be int32 offsets into a single row."""
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, got {mask.dtype}")
        if tuple(mask.shape) != tuple(u.shape[:2]):
            raise ValueError(f"mask must have shape (batch, time) = {tuple(u.shape[:2])}, got {tuple(mask.shape)}")
        check_device("mask", mask, u.device)
    if cu_seqlens is not None:
        if cu_seqlens.dtype != torch.int32:
            raise ValueError(f"cu_seqlens must be int32, got {cu_seqlens.dtype}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(f"cu_seqlens must have shape (sequences + 1,), got {tuple(cu_seqlens.shape)}")
        check_device("cu_seqlens", cu_seqlens, u.device)
        if u.shape[0] != 1:
            raise ValueError(f"cu_seqlens needs batch size 1 (one packed row), got batch size {u.shape[0]}")


@overload
def widen(tensor: Tensor) -> Tensor: ...
@overload
def widen(tensor: None) -> None: ...
def widen(tensor: Tensor | None) -> Tensor | None:
    """Returns a float16 tensor as float32, any other unchanged: kernels take float32, bfloat16 and float64."""
    return tensor.float() if tensor is not None and tensor.dtype == torch.float16 else tensor
