"""What both scans read of their inputs; and one chunk of the backward, the equations of `mabert.ops.cpu.scan_backward`
step by step.

Each loop runs over steps, then vectors of channels, then states; all operands are in the job's own buffers. Sums over
channels first collect in one vector per state, and are added across its lanes once per step.
"""

from typing import Any

from numba import float32, njit

from mabert.ops.cpu.blocks import LN_2, VECTOR_BYTES, clear, exp2, fetch_decays, sigmoid, softplus, step_at
from mabert.ops.cpu.rows import ADDRESS, fetch, is_valid
from mabert.ops.cpu.simd import LANES, load, load_one, splat, store, store_one, total

U, DELTA, A, B, C, D, Z, BIAS, MASK = range(9)
INPUTS = 9


@njit
def fetch_parameters(
    tensors: Any, first: int, last: int, block: int, N: int, decays: int, skip: int, bias: int
) -> None:
    """Reads A, in blocks of channels, D and the bias of Δ for some channels; buffers of absent ones stay unchanged."""
    for start in range(first, last, block):
        fetch_decays(tensors[A], start, min(block, last - start), N, decays + (start - first) * 4 * N)
    if tensors[D, ADDRESS]:
        fetch(tensors[D], 0, 0, first, last - first, skip)
    if tensors[BIAS, ADDRESS]:
        fetch(tensors[BIAS], 0, 0, first, last - first, bias)


@njit
def fetch_matrices(
    tensors: Any,
    row: int,
    start: int,
    end: int,
    first: int,
    length: int,
    reverse: bool,
    N: int,
    into: int,
    out: int,
    times: Any,
    masked: Any,
) -> Any:
    """Reads B and C at the valid ones of ``length`` steps, from step ``first`` of the sequence on.

    Lists the times of these steps and of the masked ones; returns the number of each.
    """
    steps, holes = 0, 0
    for i in range(first, min(first + length, end - start)):
        t = step_at(i, start, end, reverse)
        if is_valid(tensors[MASK], row, t):
            times[steps] = t
            fetch(tensors[B], row, t, 0, N, into + steps * 4 * N)
            fetch(tensors[C], row, t, 0, N, out + steps * 4 * N)
            steps += 1
        else:
            masked[holes] = t
            holes += 1
    return steps, holes


PART = 2 * LANES
"""Channels whose chunk is in memory at a time: half a block, which leaves room in the second-level cache."""

PART_BYTES = 4 * PART


@njit
def prepare(raw: int, z: int, grad: int, bias: int, slope: int, softplus_delta: bool, gated: bool) -> None:
    """Turns one step's raw delta into Δ and its slope, dy into g, and z into dz without its factor y."""
    for v in range(0, PART_BYTES, VECTOR_BYTES):
        step_size = load(raw + v) + load(bias + v)
        if softplus_delta:
            store(slope + v, sigmoid(step_size))
            step_size = softplus(step_size)
        else:
            store(slope + v, splat(float32(1.0)))
        store(raw + v, step_size)
        if gated:
            z_v, grad_v, one = load(z + v), load(grad + v), splat(float32(1.0))
            s = sigmoid(z_v)
            store(grad + v, grad_v * z_v * s)
            store(z + v, grad_v * s * (one + z_v * (one - s)))


@njit
def replay(
    steps: int,
    N: int,
    A: int,
    delta: int,
    u: int,
    D: int,
    B: int,
    C: int,
    g: int,
    y: int,
    states: int,
    decays: int,
    lanes: int,
    dC: int,
) -> None:
    """Recomputes decays, states and y of a chunk from the state before it; adds to dC."""
    state_bytes = N * PART_BYTES
    for k in range(steps):
        clear(lanes, N * VECTOR_BYTES)
        for v in range(0, PART_BYTES, VECTOR_BYTES):
            at = v + k * PART_BYTES
            delta_k, u_k, g_k = load(delta + at), load(u + at), load(g + at)
            x_k = delta_k * u_k
            y_k = load(D + v) * u_k
            before = states + k * state_bytes + v * N
            decay_k = decays + k * state_bytes + v * N
            for n in range(N):
                i = n * VECTOR_BYTES
                a = exp2(delta_k * load(A + v * N + i))
                h = a * load(before + i) + x_k * splat(load_one(B + 4 * (k * N + n)))
                store(decay_k + i, a)
                store(before + state_bytes + i, h)
                store(lanes + i, load(lanes + i) + h * g_k)
                y_k = y_k + h * splat(load_one(C + 4 * (k * N + n)))
            store(y + at, y_k)
        for n in range(N):
            store_one(dC + 4 * (k * N + n), load_one(dC + 4 * (k * N + n)) + total(load(lanes + n * VECTOR_BYTES)))


@njit
def go_back(
    steps: int,
    N: int,
    A: int,
    delta: int,
    u: int,
    D: int,
    B: int,
    C: int,
    g: int,
    slope: int,
    states: int,
    decays: int,
    lanes: int,
    carry: int,
    sums: int,
    dB: int,
) -> None:
    """Propagates the state's gradient back through a chunk; du and ddelta replace u and Δ in their buffers."""
    state_bytes = N * PART_BYTES
    dD, dbias = sums + state_bytes, sums + state_bytes + PART_BYTES
    for k in range(steps - 1, -1, -1):
        clear(lanes, N * VECTOR_BYTES)
        for v in range(0, PART_BYTES, VECTOR_BYTES):
            at = v + k * PART_BYTES
            delta_k, u_k, g_k = load(delta + at), load(u + at), load(g + at)
            x_k = delta_k * u_k
            dx, through_decay = splat(float32(0.0)), splat(float32(0.0))
            before = states + k * state_bytes + v * N
            decay_k = decays + k * state_bytes + v * N
            for n in range(N):
                i = n * VECTOR_BYTES
                dh = load(carry + v * N + i) + g_k * splat(load_one(C + 4 * (k * N + n)))
                store(lanes + i, load(lanes + i) + dh * x_k)
                dx = dx + dh * splat(load_one(B + 4 * (k * N + n)))
                into_previous = dh * load(decay_k + i)
                store(carry + v * N + i, into_previous)
                of_exponent = into_previous * load(before + i)
                through_decay = through_decay + of_exponent * load(A + v * N + i)
                store(sums + v * N + i, load(sums + v * N + i) + of_exponent * delta_k)
            ddelta = (dx * u_k + through_decay * splat(float32(LN_2))) * load(slope + at)
            store(u + at, dx * delta_k + load(D + v) * g_k)
            store(delta + at, ddelta)
            store(dD + v, load(dD + v) + g_k * u_k)
            store(dbias + v, load(dbias + v) + ddelta)
        for n in range(N):
            store_one(dB + 4 * (k * N + n), load_one(dB + 4 * (k * N + n)) + total(load(lanes + n * VECTOR_BYTES)))
