"""Inputs of the scan's forward and backward: their rows in the kernels' tables, and functions that read them."""

from typing import Any

from numba import njit

from mabert.ops.cpu.blocks import fetch_decays, step_at
from mabert.ops.cpu.rows import ADDRESS, fetch, is_valid

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
