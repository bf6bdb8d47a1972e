"""Memory for large results: in huge pages where the system offers them, and used again once a result is gone.

The C library gives large blocks back to the system when they are freed and gets them anew at the next call. Touching
new memory for the first time can cost more than computing what is written there (measured:
`benchmarks/performance-2026-11.md`). So blocks without a tensor wait here for the next result of their size, `KEPT`
bytes of them at most.
"""

import contextlib
import math
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

KEPT = 256 << 20
"""Bytes that wait at most."""

_PAGE = 2 << 20  # a huge page
_LARGE = 1 << 20  # below this the C library hands out memory it already has


class _Blocks:
    """Blocks without a tensor, by their size.

    A tensor may die on any thread and at any moment, also while this one is in here: a lock could then be held. Each
    step on a dict or a deque is whole in itself instead.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[np.ndarray]] = {}

    def take(self, size: int) -> np.ndarray:
        """Return at least ``size`` bytes, uninitialised and nobody else's."""
        length = -(-size // _PAGE) * _PAGE
        try:
            return self._waiting[length].pop()
        except (KeyError, IndexError):
            return _map(length)

    def give_back(self, block: np.ndarray) -> None:
        """Keep a block for later; where that would be too much, let those go that wait already."""
        if block.nbytes > KEPT:
            return
        if self.waiting + block.nbytes > KEPT:
            self._waiting.clear()
        self._waiting.setdefault(block.nbytes, deque()).append(block)

    @property
    def waiting(self) -> int:
        """Bytes that wait now."""
        return sum(block.nbytes for blocks in list(self._waiting.values()) for block in list(blocks))


def _map(length: int) -> np.ndarray:
    """Get whole huge pages from the system, for this process alone."""
    memory = mmap.mmap(-1, length + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without huge pages: the memory is as good, and slower to touch
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    start = -whole.ctypes.data % _PAGE
    return whole[start : start + length]


_blocks = _Blocks()
_counted = False
_scratch: torch.Tensor | None = None


@contextlib.contextmanager
def counted_by_torch() -> Iterator[None]:
    """Gets all memory from torch's own allocator, in every thread, so that its profiler sees each byte; for the working
    memory that threads keep, as much again stands in."""
    global _counted, _scratch
    before, _counted = _counted, True
    try:
        yield
    finally:
        _counted, _scratch = before, None


def count_scratch(size: int) -> None:
    """Tells of the bytes of working memory that all threads together keep from a call on."""
    global _scratch
    if _counted and (_scratch is None or _scratch.nbytes < size):
        _scratch = None
        _scratch = torch.empty(size, dtype=torch.uint8, device="cpu")


def fresh(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised contiguous CPU tensor."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or _counted or sys.platform != "linux":
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = _blocks.take(size)
    owned = block[:size]  # a new object, alive as long as torch's storage
    weakref.finalize(owned, _blocks.give_back, block).atexit = False
    return torch.from_numpy(owned).view(dtype).view(shape)


def own(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous copy in memory of its own, as a custom op's results must be."""
    return tensor.to(dtype).clone(memory_format=torch.contiguous_format)
