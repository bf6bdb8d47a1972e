"""The inner product of blocked matrix products: a tile of the result stays in registers along the whole depth.

Numbers are handled in 32-bit words along the depth: one float32, or two neighbouring bfloat16, whose products are added
up in float32. The left matrix is stored row by row. The right one is packed in panels: for each step along the depth,
the words of ``TILE_COLUMNS`` neighbouring columns.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from mabert.ops.cpu.simd import HAS_BF16, LANES, BFloatType, instruction

TILE_ROWS = 12
TILE_VECTORS = 2
TILE_COLUMNS = TILE_VECTORS * LANES

_FLOAT = ir.FloatType()
_WORD = ir.IntType(32)
_ADDRESS = ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_WORDS = ir.VectorType(_WORD, LANES)


def _pointer(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(base, offset), kind.as_pointer())


def _splat_word(builder: Any, word: Any) -> Any:
    single = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), word, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(single, ir.Constant(_WORDS, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))


def _add_product(builder: Any, total: Any, left: Any, right: Any, bf16: bool) -> Any:
    """Adds the products of two vectors of words."""
    if bf16 and HAS_BF16:
        pairs = ir.VectorType(BFloatType(), 2 * LANES)
        kind = ir.FunctionType(_FLOATS, [_FLOATS, pairs, pairs])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [total, builder.bitcast(left, pairs), builder.bitcast(right, pairs)])
    factors = [_halves(builder, side) if bf16 else [builder.bitcast(side, _FLOATS)] for side in (left, right)]
    for one, other in zip(*factors, strict=True):
        total = builder.fadd(total, builder.fmul(one, other, flags=("contract",)), flags=("contract",))
    return total


def _halves(builder: Any, words: Any) -> list[Any]:
    """Widens both bfloat16 of each word to float32, of which they are the upper half."""
    low = builder.shl(words, ir.Constant(_WORDS, [16] * LANES))
    high = builder.and_(words, ir.Constant(_WORDS, [0xFFFF0000] * LANES))
    return [builder.bitcast(half, _FLOATS) for half in (low, high)]


def _tile_product(bf16: bool) -> Any:
    @instruction(types.void(*[types.int64] * 6, types.boolean))
    def product(
        builder: Any, left: Any, left_row: Any, panel: Any, depth: Any, result: Any, result_row: Any, keep: Any
    ) -> None:
        rows, vectors = range(TILE_ROWS), range(TILE_VECTORS)
        starts = [builder.add(left, builder.mul(left_row, ir.Constant(_ADDRESS, r))) for r in rows]
        places = [
            _pointer(
                builder,
                result,
                builder.add(builder.mul(result_row, ir.Constant(_ADDRESS, r)), ir.Constant(_ADDRESS, 4 * LANES * v)),
                _FLOATS,
            )
            for r in rows
            for v in vectors
        ]
        # Variables that LLVM turns into registers.
        totals = [cgutils.alloca_once(builder, _FLOATS) for _ in places]
        with builder.if_else(builder.icmp_signed("!=", keep, ir.Constant(keep.type, 0))) as (then, otherwise):
            with then:
                for total, place in zip(totals, places, strict=True):
                    builder.store(builder.load(place, align=4), total)
            with otherwise:
                for total in totals:
                    builder.store(ir.Constant(_FLOATS, [0.0] * LANES), total)
        with cgutils.for_range(builder, depth, intp=_ADDRESS) as loop:
            at = builder.mul(loop.index, ir.Constant(_ADDRESS, 4 * TILE_COLUMNS))
            columns = [
                builder.load(
                    _pointer(builder, panel, builder.add(at, ir.Constant(_ADDRESS, 4 * LANES * v)), _WORDS), align=4
                )
                for v in vectors
            ]
            step = builder.mul(loop.index, ir.Constant(_ADDRESS, 4))
            for r in rows:
                word = _splat_word(builder, builder.load(_pointer(builder, starts[r], step, _WORD), align=4))
                for v in vectors:
                    total = totals[r * TILE_VECTORS + v]
                    builder.store(_add_product(builder, builder.load(total), word, columns[v], bf16), total)
        for total, place in zip(totals, places, strict=True):
            builder.store(builder.load(total), place, align=4)

    return product


tile_product = _tile_product(bf16=False)
tile_product_bf16 = _tile_product(bf16=True)
"""``(left, left_row, panel, depth, result, result_row, keep)``: a tile of ``TILE_ROWS`` by ``TILE_COLUMNS`` float32.

``left_row`` and ``result_row`` are the bytes from one row to the next, ``depth`` counts words, and ``keep`` adds to the
numbers at ``result``.
"""
