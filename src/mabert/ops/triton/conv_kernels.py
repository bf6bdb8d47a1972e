"""Kernels of the convolution. The forward takes a tile of steps and channels at once; the backward walks along time."""

import triton
import triton.language as tl

from mabert.ops.triton.functions import sigmoid
from mabert.ops.triton.walk import both


@triton.jit
def _place(T, channels, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Returns row, tile number along time, the tile's steps and its channels."""
    pid = tl.program_id(0)
    blocks, tiles = tl.cdiv(channels, BLOCK), tl.cdiv(T, STEPS)
    tile = (pid // blocks) % tiles
    t = tile.to(tl.int64) * STEPS + tl.arange(0, STEPS)
    return (pid // blocks // tiles).to(tl.int64), tile, t, pid % blocks * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _counts(mask, mask_time, t, T):
    """Tells which steps lie in the row and are not masked."""
    present = (t >= 0) & (t < T)
    if mask is not None:
        present = tl.load(mask + t * mask_time, mask=present, other=0) != 0
    return present


@triton.jit
def _number(sequence, t, T):
    """Returns each step's sequence number; -1 outside the row; 0 for all steps if a row is one sequence."""
    within = (t >= 0) & (t < T)
    if sequence is None:
        number = tl.where(within, 0, -1)
    else:
        number = tl.load(sequence + t, mask=within, other=-1)
    return number


@triton.jit
def _taps(weight, c, channels, WIDTH: tl.constexpr, REVERSE: tl.constexpr):
    """Reads the filters, one vector of channels per tap, in the order in which they meet the steps."""
    taps = ()
    for k in tl.static_range(WIDTH):
        tap = WIDTH - 1 - k if REVERSE else k
        taps += (tl.load(weight + c * WIDTH + tap, mask=c < channels, other=0.0).to(tl.float32),)
    return taps


@triton.jit
def _of_channels(vector, c, channels, BLOCK: tl.constexpr):
    if vector is None:
        values = tl.zeros((BLOCK,), tl.float32)
    else:
        values = tl.load(vector + c, mask=c < channels, other=0.0).to(tl.float32)
    return values


@triton.jit(do_not_specialize=["T", "mask_row"])
def conv_forward(
    u,
    weight,
    bias,
    mask,
    sequence,
    y,
    u_row,
    u_time,
    mask_row,
    mask_time,
    T,
    channels,
    WIDTH: tl.constexpr,
    BEFORE: tl.constexpr,
    SILU: tl.constexpr,
    REVERSE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolves one tile."""
    row, _, t, c = _place(T, channels, STEPS, BLOCK)
    u += row * u_row
    if mask is not None:
        mask += row * mask_row
    taps = _taps(weight, c, channels, WIDTH, REVERSE)
    number = _number(sequence, t, T)
    total = tl.zeros((STEPS, BLOCK), tl.float32) + _of_channels(bias, c, channels, BLOCK)[None, :]
    for k in tl.static_range(WIDTH):
        s = t + (k - BEFORE)
        seen = _counts(mask, mask_time, s, T) & (_number(sequence, s, T) == number)
        at = u + (s * u_time)[:, None] + c[None, :]
        total += taps[k][None, :] * tl.load(at, mask=seen[:, None] & (c < channels)[None, :], other=0.0).to(tl.float32)
    if SILU:
        total *= sigmoid(total)
    total = tl.where(_counts(mask, mask_time, t, T)[:, None], total, 0.0)
    target = y + (row * T + t)[:, None] * channels + c[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=(t < T)[:, None] & (c < channels)[None, :])


@triton.jit
def _step(at, time, counts, t, c, inside):
    """Reads a block of channels at time ``t``, float32; zeros if the step does not count."""
    return tl.load(at + t * time + c, mask=both(inside, counts), other=0.0).to(tl.float32)


@triton.jit
def _of_sequence(values, number, other, sequence):
    """Returns the values if two steps are of one sequence, otherwise zeros."""
    if sequence is not None:
        values = tl.where(number == other, values, 0.0)
    return values


@triton.jit(do_not_specialize=["T", "mask_row"])
def conv_backward(
    grad,
    u,
    weight,
    bias,
    mask,
    sequence,
    du,
    dweight,
    dbias,
    grad_row,
    grad_time,
    u_row,
    u_time,
    mask_row,
    mask_time,
    T,
    channels,
    WIDTH: tl.constexpr,
    BEFORE: tl.constexpr,
    SILU: tl.constexpr,
    REVERSE: tl.constexpr,
    STEPS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes the gradient of ``STEPS`` steps of u, and their share of the gradients of taps and bias.

    One warp walks along time, ``GROUP`` steps at a time. Registers hold the inputs of one window and the gradients of
    the last windows at their convolutions; SiLU's derivative there is computed once. Step t of u is in the windows of
    the steps from t - (WIDTH - 1 - BEFORE) to t + BEFORE, so the walk begins ``WIDTH - 1`` windows early.
    """
    pid = tl.program_id(0)
    blocks, tiles = tl.cdiv(channels, BLOCK), tl.cdiv(T, STEPS)
    tile = (pid // blocks) % tiles
    row = (pid // blocks // tiles).to(tl.int64)
    begin = tile.to(tl.int64) * STEPS
    end = tl.minimum(begin + STEPS, T)
    c = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    grad += row * grad_row
    u += row * u_row
    mask_at = None if mask is None else mask + row * mask_row
    taps = _taps(weight, c, channels, WIDTH, REVERSE)
    shift = _of_channels(bias, c, channels, BLOCK)

    start = begin + BEFORE - (WIDTH - 1)
    inputs, numbers = (), ()
    for k in tl.static_range(WIDTH - 1):
        s = start - BEFORE + k
        inputs += (_step(u, u_time, _counts(mask_at, mask_time, s, T), s, c, inside),)
        numbers += (_number(sequence, s, T),)
    of_taps = (tl.zeros((BLOCK,), tl.float32),) * WIDTH
    gradients = (tl.zeros((BLOCK,), tl.float32),) * (WIDTH - 1)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    # Windows before the walk have no gradient yet, whatever their number.
    owners = numbers
    for group in range(0, STEPS + WIDTH - 1, GROUP):
        first = start + group
        new, news, g_k, counting, results = (), (), (), (), ()
        for k in tl.static_range(GROUP):
            newest = first + k - BEFORE + WIDTH - 1
            new += (_step(u, u_time, _counts(mask_at, mask_time, newest, T), newest, c, inside),)
            news += (_number(sequence, newest, T),)
            counting += (_counts(mask_at, mask_time, first + k, T),)
            g_k += (_step(grad, grad_time, counting[k], first + k, c, inside),)
        for k in tl.static_range(GROUP):
            inputs += (new[k],)
            numbers += (news[k],)
            own = numbers[BEFORE]
            g = g_k[k]
            if SILU:
                x = shift
                for j in tl.static_range(WIDTH):
                    x += taps[j] * _of_sequence(inputs[j], numbers[j], own, sequence)
                slope = sigmoid(x)
                slope *= 1 + x * (1 - slope)
                g = tl.where(counting[k], g * slope, 0.0)
            mine = (first + k >= begin) & (first + k < end)
            counted = tl.where(mine, g, 0.0)
            after = ()
            for j in tl.static_range(WIDTH):
                after += (of_taps[j] + counted * _of_sequence(inputs[j], numbers[j], own, sequence),)
            of_taps = after
            of_bias += counted
            gradients += (g,)
            owners += (own,)
            total = tl.zeros((BLOCK,), tl.float32)
            for j in tl.static_range(WIDTH):
                total += taps[j] * _of_sequence(gradients[WIDTH - 1 - j], owners[WIDTH - 1 - j], numbers[0], sequence)
            results += (total,)
            inputs, numbers, gradients, owners = inputs[1:], numbers[1:], gradients[1:], owners[1:]
        for k in tl.static_range(GROUP):
            t = first + k - BEFORE
            there = (t >= begin) & (t < end)
            total = results[k]
            if mask is not None:
                total = tl.where(tl.load(mask_at + t * mask_time, mask=there, other=0) != 0, total, 0.0)
            target = du + (row * T + t) * channels + c
            tl.store(target, total.to(du.dtype.element_ty), mask=both(inside, there))
    part = tile + row * tiles
    for k in tl.static_range(WIDTH):
        tap = WIDTH - 1 - k if REVERSE else k
        tl.store(dweight + (part * WIDTH + tap) * channels + c, of_taps[k], mask=inside)
    if bias is not None:
        tl.store(dbias + part * channels + c, of_bias, mask=inside)
