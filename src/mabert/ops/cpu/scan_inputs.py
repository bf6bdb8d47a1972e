"""What the scan reads in either direction: where each input stands in the kernels' tables, and how it comes in."""

from typing import Any

from numba import njit

from mabert.ops.cpu.blocks import fetch_decays, step_at
from mabert.ops.cpu.rows import ADDRESS, fetch, is_valid

U, DELTA, A, B, C, D, Z, BIAS, MASK = range(9)
INPUTS = 9


@njit
def fetch_parameters(tensors: Any, first: int, count: int, N: int, decays: int, skip: int, bias: int) -> None:
    """Read A, D and the bias of Δ for ``count`` channels; those that are absent keep what is in their buffers."""
    fetch_decays(tensors[A], first, count, N, decays)
    if tensors[D, ADDRESS]:
        fetch(tensors[D], 0, 0, first, count, skip)
    if tensors[BIAS, ADDRESS]:
        fetch(tensors[BIAS], 0, 0, first, count, bias)


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
    """Read B and C of the valid ones among ``length`` steps from the ``first`` of the sequence on.

    Their times, and those of masked steps, are listed; how many there are of each is returned.
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
