"""Softmax attention for inference, one block of queries against one block of keys at a time.

One job carries some queries of one head through all keys of their sequence. Keys and values are packed first, and only
valid ones, so masked ones cost nothing and padding cannot change a bit of the result. Scores, maxima, sums and the
output are float32; for bfloat16 inputs the weights are rounded to bfloat16 for the second product, as in torch's
kernels. The running maximum and sum are those of Milakov and Gimelshein (2018), as in FlashAttention (Dao et al.,
2022).

With a window, panels of keys that no query of a block reaches are skipped. Blocks of keys begin at the same keys
whichever queries share a block, and a finite value outside a query's window adds zero to its sums. So here too, no bit
of a query's result depends on its neighbours.
"""

from typing import Any

import numpy as np
import torch
from numba import float32, njit
from torch import Tensor

from mabert.ops.cpu import attention_amx
from mabert.ops.cpu.amx import may_use_amx
from mabert.ops.cpu.blocks import LOG2_E, clear, exp2
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.plan import PIECE_END, PIECE_FIRST, PIECE_LAST, PIECE_ROW, PIECE_START, plan_pieces
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
from mabert.ops.cpu.team import share
from mabert.ops.cpu.tile import TILE_COLUMNS, TILE_ROWS, tile_product, tile_product_bf16
from mabert.ops.layout import readable

QUERIES = 8 * TILE_ROWS
"""Rows of a block of scores."""

KEYS = 8 * TILE_COLUMNS
"""Columns of a block of scores."""

_WINDOWED_QUERIES = 2 * TILE_ROWS  # fewer queries per block compute fewer scores outside their windows
_JOBS_PER_THREAD = 8
_VECTOR = 4 * LANES
_PANEL = 4 * TILE_COLUMNS
_QUERY, _KEY, _VALUE, _MASK, _OUT = range(5)
_LOWEST = float32(-np.inf)
_LEAST = float32(np.finfo(np.float32).min)  # initial maximum; -inf would turn infinite scores into NaN


