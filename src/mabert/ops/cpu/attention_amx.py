"""Softmax attention for inference in bfloat16 on tiles (AMX): the algorithm of `attention`, transposed.

Products of tiles take almost no time, so the layout serves the weights: a block of scores has a row for each key and a
lane for each query, so that maxima, sums and rescaling factors are whole vectors. Scores are K Qᵀ; the output is Vᵀ Pᵀ,
transposed back at the end.
"""

from typing import Any

import numpy as np
from numba import float32, njit

from mabert.ops.cpu.amx import AMX_DEPTH, AMX_ROWS, begin_tiles, end_tiles, tile_product_amx
from mabert.ops.cpu.blocks import LOG2_E, clear, copy, exp2, exp2_short
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.plan import PIECE_END, PIECE_FIRST, PIECE_LAST, PIECE_ROW, PIECE_START
from mabert.ops.cpu.rows import ADDRESS, ROW, STEP, emit, find_valid
from mabert.ops.cpu.simd import LANES, at_least, interleave, load, splat, store, store_pairs, transpose
from mabert.ops.cpu.team import share
from mabert.ops.cpu.tile import TILE_COLUMNS

QUERIES = TILE_COLUMNS
"""Columns of a block of scores."""

KEYS = 2 * AMX_ROWS
"""Rows of a block of scores."""

PANELS = 2
"""Blocks of queries that use a block of keys while it is in the first-level cache."""

_VECTOR = 4 * LANES
_ROW = 4 * QUERIES
_LINE = 4 * AMX_DEPTH
_LOWEST = float32(-np.inf)
_LEAST = float32(np.finfo(np.float32).min)  # initial maximum; -inf would turn infinite scores into NaN
_QUERY, _KEY, _VALUE, _MASK, _OUT = range(5)


@njit
def _pack_keys(tensor: Any, row: int, offset: int, found: Any, count: int, padded: int, size: int, target: int) -> None:
    """Copies keys one below the other, with zeros up to whole tiles."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for j in range(count):
        key = source + found[j] * tensor[STEP]
        place = target + j // AMX_ROWS * AMX_ROWS * 2 * size + j % AMX_ROWS * _LINE
        for c in range(0, 2 * size, _LINE):
            copy(key + c, place + AMX_ROWS * c, _LINE)
    for j in range(count, padded):
        place = target + j // AMX_ROWS * AMX_ROWS * 2 * size + j % AMX_ROWS * _LINE
        for c in range(0, 2 * size, _LINE):
            clear(place + AMX_ROWS * c, _LINE)


@njit
def _pack_values(
    tensor: Any, row: int, offset: int, found: Any, count: int, padded: int, size: int, pairs: int, target: int
) -> None:
    """Packs values into blocks of one tile's keys, one row per channel, with zeros up to whole tiles."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    nothing = pairs + LANES * 4 * size
    clear(nothing, 2 * size)
    for key in range(0, padded, 2 * LANES):
        for j in range(LANES):
            one, two = key + 2 * j, key + 2 * j + 1
            first = source + found[one] * tensor[STEP] if one < count else nothing
            second = source + found[two] * tensor[STEP] if two < count else nothing
            for c in range(0, size, 2 * LANES):
                interleave(first + 2 * c, second + 2 * c, pairs + 4 * (j * size + c))
        block = target + key * 2 * size
        for c in range(0, size, LANES):
            transpose(pairs + 4 * c, 4 * size, block + c * _LINE, _LINE)


