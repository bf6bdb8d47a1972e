"""The scan's backward kernel: visits chunks from last to first, and recomputes the states inside each chunk.

With g the gradient of y before the gate, and dh that of the state, going back in time::

    dh_t = C_t g_t + a_{t+1} dh_{t+1}                      a_t = exp(Δ_t A)
    dC_t = Σ_channels h_t g_t       dB_t = Σ_channels dh_t Δ_t u_t
    dΔ_t = u_t Σ_states dh_t B_t + Σ_states dh_t a_t h_{t-1} A
    du_t = Δ_t Σ_states dh_t B_t + D g_t                   dA = Σ_t dh_t a_t h_{t-1} Δ_t

One job carries one stripe of channels through the sequences of one group. It keeps one chunk's states and decays for a
few vectors of channels, which fit the second-level cache. Sums over channels and over sequences stay in parts, one per
stripe and group, which `sum_parts` adds in a fixed order.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from mabert.ops.cpu.blocks import VECTOR_BYTES, add, clear, copy, fetch_padded, multiply
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.plan import SPAN_END, SPAN_ROW, SPAN_SLOT, SPAN_START, own, plan_sequences, sum_parts
from mabert.ops.cpu.rows import ADDRESS, describe, emit, prefetch_read, reserve
from mabert.ops.cpu.scan_chunk import (
    DELTA,
    INPUTS,
    PART,
    PART_BYTES,
    U,
    Z,
    fetch_matrices,
    fetch_parameters,
    go_back,
    prepare,
    replay,
)
from mabert.ops.cpu.simd import LANES
from mabert.ops.cpu.team import share
from mabert.ops.layout import BLOCK, CHUNK, padded_channels, readable

STRIPE = 4 * BLOCK
"""Channels of a job. The number is fixed because results depend on which channels are summed together."""

_PARTS = STRIPE // PART

_GRAD, _STATES, _DU, _DDELTA, _DZ, _DB_PARTS, _DC_PARTS, _PARAMETERS = range(INPUTS, INPUTS + 8)


@njit
def _prefetch_next(
    tensors: Any, row: int, t: int, first: int, last: int, stripe: int, reverse: bool, start: int, end: int
) -> None:
    """Prefetches this step's inputs of the next channels, or after the last channels of the next chunk's first ones."""
    if first + PART < last:
        first += PART
    else:
        first = stripe * STRIPE
        t = t + CHUNK if reverse else t - CHUNK
    if start <= t < end:
        for read in (U, DELTA, _GRAD):
            prefetch_read(tensors[read], row, t, first, PART)
        if tensors[Z, ADDRESS]:
            prefetch_read(tensors[Z], row, t, first, PART)


@njit
def _emit_channels(
    tensors: Any, row: int, times: Any, steps: int, first: int, count: int, du: int, ddelta: int, dz: int, y: int
) -> None:
    """Writes a chunk's results for some channels at each valid step; dz still lacks its factor y."""
    for k in range(steps):
        t, at = times[k], k * PART_BYTES
        emit(du + at, count, tensors[_DU], row, t, first)
        emit(ddelta + at, count, tensors[_DDELTA], row, t, first)
        if tensors[Z, ADDRESS]:
            multiply(y + at, dz + at, PART_BYTES)
            emit(dz + at, count, tensors[_DZ], row, t, first)


@njit
def _emit_zeros(
    tensors: Any, written: int, until: int, row: int, times: Any, steps: int, first: int, count: int, zeros: int
) -> None:
    """Writes zeros at the masked steps of the gradients from ``written`` up to ``until``."""
    for k in range(steps):
        for gradient in range(written, until):
            emit(zeros, count, tensors[gradient], row, times[k], first)