@njit
def _pack_keys(
    tensor: Any, row: int, offset: int, keys: Any, begin: int, end: int, count: int, words: int, target: int
) -> None:
    """Packs the keys from ``begin`` to ``end`` into panels: for each word along the head, that word of neighbouring
    keys, with zeros past the last of all ``count`` keys."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    for j in range(begin, -(-end // TILE_COLUMNS) * TILE_COLUMNS):
        column = target + (j // TILE_COLUMNS) * words * _PANEL + 4 * (j % TILE_COLUMNS)
        if j < count:
            key = source + keys[j] * tensor[STEP]
            for w in range(words):
                store_word(column + w * _PANEL, load_word(key + 4 * w))
        else:
            for w in range(words):
                store_word(column + w * _PANEL, 0)


@njit
def _pack_values(
    tensor: Any, row: int, offset: int, keys: Any, begin: int, end: int, count: int, size: int, depth: int, target: int
) -> None:
    """Packs the values of the same keys into panels of neighbouring channels, of ``depth`` words: one word per key, or
    per two keys in bfloat16."""
    source = tensor[ADDRESS] + row * tensor[ROW] + offset
    per_word = 1 + tensor[BF16]
    for d in range(begin // per_word, -(-end // per_word)):
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
    """Copies neighbouring queries side by side, with zeros past the last one."""
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
def _hide(scores: int, begin: int, end: int) -> None:
    """Sets the scores from one column to another to -inf, so that their weight is zero."""
    whole = begin + (end - begin) // LANES * LANES
    for c in range(begin, whole, LANES):
        store(scores + 4 * c, splat(_LOWEST))
    for c in range(whole, end):
        store_one(scores + 4 * c, _LOWEST)


@njit
def _weigh(
    scores: int,
    weights: int,
    begin: int,
    first: int,
    last: int,
    end: int,
    scale: Any,
    bf16: int,
    peak: int,
    sums: int,
    out: int,
    size: int,
) -> None:
    """Turns the scores of one row, columns ``begin`` to ``end``, into weights relative to the largest score so far, and
    rescales earlier sums to it. The row looks only at the keys from ``first`` to ``last``."""
    _hide(scores, begin, first)
    _hide(scores, last, end)
    highest = splat(_LOWEST)
    for i in range(4 * begin, 4 * end, _VECTOR):
        highest = at_least(load(scores + i), highest)
    before = load_one(peak)
    now = max(before, largest(highest) * scale)
    store_one(peak, now)
    shift = splat(now)
    fade = exp2(splat(before) - shift)
    share = splat(float32(0.0))
    for i in range(4 * begin, 4 * end, _VECTOR):
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
def _divide(out: int, size: int, sums: int, seen: bool) -> None:
    """Divides the weighted sum by the sum of weights; if no key was seen, it is zero already."""
    if seen:
        inverse = splat(float32(1.0)) / splat(total(load(sums)))
        for i in range(0, 4 * size, _VECTOR):
            store(out + i, load(out + i) * inverse)


@njit
def _reached(keys: Any, count: int, first: int, last: int, reach: int) -> tuple[int, int]:
    """Finds the range of keys that the steps from ``first`` to ``last`` look at; all keys without a window."""
    if reach < 0:
        return 0, count
    return int(np.searchsorted(keys[:count], first - reach)), int(np.searchsorted(keys[:count], last + reach))


@njit
def _reached_by_each(keys: Any, count: int, first: int, rows: int, reach: int, lows: Any, highs: Any) -> None:
    """Finds the range of keys for each of several neighbouring steps."""
    low, high = _reached(keys, count, first, first, reach)
    for r in range(rows):
        if reach >= 0:
            while low < count and keys[low] < first + r - reach:
                low += 1
            while high < count and keys[high] <= first + r + reach:
                high += 1
        lows[r], highs[r] = low, high


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
    reach: int,
    block: int,
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
    lows, highs = np.empty(block, np.int64), np.empty(block, np.int64)

    for p in range(groups[group], groups[group + 1]):
        piece = pieces[p]  # a group has at most one piece of a sequence
        row = piece[PIECE_ROW]
        count = find_valid(tensors[_MASK], row, piece[PIECE_START], piece[PIECE_END], keys)
        depth = -(-count // per_word)
        low, high = _reached(keys, count, piece[PIECE_FIRST], piece[PIECE_LAST], reach)
        low -= low % TILE_COLUMNS
        _pack_keys(tensors[_KEY], row, offset, keys, low, high, count, words, packed_keys)
        _pack_values(tensors[_VALUE], row, offset, keys, low, high, count, size, depth, packed_values)
        for first in range(piece[PIECE_FIRST], piece[PIECE_LAST], block):
            rows = min(block, piece[PIECE_LAST] - first)
            tiles = -(-rows // TILE_ROWS)
            _pack_queries(tensors[_QUERY], row, offset, first, rows, tiles * TILE_ROWS, words, query)
            for r in range(tiles * TILE_ROWS):
                store_one(peaks + 4 * r, _LEAST)
            clear(sums, tiles * TILE_ROWS * _VECTOR)
            clear(out, tiles * TILE_ROWS * 4 * size)
            _reached_by_each(keys, count, first, rows, reach, lows, highs)
            low, high = lows[0], highs[rows - 1]
            for key in range(low // KEYS * KEYS, high, KEYS):
                begin = max(0, low - key) // TILE_COLUMNS * TILE_COLUMNS
                taken = min(KEYS, high - key)
                end = -(-taken // TILE_COLUMNS) * TILE_COLUMNS
                for panel in range(begin // TILE_COLUMNS, end // TILE_COLUMNS):
                    of_panel = packed_keys + (key // TILE_COLUMNS + panel) * words * _PANEL
                    for tile in range(tiles):
                        left = query + tile * TILE_ROWS * 4 * words
                        result = scores + tile * TILE_ROWS * 4 * KEYS + panel * _PANEL
                        _multiply(bf16, left, 4 * words, of_panel, words, result, 4 * KEYS, False)
                for r in range(rows):
                    _weigh(
                        scores + r * 4 * KEYS,
                        weights + r * bytes_of * KEYS,
                        begin,
                        min(max(begin, lows[r] - key), end),
                        max(begin, min(highs[r] - key, taken)),
                        end,
                        factor,
                        bf16,
                        peaks + 4 * r,
                        sums + r * _VECTOR,
                        out + r * 4 * size,
                        size,
                    )
                deep = -(-taken // per_word) - begin // per_word
                for panel in range(size // TILE_COLUMNS):
                    of_panel = packed_values + (panel * depth + (key + begin) // per_word) * _PANEL
                    for tile in range(tiles):
                        left = weights + tile * TILE_ROWS * bytes_of * KEYS + begin * bytes_of
                        result = out + tile * TILE_ROWS * 4 * size + panel * _PANEL
                        _multiply(bf16, left, bytes_of * KEYS, of_panel, deep, result, 4 * size, True)
            for r in range(rows):
                _divide(out + r * 4 * size, size, sums + r * _VECTOR, highs[r] > lows[r])
                emit(out + r * 4 * size, size, tensors[_OUT], row, first + r, head * size)


@Kernel
def _attention(call: int, *args: Any) -> None:
    share(_attention_job, call, args)


def attention(*inputs: Any) -> Tensor:
    """Returns the attention's output, before its projection; takes the arguments of `mabert.ops.library.ATTENTION`."""
    query, key, value, heads, scale, mask, cu_seqlens, window = inputs
    rows, time, width = query.shape
    size = width // heads
    out = query.new_empty(query.shape)
    amx = query.dtype == torch.bfloat16 and window is None and may_use_amx()
    limits = () if amx else (-1, QUERIES) if window is None else (min(window, time), _WINDOWED_QUERIES)
    cuts = -(-_JOBS_PER_THREAD * torch.get_num_threads() // max(1, rows * heads))
    steps = max(1, -(-time // (cuts * QUERIES))) * QUERIES
    pieces, groups = plan_pieces(cu_seqlens, rows, time, steps)
    longest = int((pieces[:, PIECE_END] - pieces[:, PIECE_START]).max()) if len(pieces) else 0
    alive = [readable(tensor) for tensor in (query, key, value, mask)]
    panels = -(-longest // TILE_COLUMNS)
    words = size * query.element_size() // 4
    per_row = 4 * words + 8 * KEYS + 4 * size + _VECTOR + 4
    scratch = QUERIES * per_row + 2 * panels * TILE_COLUMNS * 4 * words
    scratch = attention_amx.scratch_bytes(longest, size) if amx else scratch
    jobs, tensors = (len(groups) - 1) * heads, describe(*alive, out)
    kernel = attention_amx.attention_amx if amx else _attention
    kernel.run(jobs, scratch, tensors, pieces, groups, longest, heads, size, scale, *limits)
    return out
