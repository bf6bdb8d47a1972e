"""The scan's forward kernel: one job carries one block of channels through the sequences of one group.

A tile of steps is copied into small float32 buffers, where softplus, Δu and Du are computed. Then each vector of
channels steps through the tile with its state in the first-level cache. Last, the gate is applied and the tile written
out. Masked steps are never copied, so they cost nothing and have no effect.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from mabert.ops.cpu.blocks import BLOCK_BYTES, VECTOR_BYTES, clear, copy, exp2, fetch_padded, sigmoid, softplus
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.plan import SPAN_END, SPAN_ROW, SPAN_SLOT, SPAN_START, plan_sequences, stripe_width
from mabert.ops.cpu.rows import ADDRESS, describe, emit, fetch, prefetch_read, reserve
from mabert.ops.cpu.scan_chunk import DELTA, INPUTS, U, Z, fetch_matrices, fetch_parameters
from mabert.ops.cpu.simd import load, load_one, splat, store
from mabert.ops.cpu.team import share
from mabert.ops.layout import BLOCK, CHUNK, padded_channels, readable, saved_states_shape

TILE = 16
_Y, _STATES = range(INPUTS, INPUTS + 2)


@njit
def _advance(steps: int, N: int, A: int, delta: int, x: int, B: int, C: int, y: int, state: int) -> None:
    """Runs ``steps`` steps of the recurrence from the buffers; x is Δu, and the result is added to y."""
    for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
        for k in range(steps):
            at = v + k * BLOCK_BYTES
            delta_k, x_k, y_k = load(delta + at), load(x + at), load(y + at)
            for n in range(N):
                of_n = v * N + n * VECTOR_BYTES
                h = exp2(delta_k * load(A + of_n)) * load(state + of_n) + x_k * splat(load_one(B + 4 * (k * N + n)))
                store(state + of_n, h)
                y_k = y_k + h * splat(load_one(C + 4 * (k * N + n)))
            store(y + at, y_k)


@njit(forceinline=True)
def _prepare(step: int, softplus_delta: bool, delta: int, x: int, y: int, D: int, bias: int) -> None:
    """Turns one step's raw delta (in ``delta``) and u (in ``x``) into Δ, Δu and, in ``y``, Du."""
    for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
        at = v + step * BLOCK_BYTES
        step_size = load(delta + at) + load(bias + v)
        if softplus_delta:
            step_size = softplus(step_size)
        u = load(x + at)
        store(delta + at, step_size)
        store(x + at, step_size * u)
        store(y + at, load(D + v) * u)


@njit(forceinline=True)
def _gate(z: int, y: int) -> None:
    for v in range(0, BLOCK_BYTES, VECTOR_BYTES):
        z_v = load(z + v)
        store(y + v, load(y + v) * z_v * sigmoid(z_v))


@njit
def _fetch_steps(
    tensors: Any,
    row: int,
    times: Any,
    steps: int,
    start: int,
    end: int,
    ahead: int,
    first: int,
    count: int,
    x: int,
    delta: int,
) -> None:
    """Reads u and raw Δ of a tile's steps; prefetches the next reads and writes: z, y, and u and Δ of the next tile."""
    for k in range(steps):
        t = times[k]
        fetch_padded(tensors[U], row, t, first, count, BLOCK, x + k * BLOCK_BYTES)
        fetch_padded(tensors[DELTA], row, t, first, count, BLOCK, delta + k * BLOCK_BYTES)
        reserve(tensors[_Y], row, t, first, count)
        if tensors[Z, ADDRESS]:
            prefetch_read(tensors[Z], row, t, first, count)
        if start <= t + ahead < end:
            prefetch_read(tensors[U], row, t + ahead, first, count)
            prefetch_read(tensors[DELTA], row, t + ahead, first, count)


