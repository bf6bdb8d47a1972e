"""Steps around a product of 8-bit integers: rounds rows of numbers to bytes, and scales the product's rows back.

A row, the channels of one token, has its own scale, so that a token with large numbers costs no other token precision.
Bytes are unsigned, with 128 for zero: oneDNN's signed product is not made for these processors and takes a thousand
times as long.
"""

from typing import Any

import numpy as np
import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu.blocks import exp2, sigmoid
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.rows import ADDRESS, BF16, STEP, describe
from mabert.ops.cpu.simd import (
    LANES,
    at_least,
    largest,
    load,
    load_bf16,
    load_one,
    magnitude,
    splat,
    store,
    store_bf16,
    store_bytes,
    store_one,
    total,
)
from mabert.ops.cpu.team import share
from mabert.ops.layout import readable

ZERO = 128
"""The byte that stands for zero."""

LEVELS = 127
"""Largest distance of a byte from it."""

ACTIVATIONS = {("none", ""): 0, ("relu", ""): 1, ("gelu", "none"): 2, ("gelu", "tanh"): 3, ("swish", ""): 4}
"""Activations that may be applied to a product, by oneDNN's names."""

_NUMBERS = 1 << 17  # per job, about ten microseconds: a second thread takes as long to wake up
_FROM, _BIAS, _TO = range(3)
_ROUND = 12582912.0 + ZERO  # 1.5 * 2**23: adding it rounds to an integer, which ends up in the lowest bits


@njit
def _gelu(x: Any) -> Any:
    """Computes x Φ(x), by Φ's error function to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    z = magnitude(x) * splat(float32(0.7071067811865476))
    t = splat(float32(1.0)) / (splat(float32(1.0)) + splat(float32(0.3275911)) * z)
    p = splat(float32(1.061405429)) * t + splat(float32(-1.453152027))
    p = p * t + splat(float32(1.421413741))
    p = p * t + splat(float32(-0.284496736))
    p = p * t + splat(float32(0.254829592))
    tail = p * t * exp2(z * z * splat(float32(-1.4426950408889634))) * splat(float32(0.5))
    return at_least(x, splat(float32(0.0))) - magnitude(x) * tail


@njit
def _gelu_tanh(x: Any) -> Any:
    """Computes GELU by a hyperbolic tangent, which is a sigmoid of twice its argument."""
    return x * sigmoid(x * (splat(float32(1.5957691216057308)) + splat(float32(0.07135481627159733)) * x * x))


@njit
def _activate(x: Any, activation: int) -> Any:
    if activation == 1:
        return at_least(x, splat(float32(0.0)))
    if activation == 2:
        return _gelu(x)
    if activation == 3:
        return _gelu_tanh(x)
    if activation == 4:
        return x * sigmoid(x)
    return x


@njit
def _read(tensors: Any, row: int, c: int) -> Any:
    source = tensors[_FROM, ADDRESS] + row * tensors[_FROM, STEP]
    return load_bf16(source + 2 * c) if tensors[_FROM, BF16] else load(source + 4 * c)


@njit
def _to_bytes_job(job: int, scratch: int, each: int, tensors: Any, scales: int, rows: int, channels: int) -> None:
    for row in range(job * each, min((job + 1) * each, rows)):
        found = splat(float32(0.0))
        poison = splat(float32(0.0))  # NaN if the row has a NaN or an infinity, so that its results are NaN
        for c in range(0, channels, LANES):
            x = _read(tensors, row, c)
            found = at_least(found, magnitude(x))
            poison = poison + x * splat(float32(0.0))
        scale = largest(found) / float32(LEVELS)
        store_one(scales + 4 * row, scale + total(poison))
        inverse = splat(float32(1.0) / scale if scale > float32(0.0) else float32(0.0))
        target = tensors[_TO, ADDRESS] + row * tensors[_TO, STEP]
        for c in range(0, channels, LANES):
            store_bytes(target + c, _read(tensors, row, c) * inverse + splat(float32(_ROUND)))


@njit
def _from_bytes_job(
    job: int, scratch: int, each: int, tensors: Any, scales: int, rows: int, channels: int, activation: int
) -> None:
    for row in range(job * each, min((job + 1) * each, rows)):
        scale = splat(load_one(scales + 4 * row))
        target = tensors[_TO, ADDRESS] + row * tensors[_TO, STEP]
        for c in range(0, channels, LANES):
            x = _read(tensors, row, c) * scale
            if tensors[_BIAS, ADDRESS]:
                x = x + load(tensors[_BIAS, ADDRESS] + 4 * c)
            x = _activate(x, activation)
            if tensors[_TO, BF16]:
                store_bf16(target + 2 * c, x)
            else:
                store(target + 4 * c, x)


@Kernel
def _to_bytes(call: int, *args: Any) -> None:
    share(_to_bytes_job, call, args)


@Kernel
def _from_bytes(call: int, *args: Any) -> None:
    share(_from_bytes_job, call, args)


def _run(kernel: Kernel, tensors: np.ndarray, scales: Tensor, rows: int, channels: int, *args: int) -> None:
    each = max(1, _NUMBERS // channels)
    kernel.run(-(-rows // each), 0, each, tensors, scales.data_ptr(), rows, channels, *args)


def to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds each row of x, float32 or bfloat16 (..., channels), a multiple of 16, to 8 bits.

    Returns:
        uint8 (rows, channels) and float32 (rows,): x is about (byte - 128) times its row's scale, which is NaN if the
        row has a NaN or an infinity.
    """
    x = readable(x.reshape(1, -1, x.shape[-1]))
    rows, channels = x.shape[1:]
    found, scales = x.new_empty((1, rows, channels), dtype=torch.uint8), x.new_empty(rows, dtype=torch.float32)
    tensors = describe(x, None, found)
    _run(_to_bytes, tensors, scales, rows, channels)
    return found[0], scales


def from_bytes(product: Tensor, scales: Tensor, bias: Tensor | None, activation: int) -> Tensor:
    """Applies the rows' scales to a product of bytes, in place, and returns it: f(product · scale + bias).

    The product is float32 or bfloat16 (rows, channels), a multiple of 16; scales (rows,) and bias (channels,) are
    float32; f is one of `ACTIVATIONS`.
    """
    tensors = describe(product[None], bias, product[None])
    rows, channels = product.shape
    _run(_from_bytes, tensors, scales, rows, channels, activation)
    return product
