"""The steps and rows of each sequence, the unit that both recurrent operators stay within."""

import itertools
from collections.abc import Sequence

import torch

Span = tuple[int, int, int]


def spans(cu_seqlens: torch.Tensor | Sequence[int] | None, rows: int, time: int) -> list[Span]:
    """Lists the sequences of a batch as ``(row, start, end)``, in order.

    Args:
        cu_seqlens: ``(sequences + 1,)`` integer offsets into the one packed row, or None if each row is a sequence.
        rows: Number of rows of the batch.
        time: Number of steps of a row.

    Returns:
        One half-open span of steps for each sequence; spans of zero length are legal.

    Raises:
        ValueError: The offsets do not rise from 0 to ``time``.
    """
    if cu_seqlens is None:
        return [(row, 0, time) for row in range(rows)]
    offsets = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    if offsets[0] != 0 or offsets[-1] != time:
        raise ValueError(f"cu_seqlens must run from 0 to time={time}, got {offsets[0]} to {offsets[-1]}")
    for start, end in itertools.pairwise(offsets):
        if end < start:
            raise ValueError(f"cu_seqlens must not fall, got {start} followed by {end}")
    return [(0, start, end) for start, end in itertools.pairwise(offsets)]
