"""The depth-wise convolution, forward and backward, each in one pass over memory.

A job takes a stripe of channels through a few hundred steps. Tile by tile, the steps it needs and their neighbours are
copied into a small float32 buffer, with zeros at steps that are masked or outside the sequence; every window then reads
that buffer. A reverse scan is the same convolution with the taps and the window's two sides exchanged.
"""

from typing import Any

import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu.blocks import BLOCK_BYTES, VECTOR_BYTES, clear, copy, fetch_padded, sigmoid
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.plan import (
    PIECE_END,
    PIECE_FIRST,
    PIECE_LAST,
    PIECE_ROW,
    PIECE_START,
    own,
    plan_pieces,
    stripe_width,
    sum_parts,
)
from mabert.ops.cpu.rows import ADDRESS, BF16, ROW, describe, emit, fetch, is_valid, prefetch_read, reserve
from mabert.ops.cpu.simd import load, load_one, load_one_bf16, splat, store, store_one
from mabert.ops.cpu.team import share
from mabert.ops.layout import BLOCK, padded_channels, readable, steps_before

TILE = 32
_U, _WEIGHT, _BIAS, _MASK, _Y = range(5)
_GRAD, _DU, _PARAMETERS = range(4, 7)


@njit
def _fetch_filters(tensors: Any, first: int, last: int, width: int, reverse: bool, bias: int, taps: int) -> None:
    """Reads biases, and taps as block, tap, channel, in the order in which they meet the steps; no bias stays zero."""
    weight = tensors[_WEIGHT]
    if tensors[_BIAS, ADDRESS]:
        fetch(tensors[_BIAS], 0, 0, first, last - first, bias)
    clear(taps, -(-(last - first) // BLOCK) * width * BLOCK_BYTES)
    for c in range(last - first):
        row = weight[ADDRESS] + (first + c) * weight[ROW]
        for k in range(width):
            value = load_one_bf16(row + 2 * k) if weight[BF16] else load_one(row + 4 * k)
            tap = c // BLOCK * width + (width - 1 - k if reverse else k)
            store_one(taps + tap * BLOCK_BYTES + 4 * (c % BLOCK), value)


@njit
def _fetch_steps(
    tensors: Any, which: int, piece: Any, begin: int, stop: int, first: int, count: int, target: int, ahead: Any
) -> None:
    """Reads steps ``begin`` to ``stop`` of one block; masked ones and those outside the sequence are zero.

    ``ahead`` tells what is read next, for prefetching: how many steps further, and from which channel on.
    """
    row = piece[PIECE_ROW]
    for t in range(begin, stop):
        at = target + (t - begin) * BLOCK_BYTES
        if piece[PIECE_START] <= t < piece[PIECE_END] and is_valid(tensors[_MASK], row, t):
            fetch_padded(tensors[which], row, t, first, count, BLOCK, at)
        else:
            clear(at, BLOCK_BYTES)
        if piece[PIECE_START] <= t + ahead[0] < piece[PIECE_END]:
            prefetch_read(tensors[which], row, t + ahead[0], ahead[1], BLOCK)


@njit
def _next(block: int, first_block: int, last_block: int) -> Any:
    """Tells what follows a block: the next block at the same steps, or after the last one the first, one tile later."""
    if block + 1 < last_block:
        return 0, (block + 1) * BLOCK
    return TILE, first_block * BLOCK


@njit
def _window(rows: int, taps: int, width: int, bias: Any) -> Any:
    """Convolves one vector of channels at one step; ``rows`` is the first step of the window."""
    y = bias
    for k in range(width):
        y = y + load(taps + k * BLOCK_BYTES) * load(rows + k * BLOCK_BYTES)
    return y


@njit
def _convolve(steps: int, rows: int, taps: int, width: int, bias: Any, silu: bool, y: int) -> None:
    """Convolves one vector of channels at neighbouring steps. Mamba's four taps stay in registers."""
    first, second = load(taps), load(taps + (width > 1) * BLOCK_BYTES)
    third, fourth = load(taps + (width > 2) * 2 * BLOCK_BYTES), load(taps + (width > 3) * 3 * BLOCK_BYTES)
    for k in range(0, steps * BLOCK_BYTES, BLOCK_BYTES):
        if width == 4:
            y_k = bias + first * load(rows + k) + second * load(rows + k + BLOCK_BYTES)
            y_k = y_k + third * load(rows + k + 2 * BLOCK_BYTES) + fourth * load(rows + k + 3 * BLOCK_BYTES)
        else:
            y_k = _window(rows + k, taps, width, bias)
        if silu:
            y_k = y_k * sigmoid(y_k)
        store(y + k, y_k)


@njit
def _conv_forward_job(
    job: int,
    scratch: int,
    tensors: Any,
    pieces: Any,
    groups: Any,
    channels: int,
    stripe: int,
    width: int,
    before: int,
    silu: bool,
    reverse: bool,
) -> None:
    blocks = -(-channels // BLOCK)
    stripes = -(-blocks // stripe)
    group, first_block = job // stripes, job % stripes * stripe
    last_block = min(first_block + stripe, blocks)
    rows = scratch
    y = rows + (TILE + width - 1) * BLOCK_BYTES
    zeros = y + TILE * BLOCK_BYTES
    bias = zeros + BLOCK_BYTES
    taps = bias + stripe * BLOCK_BYTES
    clear(zeros, (1 + stripe) * BLOCK_BYTES)
    _fetch_filters(tensors, first_block * BLOCK, min(last_block * BLOCK, channels), width, reverse, bias, taps)

    for p in range(groups[group], groups[group + 1]):
        piece = pieces[p]
        row = piece[PIECE_ROW]
        for begin in range(piece[PIECE_FIRST], piece[PIECE_LAST], TILE):
            stop = min(begin + TILE, piece[PIECE_LAST])
            for block in range(first_block, last_block):
                i, first = block - first_block, block * BLOCK
                count = min(BLOCK, channels - first)
                ahead = _next(block, first_block, last_block)
                _fetch_steps(tensors, _U, piece, begin - before, stop - before + width - 1, first, count, rows, ahead)
                for t in range(begin, stop):
                    reserve(tensors[_Y], row, t, first, count)
                for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
                    bias_v = load(bias + i * BLOCK_BYTES + v)
                    _convolve(stop - begin, rows + v, taps + i * width * BLOCK_BYTES + v, width, bias_v, silu, y + v)
                for t in range(begin, stop):
                    valid = is_valid(tensors[_MASK], row, t)
                    emit(y + (t - begin) * BLOCK_BYTES if valid else zeros, count, tensors[_Y], row, t, first)


@njit
def _through_silu(grad: int, rows: int, taps: int, width: int, bias: int) -> None:
    """Multiplies the gradient of one step by SiLU's slope, for which the convolution is recomputed."""
    one = splat(float32(1.0))
    for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
        x = _window(rows + v, taps + v, width, load(bias + v))
        s = sigmoid(x)
        store(grad + v, load(grad + v) * s * (one + x * (one - s)))


@njit
def _conv_backward_job(
    job: int,
    scratch: int,
    tensors: Any,
    pieces: Any,
    groups: Any,
    channels: int,
    stripe: int,
    width: int,
    before: int,
    silu: bool,
    reverse: bool,
) -> None:
    blocks = -(-channels // BLOCK)
    stripes = -(-blocks // stripe)
    group, first_block = job // stripes, job % stripes * stripe
    last_block = min(first_block + stripe, blocks)
    after = width - 1 - before
    sum_bytes = (width + 1) * BLOCK_BYTES
    rows = scratch
    grads = rows + (TILE + 2 * (width - 1)) * BLOCK_BYTES
    du = grads + (TILE + width - 1) * BLOCK_BYTES
    sums = du + BLOCK_BYTES
    bias = sums + stripe * sum_bytes
    taps = bias + stripe * BLOCK_BYTES
    clear(sums, stripe * (sum_bytes + BLOCK_BYTES))
    _fetch_filters(tensors, first_block * BLOCK, min(last_block * BLOCK, channels), width, reverse, bias, taps)

    for p in range(groups[group], groups[group + 1]):
        piece = pieces[p]
        row = piece[PIECE_ROW]
        for begin in range(piece[PIECE_FIRST], piece[PIECE_LAST], TILE):
            stop = min(begin + TILE, piece[PIECE_LAST])
            for block in range(first_block, last_block):
                i, first = block - first_block, block * BLOCK
                count = min(BLOCK, channels - first)
                taps_i, sums_i = taps + i * width * BLOCK_BYTES, sums + i * sum_bytes
                # The gradient at step t affects u from t - before to t + after, and needs the same window.
                ahead = _next(block, first_block, last_block)
                _fetch_steps(tensors, _U, piece, begin - width + 1, stop + width - 1, first, count, rows, ahead)
                _fetch_steps(tensors, _GRAD, piece, begin - after, stop + before, first, count, grads, ahead)
                for t in range(begin, stop):
                    reserve(tensors[_DU], row, t, first, count)
                if silu:
                    for k in range(stop - begin + width - 1):
                        at = k * BLOCK_BYTES
                        _through_silu(grads + at, rows + at, taps_i, width, bias + i * BLOCK_BYTES)
                for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
                    _sum_parameters(
                        stop - begin, width, grads + after * BLOCK_BYTES + v, rows + after * BLOCK_BYTES + v, sums_i + v
                    )
                for t in range(begin, stop):
                    valid = is_valid(tensors[_MASK], row, t)
                    for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
                        total = splat(float32(0.0))
                        if valid:
                            for k in range(width):
                                at = (t - begin + width - 1 - k) * BLOCK_BYTES
                                total = total + load(taps_i + k * BLOCK_BYTES + v) * load(grads + at + v)
                        store(du + v, total)
                    emit(du, count, tensors[_DU], row, t, first)
    for block in range(first_block, last_block):
        part = (group * blocks + block) * sum_bytes
        copy(sums + (block - first_block) * sum_bytes, tensors[_PARAMETERS, ADDRESS] + part, sum_bytes)


@njit
def _sum_parameters(steps: int, width: int, grads: int, rows: int, sums: int) -> None:
    """Adds one tile's gradients of the taps and then of the bias."""
    for k in range(width + 1):
        tile = splat(float32(0.0))
        for step in range(steps):
            grad = load(grads + step * BLOCK_BYTES)
            if k < width:
                grad = grad * load(rows + (step + k) * BLOCK_BYTES)
            tile = tile + grad
        store(sums + k * BLOCK_BYTES, load(sums + k * BLOCK_BYTES) + tile)


@Kernel
def _conv_forward(call: int, *args: Any) -> None:
    share(_conv_forward_job, call, args)


@Kernel
def _conv_backward(call: int, *args: Any) -> None:
    share(_conv_backward_job, call, args)


def conv_forward(*inputs: Any) -> Tensor:
    """Returns the convolution of ``u``; takes the arguments of `mabert.ops.library.CONV`."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse = inputs
    rows, time, channels = u.shape
    width = weight.shape[1]
    y = u.new_empty(u.shape)
    pieces, groups = plan_pieces(cu_seqlens, rows, time)
    blocks = padded_channels(channels) // BLOCK
    stripe = stripe_width(len(groups) - 1, blocks)
    alive = [readable(tensor) for tensor in (u, weight, bias, mask)]
    jobs, before = (len(groups) - 1) * -(-blocks // stripe), steps_before(width, mode, reverse)
    scratch, tensors = (2 * TILE + width + stripe * (width + 1)) * BLOCK_BYTES, describe(*alive, y)
    _conv_forward.run(jobs, scratch, tensors, pieces, groups, channels, stripe, width, before, silu, reverse)
    return y


def conv_backward(grad: Tensor, *inputs: Any) -> list[Tensor | None]:
    """Returns the gradients of ``u``, ``weight`` and ``bias``; None of an absent bias."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse = inputs
    rows, time, channels = u.shape
    width = weight.shape[1]
    du = u.new_empty(u.shape)
    pieces, groups = plan_pieces(cu_seqlens, rows, time)
    blocks = padded_channels(channels) // BLOCK
    stripe = stripe_width(len(groups) - 1, blocks)
    parameters = u.new_empty((max(len(groups) - 1, 1), blocks, width + 1, BLOCK), dtype=torch.float32)
    if len(pieces) == 0:
        parameters.zero_()
    alive = [readable(tensor) for tensor in (u, weight, bias, mask, grad)]
    jobs, before = (len(groups) - 1) * -(-blocks // stripe), steps_before(width, mode, reverse)
    scratch = (2 * TILE + 3 * width - 2 + stripe * (2 * width + 2)) * BLOCK_BYTES
    tensors = describe(*alive, du, parameters)
    _conv_backward.run(jobs, scratch, tensors, pieces, groups, channels, stripe, width, before, silu, reverse)
    sums = sum_parts(parameters).transpose(1, 2).reshape(blocks * BLOCK, width + 1)[:channels]
    dweight = sums[:, :width].flip(1) if reverse else sums[:, :width]
    return [du, own(dweight, weight.dtype), None if bias is None else own(sums[:, width], bias.dtype)]
