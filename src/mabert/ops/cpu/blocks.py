"""Elementary functions of vectors; and operations on one block of channels in a job's own buffers, ``BLOCK`` float32
numbers per step, in whole vectors.

Arrays with a state dimension (A, the state, its gradients) are laid out as vector, state, lane, so that the inner loop
over the state reads memory in order.
"""

from typing import Any

from numba import float32, njit

from mabert.ops.cpu.rows import ADDRESS, BF16, ROW, fetch
from mabert.ops.cpu.simd import (
    LANES,
    at_least,
    at_most,
    load,
    load_one,
    load_one_bf16,
    magnitude,
    power_of_two,
    splat,
    store,
    store_one,
)
from mabert.ops.layout import BLOCK

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453

# 1.5 * 2**23 + 127: adding it rounds to an integer, which ends up in the lowest bits, biased like an exponent.
_ROUND = 12582912.0 + 127.0


@njit
def exp2(x: Any) -> Any:
    """Computes 2**x to 1.7e-7; below 2**-126 it is 0, from 2**127.5 it is infinity, and 2**0 is exactly 1."""
    x = at_most(at_least(x, splat(float32(-127.0))), splat(float32(128.0)))
    shifted = x + splat(float32(_ROUND))
    r = x - (shifted - splat(float32(_ROUND)))
    p = splat(float32(0.0013264727197433296)) * r + splat(float32(0.009671512639666487))
    p = p * r + splat(float32(0.05550733743251511))
    p = p * r + splat(float32(0.2402224208537476))
    p = p * r + splat(float32(0.6931469775991653))
    p = p * r + splat(float32(1.0))
    return p * power_of_two(shifted)


@njit
def exp2_short(x: Any) -> Any:
    """Computes 2**x for x <= 0 (larger x count as 0) to 1.02e-4, a twentieth of bfloat16's rounding; else as `exp2`."""
    x = at_most(at_least(x, splat(float32(-127.0))), splat(float32(0.0)))
    shifted = x + splat(float32(_ROUND))
    r = x - (shifted - splat(float32(_ROUND)))
    p = splat(float32(0.05500893)) * r + splat(float32(0.24221096))
    p = p * r + splat(float32(0.69328293))
    p = p * r + splat(float32(1.0))
    return p * power_of_two(shifted)


@njit
def sigmoid(x: Any) -> Any:
    """Computes 1 / (1 + exp(-x))."""
    return splat(float32(1.0)) / (splat(float32(1.0)) + exp2(x * splat(float32(-LOG2_E))))


@njit
def softplus(x: Any) -> Any:
    """Computes log(1 + exp(x)), by log1p(e) = 2 atanh(e / (2 + e)) with e = exp(-|x|), to 3e-7 even if it is tiny."""
    e = exp2(magnitude(x) * splat(float32(-LOG2_E)))
    s = e / (e + splat(float32(2.0)))
    q = s * s
    p = splat(float32(0.14005993406698658)) * q + splat(float32(0.14000902638766713))
    p = p * q + splat(float32(0.20010763619270924))
    p = p * q + splat(float32(0.33333208142840715))
    p = p * q + splat(float32(1.0))
    return at_least(x, splat(float32(0.0))) + (s + s) * p


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
