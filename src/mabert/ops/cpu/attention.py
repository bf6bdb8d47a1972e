"""Softmax attention for inference, a block of queries against a block of keys at a time.

One job carries some queries of one head through all keys of their sequence. Keys and values are packed first, valid
ones only, so masked ones cost nothing and padding cannot change a bit of the result. Scores, maxima, sums and the
output are float32; for bfloat16 inputs the weights are rounded to bfloat16 for the second product, as torch's kernels
do. The running maximum and sum are those of Milakov and Gimelshein (2018), as in FlashAttention (Dao et al., 2022).
"""

from typing import Any

import numpy as np
import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu import attention_amx
from mabert.ops.cpu.amx import may_use_amx
from mabert.ops.cpu.blocks import clear
from mabert.ops.cpu.functions import LOG2_E, exp2
from mabert.ops.cpu.kernel import Kernel, claim, finish, linger
from mabert.ops.cpu.memory import fresh
from mabert.ops.cpu.plan import PIECE_END, PIECE_FIRST, PIECE_LAST, PIECE_ROW, PIECE_START, plan_pieces
from mabert.ops.cpu.pool import run
from mabert.ops.cpu.rows import ADDRESS, BF16, ROW, STEP, describe, emit, find_valid
from mabert.ops.cpu.simd import (
    LANES,
    at_least,
    largest,
    load,
    load_half,
    load_one,
    load_word,
    splat,
    store,
    store_bf16,
    store_one,
    store_word,
    total,
)
from mabert.ops.cpu.tile import TILE_COLUMNS, TILE_ROWS, tile_product, tile_product_bf16
from mabert.ops.layout import readable

QUERIES = 8 * TILE_ROWS
"""Rows of a block of scores."""

KEYS = 8 * TILE_COLUMNS
"""Columns of a block of scores."""

_JOBS_PER_THREAD = 8
_VECTOR = 4 * LANES
_PANEL = 4 * TILE_COLUMNS
_QUERY, _KEY, _VALUE, _MASK, _OUT = range(5)
_LOWEST = float32(-np.inf)
_LEAST = float32(np.finfo(np.float32).min)  # infinite scores leave no NaN behind when it is what they are compared to


