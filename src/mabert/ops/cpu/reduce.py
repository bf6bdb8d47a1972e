"""Adds up partial results in a fixed order, so that sums over jobs do not depend on threads or chance."""

from typing import Any

import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.simd import LANES, load, load_one, splat, store, store_one
from mabert.ops.cpu.team import share

_SLICE = 1024


@njit
def _sum_parts_job(job: int, scratch: int, source: int, parts: int, size: int, target: int) -> None:
    first = job * _SLICE
    last = min(first + _SLICE, size)
    whole = first + (last - first) // LANES * LANES
    for i in range(first, whole, LANES):
        total = splat(float32(0.0))
        for part in range(parts):
            total = total + load(source + 4 * (part * size + i))
        store(target + 4 * i, total)
    for i in range(whole, last):
        one = float32(0.0)
        for part in range(parts):
            one += load_one(source + 4 * (part * size + i))
        store_one(target + 4 * i, one)


@Kernel
def _sum_parts(call: int, *args: Any) -> None:
    share(_sum_parts_job, call, args)


def sum_parts(parts: Tensor) -> Tensor:
    """Sums a contiguous float32 tensor over its first dimension, from first to last."""
    if parts.shape[0] == 1:
        return parts[0]
    result = torch.empty(parts.shape[1:], dtype=torch.float32, device="cpu")
    size = result.numel()
    _sum_parts.run(-(-size // _SLICE), 0, parts.data_ptr(), parts.shape[0], size, result.data_ptr())
    return result


def own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a contiguous copy in its own memory, as a custom op's results must be."""
    return tensor.to(dtype).clone(memory_format=torch.contiguous_format)
