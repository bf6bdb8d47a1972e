"""Kernels of the convolution: each program takes a tile of steps and channels, with the neighbours in its windows."""

import triton
import triton.language as tl

from mabert.ops.triton.functions import sigmoid


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
    BLOCK: tl.constexpr,
):
    """Computes the gradient of one tile of u, and the tile's share of the gradients of taps and bias.

    Step t of u is in the windows of the steps from t - (WIDTH - 1 - BEFORE) to t + BEFORE. SiLU's derivative at each of
    them needs the convolution, which is recomputed from the inputs in registers.
    """
    AFTER: tl.constexpr = WIDTH - 1 - BEFORE
    row, tile, t, c = _place(T, channels, STEPS, BLOCK)
    inside = c < channels
    grad += row * grad_row
    u += row * u_row
    if mask is not None:
        mask += row * mask_row
    taps = _taps(weight, c, channels, WIDTH, REVERSE)
    shift = _of_channels(bias, c, channels, BLOCK)[None, :]

    inputs, numbers = (), ()
    for k in tl.static_range(2 * WIDTH - 1):
        s = t + (k - WIDTH + 1)
        at = u + (s * u_time)[:, None] + c[None, :]
        counts = _counts(mask, mask_time, s, T)
        inputs += (tl.load(at, mask=counts[:, None] & inside[None, :], other=0.0).to(tl.float32),)
        numbers += (_number(sequence, s, T),)

    total = tl.zeros((STEPS, BLOCK), tl.float32)
    of_tap = (tile + row * tl.cdiv(T, STEPS)) * WIDTH
    for j in tl.static_range(WIDTH):
        # The window of step s = t + BEFORE - j uses tap j at t; its inputs begin at s - BEFORE, that is at t - j.
        s = t + (BEFORE - j)
        number = numbers[WIDTH - 1 + BEFORE - j]
        at = grad + (s * grad_time)[:, None] + c[None, :]
        counts = _counts(mask, mask_time, s, T)
        g = tl.load(at, mask=counts[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if SILU:
            x = tl.zeros((STEPS, BLOCK), tl.float32) + shift
            for k in tl.static_range(WIDTH):
                same = (numbers[WIDTH - 1 - j + k] == number)[:, None]
                x += taps[k][None, :] * tl.where(same, inputs[WIDTH - 1 - j + k], 0.0)
            slope = sigmoid(x)
            slope *= 1 + x * (1 - slope)
            g = tl.where(counts[:, None], g * slope, 0.0)
        total += taps[j][None, :] * tl.where((numbers[WIDTH - 1] == number)[:, None], g, 0.0)
        if j == BEFORE:
            for k in tl.static_range(WIDTH):
                same = ((numbers[AFTER + k] == number) & counts)[:, None]
                of_tap_k = tl.sum(tl.where(same, inputs[AFTER + k] * g, 0.0), 0)
                tap = WIDTH - 1 - k if REVERSE else k
                tl.store(dweight + (of_tap + tap) * channels + c, of_tap_k, mask=inside)
            if bias is not None:
                tl.store(dbias + (tile + row * tl.cdiv(T, STEPS)) * channels + c, tl.sum(g, 0), mask=inside)
    total = tl.where(_counts(mask, mask_time, t, T)[:, None], total, 0.0)
    target = du + (row * T + t)[:, None] * channels + c[None, :]
    tl.store(target, total.to(du.dtype.element_ty), mask=(t < T)[:, None] & inside[None, :])