@njit
def _pack_keys(tensor: Any, row: int, offset: int, keys: Any, count: int, words: int, target: int) -> None:
    """Turn keys into panels: for each word along the head, that word of neighbouring keys; zeros past the last key."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for j in range(-(-count // TILE_COLUMNS) * TILE_COLUMNS):
        column = target + (j // TILE_COLUMNS) * words * _PANEL + 4 * (j % TILE_COLUMNS)
        if j < count:
            key = source + keys[j] * tensor[STEP]
            for w in range(words):
                store_word(column + w * _PANEL, load_word(key + 4 * w))
        else:
            for w in range(words):
                store_word(column + w * _PANEL, 0)


@njit
def _pack_values(tensor: Any, row: int, offset: int, keys: Any, count: int, size: int, depth: int, target: int) -> None:
    """Turn values into panels of neighbouring channels: a word for each key, or for two keys in bfloat16."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for d in range(depth):
        if tensor[BF16]:
            first = source + keys[2 * d] * tensor[STEP]
            second = source + keys[min(2 * d + 1, count - 1)] * tensor[STEP]
            paired = 2 * d + 1 < count
            for c in range(size):
                word = load_half(first + 2 * c)
                if paired:
                    word |= load_half(second + 2 * c) << 16
                store_word(target + ((c // TILE_COLUMNS) * depth + d) * _PANEL + 4 * (c % TILE_COLUMNS), word)
        else:
            only = source + keys[d] * tensor[STEP]
            for c in range(size):
                place = target + ((c // TILE_COLUMNS) * depth + d) * _PANEL + 4 * (c % TILE_COLUMNS)
                store_word(place, load_word(only + 4 * c))


@njit
def _pack_queries(
    tensor: Any, row: int, offset: int, first: int, rows: int, padded: int, words: int, target: int
) -> None:
    """Copy neighbouring queries side by side, zeros past the last one."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for r in range(padded):
        query = source + (first + r) * tensor[STEP]
        for w in range(words):
            store_word(target + 4 * (r * words + w), load_word(query + 4 * w) if r < rows else 0)


@njit
def _multiply(bf16: int, left: int, left_row: int, panel: int, depth: int, result: int, row: int, keep: bool) -> None:
    if bf16:
        tile_product_bf16(left, left_row, panel, depth, result, row, keep)
    else:
        tile_product(left, left_row, panel, depth, result, row, keep)


@njit
def _weigh(
    scores: int,
    weights: int,
    columns: int,
    count: int,
    scale: Any,
    bf16: int,
    peak: int,
    sums: int,
    out: int,
    size: int,
) -> None:
    """Turn one row of scores into weights relative to the largest so far, and bring what was summed up to that."""
    for c in range(count, columns):
        store_one(scores + 4 * c, _LOWEST)
    highest = splat(_LOWEST)
    for i in range(0, 4 * columns, _VECTOR):
        highest = at_least(load(scores + i), highest)
    before = load_one(peak)
    now = max(before, largest(highest) * scale)
    store_one(peak, now)
    shift = splat(now)
    fade = exp2(splat(before) - shift)
    share = splat(float32(0.0))
    for i in range(0, 4 * columns, _VECTOR):
        weight = exp2(load(scores + i) * splat(scale) - shift)
        share = share + weight
        if bf16:
            store_bf16(weights + i // 2, weight)
        else:
            store(weights + i, weight)
    store(sums, load(sums) * fade + share)
    for i in range(0, 4 * size, _VECTOR):
        store(out + i, load(out + i) * fade)


@njit
def _divide(out: int, size: int, sums: int, count: int) -> None:
    """Divide what was summed up by the sum of its weights; without any key it is zero already."""
    if count > 0:
        inverse = splat(float32(1.0)) / splat(total(load(sums)))
        for i in range(0, 4 * size, _VECTOR):
            store(out + i, load(out + i) * inverse)


@njit
def _attention_job(
    job: int,
    scratch: int,
    tensors: Any,
    pieces: Any,
    groups: Any,
    longest: int,
    heads: int,
    size: int,
    scale: float,
) -> None:
    group, head = job // heads, job % heads
    bf16 = tensors[_QUERY, BF16]
    per_word = 1 + bf16
    words = size // per_word
    bytes_of = 4 // per_word
    offset = head * size * bytes_of
    factor = float32(scale * LOG2_E)
    panels = -(-longest // TILE_COLUMNS)

    query = scratch
    scores = query + QUERIES * 4 * words
    weights = scores + QUERIES * 4 * KEYS
    out = weights + QUERIES * 4 * KEYS
    sums = out + QUERIES * 4 * size
    peaks = sums + QUERIES * _VECTOR
    packed_keys = peaks + QUERIES * 4
    packed_values = packed_keys + panels * words * _PANEL
    keys = np.empty(longest, np.int64)
    row, start, count, depth = -1, -1, 0, 0

    for p in range(groups[group], groups[group + 1]):
        piece = pieces[p]
        if piece[PIECE_ROW] != row or piece[PIECE_START] != start:
            row, start = piece[PIECE_ROW], piece[PIECE_START]
            count = find_valid(tensors[_MASK], row, start, piece[PIECE_END], keys)
            depth = -(-count // per_word)
            _pack_keys(tensors[_KEY], row, offset, keys, count, words, packed_keys)
            _pack_values(tensors[_VALUE], row, offset, keys, count, size, depth, packed_values)
        for first in range(piece[PIECE_FIRST], piece[PIECE_LAST], QUERIES):
            rows = min(QUERIES, piece[PIECE_LAST] - first)
            tiles = -(-rows // TILE_ROWS)
            _pack_queries(tensors[_QUERY], row, offset, first, rows, tiles * TILE_ROWS, words, query)
            for r in range(tiles * TILE_ROWS):
                store_one(peaks + 4 * r, _LEAST)
            clear(sums, tiles * TILE_ROWS * _VECTOR)
            clear(out, tiles * TILE_ROWS * 4 * size)
            for key in range(0, count, KEYS):
                taken = min(KEYS, count - key)
                columns = -(-taken // TILE_COLUMNS) * TILE_COLUMNS
                for panel in range(columns // TILE_COLUMNS):
                    of_panel = packed_keys + (key // TILE_COLUMNS + panel) * words * _PANEL
                    for tile in range(tiles):
                        left = query + tile * TILE_ROWS * 4 * words
                        result = scores + tile * TILE_ROWS * 4 * KEYS + panel * _PANEL
                        _multiply(bf16, left, 4 * words, of_panel, words, result, 4 * KEYS, False)
                for r in range(rows):
                    _weigh(
                        scores + r * 4 * KEYS,
                        weights + r * bytes_of * KEYS,
                        columns,
                        taken,
                        factor,
                        bf16,
                        peaks + 4 * r,
                        sums + r * _VECTOR,
                        out + r * 4 * size,
                        size,
                    )
                for panel in range(size // TILE_COLUMNS):
                    of_panel = packed_values + (panel * depth + key // per_word) * _PANEL
                    for tile in range(tiles):
                        left = weights + tile * TILE_ROWS * bytes_of * KEYS
                        result = out + tile * TILE_ROWS * 4 * size + panel * _PANEL
                        _multiply(bf16, left, bytes_of * KEYS, of_panel, -(-taken // per_word), result, 4 * size, True)
            for r in range(rows):
                _divide(out + r * 4 * size, size, sums + r * _VECTOR, count)
                emit(out + r * 4 * size, size, tensors[_OUT], row, first + r, head * size)


def _attention(calls: int, scratch: int, *args: Any) -> None:
    job = claim(calls)
    while job >= 0:
        _attention_job(job, scratch, *args)
        finish(calls)
        job = claim(calls)
    linger(calls)


_kernel = Kernel(_attention)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Return the attention's output, before its projection."""
    rows, time, width = query.shape
    size = width // heads
    out = fresh(query.shape, query.dtype)
    amx = query.dtype == torch.bfloat16 and may_use_amx()
    cuts = -(-_JOBS_PER_THREAD * torch.get_num_threads() // max(1, rows * heads))
    steps = max(1, -(-time // (cuts * QUERIES))) * QUERIES
    pieces, groups = plan_pieces(cu_seqlens, rows, time, steps)
    longest = int((pieces[:, PIECE_END] - pieces[:, PIECE_START]).max()) if len(pieces) else 0
    alive = [readable(tensor) for tensor in (query, key, value, mask)]
    panels = -(-longest // TILE_COLUMNS)
    words = size * query.element_size() // 4
    per_row = 4 * words + 8 * KEYS + 4 * size + _VECTOR + 4
    scratch = QUERIES * per_row + 2 * panels * TILE_COLUMNS * 4 * words
    run(
        attention_amx.kernel if amx else _kernel,
        (len(groups) - 1) * heads,
        attention_amx.scratch_bytes(longest, size) if amx else scratch,
        describe(*alive, out),
        pieces,
        groups,
        longest,
        heads,
        size,
        scale,
    )
    return out