@njit
def _scan_backward_job(
    job: int,
    scratch: int,
    tensors: Any,
    sequences: Any,
    groups: Any,
    rows: int,
    channels: int,
    N: int,
    delta_softplus: bool,
    reverse: bool,
) -> None:
    stripes = -(-channels // STRIPE)
    group, stripe = job // stripes, job % stripes
    last = min((stripe + 1) * STRIPE, channels)
    width = -(-(last - stripe * STRIPE) // PART)
    state_bytes = N * PART_BYTES
    sum_bytes = state_bytes + 2 * PART_BYTES
    chunk_bytes = CHUNK * PART_BYTES
    padded = -(-channels // BLOCK) * BLOCK
    saved_bytes = padded * 4 * N
    gated = tensors[Z, ADDRESS] != 0

    u = scratch
    delta = u + chunk_bytes
    slope = delta + chunk_bytes
    g = slope + chunk_bytes
    z = g + chunk_bytes
    y = z + chunk_bytes
    decays = y + chunk_bytes
    states = decays + CHUNK * state_bytes
    A = states + (CHUNK + 1) * state_bytes
    carry = A + _PARTS * state_bytes
    D = carry + _PARTS * state_bytes
    bias = D + _PARTS * PART_BYTES
    totals = bias + _PARTS * PART_BYTES
    sums = totals + _PARTS * sum_bytes
    lanes = sums + sum_bytes
    zeros = lanes + N * VECTOR_BYTES
    B = zeros + max(PART_BYTES, N * VECTOR_BYTES)
    C = B + CHUNK * 4 * N
    dB = C + CHUNK * 4 * N
    dC = dB + CHUNK * 4 * N
    clear(scratch, B - scratch)
    fetch_parameters(tensors, stripe * STRIPE, last, PART, N, A, D, bias)
    times = np.empty(CHUNK, np.int64)
    masked = np.empty(CHUNK, np.int64)

    for s in range(groups[group], groups[group + 1]):
        row, start, end = sequences[s, SPAN_ROW], sequences[s, SPAN_START], sequences[s, SPAN_END]
        clear(carry, _PARTS * state_bytes)
        for chunk in range((end - start - 1) // CHUNK, -1, -1):
            position = chunk * CHUNK
            steps, holes = fetch_matrices(tensors, row, start, end, position, CHUNK, reverse, N, B, C, times, masked)
            clear(dB, 2 * CHUNK * 4 * N)
            for i in range(width):
                first = stripe * STRIPE + i * PART
                count = min(PART, channels - first)
                if chunk == 0:
                    clear(states, state_bytes)
                else:
                    saved = tensors[_STATES, ADDRESS] + (sequences[s, SPAN_SLOT] + chunk - 1) * saved_bytes
                    copy(saved + first * 4 * N, states, state_bytes)
                for k in range(steps):
                    t, at = times[k], k * PART_BYTES
                    fetch_padded(tensors[U], row, t, first, count, PART, u + at)
                    fetch_padded(tensors[DELTA], row, t, first, count, PART, delta + at)
                    fetch_padded(tensors[_GRAD], row, t, first, count, PART, g + at)
                    if gated:
                        fetch_padded(tensors[Z], row, t, first, count, PART, z + at)
                    prepare(delta + at, z + at, g + at, bias + i * PART_BYTES, slope + at, delta_softplus, gated)
                    _prefetch_next(tensors, row, t, first, last, stripe, reverse, start, end)
                    for written in range(_DU, _DZ + gated):
                        reserve(tensors[written], row, t, first, count)
                A_i, D_i, carry_i = A + i * state_bytes, D + i * PART_BYTES, carry + i * state_bytes
                replay(steps, N, A_i, delta, u, D_i, B, C, g, y, states, decays, lanes, dC)
                clear(sums, sum_bytes)
                go_back(steps, N, A_i, delta, u, D_i, B, C, g, slope, states, decays, lanes, carry_i, sums, dB)
                add(sums, totals + i * sum_bytes, sum_bytes)
                _emit_channels(tensors, row, times, steps, first, count, u, delta, z, y)
                _emit_zeros(tensors, _DU, _DZ + gated, row, masked, holes, first, count, zeros)
            of_stripe = stripe * rows + row
            for k in range(steps):
                emit(dB + k * 4 * N, N, tensors[_DB_PARTS], of_stripe, times[k], 0)
                emit(dC + k * 4 * N, N, tensors[_DC_PARTS], of_stripe, times[k], 0)
            _emit_zeros(tensors, _DB_PARTS, _DC_PARTS + 1, of_stripe, masked, holes, 0, N, zeros)
    for i in range(width):
        part = (group * (padded // PART) + stripe * _PARTS + i) * sum_bytes
        copy(totals + i * sum_bytes, tensors[_PARAMETERS, ADDRESS] + part, sum_bytes)


@Kernel
def _scan_backward(call: int, *args: Any) -> None:
    share(_scan_backward_job, call, args)


def _scratch_size(N: int) -> int:
    per_state = 2 * CHUNK + 1 + 3 * _PARTS + 1
    per_step = 6 * CHUNK + 4 * _PARTS + 2 + 1
    return (per_state * N + per_step) * PART_BYTES + 2 * N * VECTOR_BYTES + 4 * CHUNK * 4 * N


def scan_backward(grad: Tensor, states: Tensor, *inputs: Any) -> list[Tensor | None]:
    """Returns the gradients of the floating inputs, in the order of the arguments; None of those that are absent."""
    u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse = inputs
    rows, time, channels = u.shape
    N = A.shape[1]
    stripes = -(-channels // STRIPE)
    sequences, groups = plan_sequences(cu_seqlens, rows, time)
    du, ddelta = u.new_empty(u.shape), delta.new_empty(delta.shape)
    dz = None if z is None else z.new_empty(z.shape)
    dB_parts, dC_parts = (u.new_empty((stripes * rows, time, N), dtype=torch.float32) for _ in range(2))
    parameters = u.new_empty(
        (max(len(groups) - 1, 1), padded_channels(channels) // PART, (N + 2) * PART), dtype=torch.float32
    )
    if len(sequences) == 0:
        parameters.zero_()
    alive = [readable(tensor) for tensor in (u, delta, A, B, C, D, z, delta_bias, mask, grad)]
    jobs, scratch = (len(groups) - 1) * stripes, _scratch_size(N)
    tensors = describe(*alive, states, du, ddelta, dz, dB_parts, dC_parts, parameters)
    _scan_backward.run(jobs, scratch, tensors, sequences, groups, rows, channels, N, delta_softplus, reverse)
    dA, dD, dbias = _unpack(sum_parts(parameters), channels, N)
    dB, dC = (sum_parts(parts.view(stripes, rows, time, N)) for parts in (dB_parts, dC_parts))
    of_D = None if D is None else own(dD, D.dtype)
    of_bias = None if delta_bias is None else own(dbias, delta_bias.dtype)
    return [du, ddelta, own(dA, A.dtype), dB.to(B.dtype), dC.to(C.dtype), of_D, dz, of_bias]


def _unpack(parameters: Tensor, channels: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits dA, dD and the gradient of delta_bias out of the buffer in which they were summed."""
    parts = parameters.shape[0]
    of_state, dD, dbias = parameters.split([N * PART, PART, PART], dim=1)
    dA = of_state.reshape(parts, PART // LANES, N, LANES).transpose(2, 3).reshape(parts * PART, N)
    return dA[:channels], dD.reshape(-1)[:channels], dbias.reshape(-1)[:channels]
