"""Divides a call into jobs. The number of threads may affect the number of jobs, never the results."""

import functools
from typing import NamedTuple

import numpy as np
import torch

from mabert.ops.layout import CHUNK
from mabert.ops.sequences import spans

Offsets = tuple[int, ...]

SPAN_ROW, SPAN_START, SPAN_END, SPAN_SLOT = range(4)
PIECE_ROW, PIECE_START, PIECE_END, PIECE_FIRST, PIECE_LAST = range(5)

_GROUP_STEPS = 256  # a job takes several short sequences, so that it lasts longer than handing it out
_STRIPE_BLOCKS = 8
_JOBS_PER_THREAD = 4


class Plan(NamedTuple):
    """The sequences of a call, or pieces of them, grouped into jobs."""

    parts: np.ndarray  # int64, one row per sequence or piece
    groups: np.ndarray  # int64 ``(groups + 1,)``: offsets into ``parts``


def plan_sequences(cu_seqlens: torch.Tensor | None, rows: int, time: int) -> Plan:
    """Plans jobs that each process whole sequences in order; takes and raises what `spans` does.

    The plan's parts are row, start, end, and slot of the first saved state. Empty sequences are left out, since nothing
    is computed or saved for them.
    """
    return _sequences(_offsets(cu_seqlens), rows, time)


# All layers of a forward ask for the same plans.
@functools.lru_cache(maxsize=64)
def _sequences(offsets: Offsets | None, rows: int, time: int) -> Plan:
    parts, lengths, slot = [], [], 0
    for row, start, end in spans(offsets, rows, time):
        if end > start:
            parts.append((row, start, end, slot))
            lengths.append(end - start)
            slot += (end - start - 1) // CHUNK
    return Plan(np.array(parts, dtype=np.int64).reshape(-1, 4), _group(lengths))


def plan_pieces(cu_seqlens: torch.Tensor | None, rows: int, time: int, steps: int = _GROUP_STEPS) -> Plan:
    """Plans jobs whose steps are independent: long sequences are cut too, into pieces of at most ``steps``, which also
    bounds a job that takes several short ones. Takes and raises what `spans` does.

    The plan's parts are row, start and end of the sequence, first and last (exclusive) step of the piece.
    """
    return _pieces(_offsets(cu_seqlens), rows, time, steps)


@functools.lru_cache(maxsize=64)
def _pieces(offsets: Offsets | None, rows: int, time: int, steps: int) -> Plan:
    parts, lengths = [], []
    for row, start, end in spans(offsets, rows, time):
        for first in range(start, end, steps):
            last = min(first + steps, end)
            parts.append((row, start, end, first, last))
            lengths.append(last - first)
    return Plan(np.array(parts, dtype=np.int64).reshape(-1, 5), _group(lengths, steps))


def _offsets(cu_seqlens: torch.Tensor | None) -> Offsets | None:
    return None if cu_seqlens is None else tuple(cu_seqlens.tolist())


def _group(lengths: list[int], most: int = _GROUP_STEPS) -> np.ndarray:
    """Groups sequences, closing a group before it would exceed the size of a job."""
    groups, steps = [0], 0
    for index, length in enumerate(lengths):
        if steps and steps + length > most:
            groups.append(index)
            steps = 0
        steps += length
    if lengths:
        groups.append(len(lengths))
    return np.array(groups, dtype=np.int64)


def stripe_width(groups: int, blocks: int) -> int:
    """Chooses how many neighbouring blocks of channels one job takes, for kernels whose results do not depend on it.

    Wide stripes read longer runs of each row; a few jobs per thread keep the threads evenly busy.
    """
    wanted = groups * blocks // (_JOBS_PER_THREAD * torch.get_num_threads())
    return max(1, min(_STRIPE_BLOCKS, blocks, wanted))
