"""The steps and rows of each sequence, the unit that both recurrent operators stay within."""

import itertools
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

Span = tuple[int, int, int]

_read: WeakIdKeyDictionary = WeakIdKeyDictionary()


def offsets_of(cu_seqlens: torch.Tensor) -> list[int]:
    """Reads offsets, those on a GPU once: the host waits there for all that was started before."""
    known = _read.get(cu_seqlens)
    if known is not None and known[0] == cu_seqlens._version:
        return known[1]
    offsets = cu_seqlens.tolist()
    remember(cu_seqlens, offsets)
    return offsets


def remember(cu_seqlens: torch.Tensor, offsets: Sequence[int]) -> None:
    """Keeps the offsets that a tensor on a GPU holds, for as long as it lives and is not written to."""
    if cu_seqlens.device.type != "cpu" and not cu_seqlens.is_inference():
        _read[cu_seqlens] = cu_seqlens._version, list(offsets)


def spans(cu_seqlens: torch.Tensor | Sequence[int] | None, rows: int, time: int) -> list[Span]:
    """Lists the sequences of a batch as half-open spans ``(row, start, end)``, in order; some may be empty.

    ``cu_seqlens`` are ``(sequences + 1,)`` offsets into the one packed row, None if each row is a sequence.

    Raises:
        ValueError: The offsets do not rise from 0 to ``time``.
    """
    if cu_seqlens is None:
        return [(row, 0, time) for row in range(rows)]
    offsets = offsets_of(cu_seqlens) if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    if offsets[0] != 0 or offsets[-1] != time:
        raise ValueError(f"cu_seqlens must run from 0 to time={time}, got {offsets[0]} to {offsets[-1]}")
    for start, end in itertools.pairwise(offsets):
        if end < start:
            raise ValueError(f"cu_seqlens must not fall, got {start} followed by {end}")
    return [(0, start, end) for start, end in itertools.pairwise(offsets)]
