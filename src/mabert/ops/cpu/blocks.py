"""Operations on one block of channels in a job's own buffers: ``BLOCK`` float32 numbers per step, in whole vectors.

Arrays with a state dimension (A, the state, its gradients) are laid out as vector, state, lane, so that the inner loop
over the state reads memory in order.
"""

from typing import Any

from numba import float32, njit

from mabert.ops.cpu.functions import LOG2_E
from mabert.ops.cpu.rows import ADDRESS, BF16, ROW, fetch
from mabert.ops.cpu.simd import LANES, load, load_one, load_one_bf16, splat, store, store_one
from mabert.ops.layout import BLOCK

BLOCK_BYTES = 4 * BLOCK
VECTOR_BYTES = 4 * LANES


@njit(forceinline=True)
def clear(target: int, size: int) -> None:
    """Fills ``size`` bytes, a multiple of a vector's, with zeros."""
    for i in range(0, size, VECTOR_BYTES):
        store(target + i, splat(float32(0.0)))


@njit(forceinline=True)
def copy(source: int, target: int, size: int) -> None:
    """Copies ``size`` bytes, a multiple of a vector's."""
    for i in range(0, size, VECTOR_BYTES):
        store(target + i, load(source + i))


@njit(forceinline=True)
def add(source: int, target: int, size: int) -> None:
    """Adds ``size`` bytes of numbers, a multiple of a vector's, to the numbers at ``target``."""
    for i in range(0, size, VECTOR_BYTES):
        store(target + i, load(target + i) + load(source + i))


@njit(forceinline=True)
def multiply(source: int, target: int, size: int) -> None:
    """Multiplies the numbers at ``target`` by ``size`` bytes of numbers, a multiple of a vector's."""
    for i in range(0, size, VECTOR_BYTES):
        store(target + i, load(target + i) * load(source + i))


@njit(forceinline=True)
def fetch_padded(tensor: Any, row: int, step: int, first: int, count: int, width: int, target: int) -> None:
    """Reads ``count`` channels of one step, with zeros up to ``width``, so that sums over vectors add only channels."""
    if count < width:
        clear(target, 4 * width)
    fetch(tensor, row, step, first, count, target)


@njit(forceinline=True)
def step_at(i: int, start: int, end: int, reverse: bool) -> int:
    """Returns the time of the i-th step of a sequence, in the order of the scan."""
    return end - 1 - i if reverse else start + i


@njit(forceinline=True)
def within(c: int, n: int, N: int) -> int:
    """Returns the byte offset of channel c, state n inside a block laid out as vector, state, lane."""
    return 4 * (((c // LANES) * N + n) * LANES + c % LANES)


@njit(forceinline=True)
def fetch_decays(tensor: Any, first: int, count: int, N: int, target: int) -> None:
    """Reads A for one block, times log2(e), so that exp(ΔA) is a power of two."""
    for c in range(count):
        row = tensor[ADDRESS] + (first + c) * tensor[ROW]
        column = target + within(c, 0, N)
        if tensor[BF16]:
            for n in range(N):
                store_one(column + n * VECTOR_BYTES, load_one_bf16(row + 2 * n) * float32(LOG2_E))
        else:
            for n in range(N):
                store_one(column + n * VECTOR_BYTES, load_one(row + 4 * n) * float32(LOG2_E))
