"""Divides a call into jobs, and adds up what they leave, in a fixed order.

The number of threads may affect the number of jobs, never the results.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.simd import LANES, load, load_one, splat, store, store_one
from mabert.ops.cpu.team import share
from mabert.ops.layout import CHUNK, spans

Offsets = tuple[int, ...]

SPAN_ROW, SPAN_START, SPAN_END, SPAN_SLOT = range(4)
PIECE_ROW, PIECE_START, PIECE_END, PIECE_FIRST, PIECE_LAST = range(5)

_GROUP_STEPS = 256  # a job takes several short sequences, so that it lasts longer than handing it out
_STRIPE_BLOCKS = 8
_JOBS_PER_THREAD = 4


class Plan(NamedTuple):
    """The sequences of a call, or pieces of them, grouped into jobs."""

    parts: np.ndarray  # int64, one row per sequence or piece
    groups: np.ndarray  # int64 ``(groups + 1,)``: offsets into ``parts``


def plan_sequences(cu_seqlens: torch.Tensor | None, rows: int, time: int) -> Plan:
    """Plans jobs that each process whole sequences in order; takes and raises what `spans` does.

    The plan's parts are row, start, end, and slot of the first saved state. Empty sequences are left out, since nothing
    is computed or saved for them.
    """
    return _sequences(_offsets(cu_seqlens), rows, time)


# All layers of a forward ask for the same plans.
@functools.lru_cache(maxsize=64)
def _sequences(offsets: Offsets | None, rows: int, time: int) -> Plan:
    parts, lengths, slot = [], [], 0
    for row, start, end in spans(offsets, rows, time):
        if end > start:
            parts.append((row, start, end, slot))
            lengths.append(end - start)
            slot += (end - start - 1) // CHUNK
    return Plan(np.array(parts, dtype=np.int64).reshape(-1, 4), _group(lengths))


def plan_pieces(cu_seqlens: torch.Tensor | None, rows: int, time: int, steps: int = _GROUP_STEPS) -> Plan:
    """Plans jobs whose steps are independent: long sequences are cut too, into pieces of at most ``steps``, which also
    bounds a job that takes several short ones. Takes and raises what `spans` does.

    The plan's parts are row, start and end of the sequence, first and last (exclusive) step of the piece.
    """
    return _pieces(_offsets(cu_seqlens), rows, time, steps)


@functools.lru_cache(maxsize=64)
def _pieces(offsets: Offsets | None, rows: int, time: int, steps: int) -> Plan:
    parts, lengths = [], []
    for row, start, end in spans(offsets, rows, time):
        for first in range(start, end, steps):
            last = min(first + steps, end)
            parts.append((row, start, end, first, last))
            lengths.append(last - first)
    return Plan(np.array(parts, dtype=np.int64).reshape(-1, 5), _group(lengths, steps))


def _offsets(cu_seqlens: torch.Tensor | None) -> Offsets | None:
    return None if cu_seqlens is None else tuple(cu_seqlens.tolist())


def _group(lengths: list[int], most: int = _GROUP_STEPS) -> np.ndarray:
    """Groups sequences, closing a group before it would exceed the size of a job."""
    groups, steps = [0], 0
    for index, length in enumerate(lengths):
        if steps and steps + length > most:
            groups.append(index)
            steps = 0
        steps += length
    if lengths:
        groups.append(len(lengths))
    return np.array(groups, dtype=np.int64)


def stripe_width(groups: int, blocks: int) -> int:
    """Chooses how many neighbouring blocks of channels one job takes, for kernels whose results do not depend on it.

    Wide stripes read longer runs of each row; a few jobs per thread keep the threads evenly busy.
    """
    wanted = groups * blocks // (_JOBS_PER_THREAD * torch.get_num_threads())
    return max(1, min(_STRIPE_BLOCKS, blocks, wanted))


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