@njit
def _scan_forward_job(
    job: int,
    scratch: int,
    tensors: Any,
    sequences: Any,
    groups: Any,
    channels: int,
    stripe: int,
    N: int,
    delta_softplus: bool,
    reverse: bool,
) -> None:
    blocks = -(-channels // BLOCK)
    stripes = -(-blocks // stripe)
    group = job // stripes
    first_block = job % stripes * stripe
    last_block = min(first_block + stripe, blocks)
    state_bytes = N * BLOCK_BYTES

    x = scratch
    delta = x + TILE * BLOCK_BYTES
    y = delta + TILE * BLOCK_BYTES
    A = y + TILE * BLOCK_BYTES
    state = A + stripe * state_bytes
    D = state + stripe * state_bytes
    bias = D + stripe * BLOCK_BYTES
    zeros = bias + stripe * BLOCK_BYTES
    B = zeros + BLOCK_BYTES
    C = B + TILE * 4 * N
    clear(scratch, B - scratch)
    fetch_parameters(tensors, first_block * BLOCK, min(last_block * BLOCK, channels), BLOCK, N, A, D, bias)
    ahead = -TILE if reverse else TILE
    times = np.empty(TILE, np.int64)
    masked = np.empty(TILE, np.int64)

    for s in range(groups[group], groups[group + 1]):
        row, start, end = sequences[s, SPAN_ROW], sequences[s, SPAN_START], sequences[s, SPAN_END]
        slot = sequences[s, SPAN_SLOT]
        clear(state, stripe * state_bytes)
        for position in range(0, end - start, TILE):
            if tensors[_STATES, ADDRESS] and position > 0 and position % CHUNK == 0:
                saved = tensors[_STATES, ADDRESS] + (slot * blocks + first_block) * state_bytes
                copy(state, saved, (last_block - first_block) * state_bytes)
                slot += 1
            steps, holes = fetch_matrices(tensors, row, start, end, position, TILE, reverse, N, B, C, times, masked)
            for block in range(first_block, last_block):
                i = block - first_block
                first = block * BLOCK
                count = min(BLOCK, channels - first)
                _fetch_steps(tensors, row, times, steps, start, end, ahead, first, count, x, delta)
                for k in range(steps):
                    _prepare(k, delta_softplus, delta, x, y, D + i * BLOCK_BYTES, bias + i * BLOCK_BYTES)
                _advance(steps, N, A + i * state_bytes, delta, x, B, C, y, state + i * state_bytes)
                for k in range(steps):
                    if tensors[Z, ADDRESS]:
                        fetch(tensors[Z], row, times[k], first, count, x)
                        _gate(x, y + k * BLOCK_BYTES)
                    emit(y + k * BLOCK_BYTES, count, tensors[_Y], row, times[k], first)
                for k in range(holes):
                    emit(zeros, count, tensors[_Y], row, masked[k], first)


@Kernel
def _scan_forward(call: int, *args: Any) -> None:
    share(_scan_forward_job, call, args)


def scan_forward(*inputs: Any, keep_states: bool) -> tuple[Tensor, Tensor]:
    """Runs the scan with the arguments of `mabert.ops.library.SCAN`; returns y and, if ``keep_states``, the states at
    chunk boundaries."""
    u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse = inputs
    rows, time, channels = u.shape
    N = A.shape[1]
    y = u.new_empty(u.shape)
    states = u.new_empty(saved_states_shape(u, A, cu_seqlens) if keep_states else (0,), dtype=torch.float32)
    sequences, groups = plan_sequences(cu_seqlens, rows, time)
    if keep_states and cu_seqlens is not None:
        used = int(((sequences[:, SPAN_END] - sequences[:, SPAN_START] - 1) // CHUNK).sum())
        states[used:].zero_()
    alive = [readable(tensor) for tensor in (u, delta, A, B, C, D, z, delta_bias, mask)]
    blocks = padded_channels(channels) // BLOCK
    stripe = stripe_width(len(groups) - 1, blocks)
    jobs = (len(groups) - 1) * -(-blocks // stripe)
    scratch = (3 * TILE + 2 * stripe * (N + 1) + 1) * BLOCK_BYTES + 2 * TILE * 4 * N
    tensors = describe(*alive, y, states)
    _scan_forward.run(jobs, scratch, tensors, sequences, groups, channels, stripe, N, delta_softplus, reverse)
    return y, states
