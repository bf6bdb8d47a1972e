"""Moves a run of channels between a tensor's memory, float32 or bfloat16, and a float32 buffer in cache.

All addresses and strides are in bytes. A tensor is described by one row of an int64 array: `ADDRESS` (0 if the tensor
is absent), `BF16` (0 or 1), `ROW` and `STEP` (strides of batch rows and of time steps).

Functions that run for every step are inlined, here and in `blocks`: an array is seven arguments of a call, and calls
would make a convolution of 4,096 steps take 5.2 instead of 3.9 ms.
"""

from typing import Any

import numpy as np
import torch
from numba import njit

from mabert.ops.cpu.simd import (
    LANES,
    load,
    load_bf16,
    load_byte,
    load_one,
    load_one_bf16,
    prefetch,
    prefetch_to_write,
    store,
    store_bf16,
    store_one,
    store_one_bf16,
)

ADDRESS, BF16, ROW, STEP = range(4)
ABSENT = (0, 0, 0, 0)
LINE = 64


def describe(*tensors: torch.Tensor | None) -> np.ndarray:
    """Describes tensors (or None) to a kernel; the caller keeps them alive.

    ``(batch, time, channel)`` tensors and ``(batch, time)`` masks have both strides; matrices ``(channel, column)``
    have that of channels as `ROW`; vectors have neither.
    """
    return np.array([ABSENT if tensor is None else _row_of(tensor) for tensor in tensors], dtype=np.int64)


def _row_of(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    size, strides = tensor.itemsize, tensor.stride()
    row, step = strides[:2] if len(strides) > 1 else (0, 0)
    return tensor.data_ptr(), int(tensor.dtype == torch.bfloat16), row * size, step * size


@njit(forceinline=True)
def is_valid(mask: Any, row: int, step: int) -> bool:
    """Tells whether a step is valid; all are if there is no mask."""
    return mask[ADDRESS] == 0 or load_byte(mask[ADDRESS] + row * mask[ROW] + step * mask[STEP]) != 0


@njit(forceinline=True)
def find_valid(mask: Any, row: int, start: int, end: int, found: Any) -> int:
    """Lists the valid steps; returns their number."""
    count = 0
    for t in range(start, end):
        if is_valid(mask, row, t):
            found[count] = t
            count += 1
    return count


@njit(forceinline=True)
def fetch(tensor: Any, row: int, step: int, first: int, count: int, target: int) -> None:
    """Reads ``count`` channels from ``first`` on at one step into float32 at ``target``."""
    source = tensor[ADDRESS] + row * tensor[ROW] + step * tensor[STEP]
    whole = count - count % LANES
    if tensor[BF16]:
        source += 2 * first
        for c in range(0, whole, LANES):
            store(target + 4 * c, load_bf16(source + 2 * c))
        for c in range(whole, count):
            store_one(target + 4 * c, load_one_bf16(source + 2 * c))
    else:
        source += 4 * first
        for c in range(0, whole, LANES):
            store(target + 4 * c, load(source + 4 * c))
        for c in range(whole, count):
            store_one(target + 4 * c, load_one(source + 4 * c))


@njit(forceinline=True)
def emit(source: int, count: int, tensor: Any, row: int, step: int, first: int) -> None:
    """Writes ``count`` float32 numbers at ``source`` to the channels from ``first`` on at one step."""
    target = tensor[ADDRESS] + row * tensor[ROW] + step * tensor[STEP]
    whole = count - count % LANES
    if tensor[BF16]:
        target += 2 * first
        for c in range(0, whole, LANES):
            store_bf16(target + 2 * c, load(source + 4 * c))
        for c in range(whole, count):
            store_one_bf16(target + 2 * c, load_one(source + 4 * c))
    else:
        target += 4 * first
        for c in range(0, whole, LANES):
            store(target + 4 * c, load(source + 4 * c))
        for c in range(whole, count):
            store_one(target + 4 * c, load_one(source + 4 * c))


@njit(forceinline=True)
def prefetch_read(tensor: Any, row: int, step: int, first: int, count: int) -> None:
    """Prefetches channels that a later `fetch` will read into the second-level cache."""
    size = 4 - 2 * tensor[BF16]
    source = tensor[ADDRESS] + row * tensor[ROW] + step * tensor[STEP] + size * first
    for i in range(0, size * count, LINE):
        prefetch(source + i)


@njit(forceinline=True)
def reserve(tensor: Any, row: int, step: int, first: int, count: int) -> None:
    """Requests ownership of the cache lines that a later `emit` will write."""
    size = 4 - 2 * tensor[BF16]
    target = tensor[ADDRESS] + row * tensor[ROW] + step * tensor[STEP] + size * first
    for i in range(0, size * count, LINE):
        prefetch_to_write(target + i)