@njit
def _pack_queries(
    tensor: Any, row: int, first: int, rows: int, offset: int, size: int, lines: int, target: int
) -> None:
    """Packs neighbouring queries: for each word along the head, that word of all queries; zeros past the last one."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for r in range(rows):
        copy(source + (first + r) * tensor[STEP], lines + r * 2 * size, 2 * size)
    clear(lines + rows * 2 * size, (QUERIES - rows) * 2 * size)
    for w in range(0, size // 2, LANES):
        for r in range(0, QUERIES, LANES):
            transpose(lines + r * 2 * size + 4 * w, 2 * size, target + w * _ROW + 4 * r, _ROW)


@njit
def _weigh(scores: int, weights: int, count: int, scale: Any, peak: int, sums: int) -> Any:
    """Turns the scores of a vector of queries into weights relative to the largest so far; returns the factor that
    rescales earlier sums. ``count`` is even."""
    one, two = splat(_LOWEST), splat(_LOWEST)
    for j in range(0, count * _ROW, 2 * _ROW):
        one = at_least(load(scores + j), one)
        two = at_least(load(scores + j + _ROW), two)
    before = load(peak)
    shift = at_least(at_least(one, two) * splat(scale), before)
    store(peak, shift)
    faded = exp2(before - shift)
    first, second = load(sums) * faded, splat(float32(0.0))
    for j in range(0, count * _ROW, 2 * _ROW):
        low = exp2_short(load(scores + j) * splat(scale) - shift)
        high = exp2_short(load(scores + j + _ROW) * splat(scale) - shift)
        first = first + low
        second = second + high
        store_pairs(weights + j // 2, low, high)
    store(sums, first + second)
    return faded


@njit
def _panel_bytes(size: int) -> int:
    """Returns the bytes kept for neighbouring queries: the queries, sums of output and of weights, largest scores."""
    return (size // 2 + size + 2) * _ROW


@njit
def _take(panel: int, keys: int, values: int, taken: int, size: int, scale: Any, scores: int, weights: int) -> None:
    """Attends from a panel of queries to a block of keys."""
    out = panel + size // 2 * _ROW
    sums = out + size * _ROW
    peaks = sums + _ROW
    padded = -(-taken // AMX_ROWS) * AMX_ROWS
    for j in range(0, padded, AMX_ROWS):
        tile_product_amx(keys + j * 2 * size, AMX_ROWS * _LINE, panel, size // 2, scores + j * _ROW, _ROW, False)
    for i in range(taken * _ROW, padded * _ROW, _VECTOR):
        store(scores + i, splat(_LOWEST))
    for i in range(0, _ROW, _VECTOR):
        fade = _weigh(scores + i, weights + i, padded, scale, peaks + i, sums + i)
        for c in range(0, size * _ROW, _ROW):
            store(out + c + i, load(out + c + i) * fade)
    for c in range(0, size, AMX_ROWS):
        tile_product_amx(values + c * _LINE, size * _LINE, weights, padded // 2, out + c * _ROW, _ROW, True)


@njit
def _put_out(panel: int, count: int, size: int, lines: int) -> None:
    """Divides each query's weighted sum by its sum of weights; without any key it is zero already."""
    out = panel + size // 2 * _ROW
    if count > 0:
        for i in range(0, _ROW, _VECTOR):
            inverse = splat(float32(1.0)) / load(out + size * _ROW + i)
            for c in range(0, size * _ROW, _ROW):
                store(out + c + i, load(out + c + i) * inverse)
    for c in range(0, size, LANES):
        for r in range(0, QUERIES, LANES):
            transpose(out + c * _ROW + 4 * r, _ROW, lines + 4 * (r * size + c), 4 * size)


@njit
def _attention_job(
    job: int, scratch: int, tensors: Any, pieces: Any, groups: Any, longest: int, heads: int, size: int, scale: float
) -> None:
    group, head = job // heads, job % heads
    offset = 2 * head * size
    factor = float32(scale * LOG2_E)

    scores = scratch
    weights = scores + KEYS * _ROW
    lines = weights + KEYS // 2 * _ROW
    panels = lines + QUERIES * 4 * size
    keys = panels + PANELS * _panel_bytes(size)
    values = keys + -(-longest // KEYS) * KEYS * 2 * size
    found = np.empty(longest, np.int64)
    row, start, count, padded = -1, -1, 0, 0

    begin_tiles()
    for p in range(groups[group], groups[group + 1]):
        piece = pieces[p]
        if piece[PIECE_ROW] != row or piece[PIECE_START] != start:
            row, start = piece[PIECE_ROW], piece[PIECE_START]
            count = find_valid(tensors[_MASK], row, start, piece[PIECE_END], found)
            padded = -(-count // AMX_ROWS) * AMX_ROWS
            _pack_keys(tensors[_KEY], row, offset, found, count, padded, size, keys)
            _pack_values(tensors[_VALUE], row, offset, found, count, padded, size, lines, values)
        for begin in range(piece[PIECE_FIRST], piece[PIECE_LAST], PANELS * QUERIES):
            end = min(begin + PANELS * QUERIES, piece[PIECE_LAST])
            used = -(-(end - begin) // QUERIES)
            for i in range(used):
                panel, first = panels + i * _panel_bytes(size), begin + i * QUERIES
                rows = min(QUERIES, end - first)
                _pack_queries(tensors[_QUERY], row, first, rows, offset, size, lines, panel)
                clear(panel + size // 2 * _ROW, (size + 1) * _ROW)
                for v in range(0, _ROW, _VECTOR):
                    store(panel + (size + size // 2 + 1) * _ROW + v, splat(_LEAST))
            for key in range(0, count, KEYS):
                taken = min(KEYS, count - key)
                for i in range(used):
                    _take(
                        panels + i * _panel_bytes(size),
                        keys + key * 2 * size,
                        values + key * 2 * size,
                        taken,
                        size,
                        factor,
                        scores,
                        weights,
                    )
            for i in range(used):
                first = begin + i * QUERIES
                rows = min(QUERIES, end - first)
                _put_out(panels + i * _panel_bytes(size), count, size, lines)
                for r in range(rows):
                    emit(lines + r * 4 * size, size, tensors[_OUT], row, first + r, head * size)
    end_tiles()


@Kernel
def attention_amx(call: int, *args: Any) -> None:
    share(_attention_job, call, args)


def scratch_bytes(longest: int, size: int) -> int:
    """Returns a thread's bytes of working memory, for at most ``longest`` steps and ``size`` channels per head."""
    buffers = (KEYS + KEYS // 2) * _ROW + QUERIES * 4 * size + PANELS * _panel_bytes.py_func(size)
    return buffers + 2 * -(-longest // KEYS) * KEYS * 2 * size
