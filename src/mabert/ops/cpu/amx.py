"""Tiles of bfloat16 on Intel's matrix unit (AMX), which a process must request from the system."""

import ctypes
import functools
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from mabert.ops.cpu.simd import HAS_AMX, LANES, instruction
from mabert.ops.cpu.tile import TILE_COLUMNS

AMX_ROWS = 32
"""Rows of a tile of the result: two of the processor's tiles, above two more."""

AMX_DEPTH = 16
"""Words along the depth in one of the processor's tiles; such a product's depth is a multiple of it."""

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_TILE_DATA = 18

_ADDRESS = ir.IntType(64)
_BYTE = ir.IntType(8)
_SIDE = 16
"""Rows of one AMX tile, 64 bytes each."""


@functools.cache
def may_use_amx() -> bool:
    """Requests AMX's registers from Linux, for all threads from now on; tells whether the kernels may use them.

    The system ends a process that uses them without a request (Linux, Documentation/arch/x86/xstate.rst).
    """
    if not HAS_AMX or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA) == 0


def _shapes() -> bytearray:
    """The 64 bytes of a tile configuration: palette 1, all eight tiles of full size."""
    shapes = bytearray(64)
    shapes[0] = 1
    for tile in range(8):
        shapes[16 + 2 * tile] = 4 * _SIDE
        shapes[48 + tile] = _SIDE
    return shapes


def _call(builder: Any, name: str, *args: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), args)


@instruction(types.void())
def begin_tiles(builder: Any) -> None:
    """Configures this thread's tiles, before its first `tile_product_amx`; only if `may_use_amx` is true."""
    shapes = cgutils.global_constant(builder, "amx_shapes", cgutils.make_bytearray(_shapes()))
    _call(builder, "ldtilecfg", builder.bitcast(shapes, ir.PointerType()))


@instruction(types.void())
def end_tiles(builder: Any) -> None:
    """Releases the tiles, so that the system need not save them with the thread."""
    _call(builder, "tilerelease")


@instruction(types.void(*[types.int64] * 6, types.boolean))
def tile_product_amx(
    builder: Any, left: Any, left_step: Any, panel: Any, depth: Any, result: Any, result_row: Any, keep: Any
) -> None:
    """Multiplies like `tile_product_bf16`, for ``AMX_ROWS`` rows and a depth that is a multiple of ``AMX_DEPTH``.

    The left matrix holds ``AMX_DEPTH`` words of all rows, row by row, and ``left_step`` bytes further the next
    ``AMX_DEPTH``: the processor reads tiles fastest if their rows are one cache line each, without gaps.
    """
    sides = [(row, column) for row in range(2) for column in range(2)]

    def tile(number: int) -> Any:
        return ir.Constant(_BYTE, number)

    def access(name: str, number: int, address: Any, stride: Any) -> None:
        _call(builder, name, tile(number), builder.inttoptr(address, ir.PointerType()), stride)

    def shifted(base: Any, stride: Any, rows: int, more: int) -> Any:
        below = builder.mul(stride, ir.Constant(_ADDRESS, rows))
        return builder.add(base, builder.add(below, ir.Constant(_ADDRESS, more)))

    places = [shifted(result, result_row, _SIDE * row, 4 * LANES * column) for row, column in sides]
    left_row, panel_row = (ir.Constant(_ADDRESS, 4 * words) for words in (AMX_DEPTH, TILE_COLUMNS))
    with builder.if_else(builder.icmp_signed("!=", keep, ir.Constant(keep.type, 0))) as (then, otherwise):
        with then:
            for number, place in enumerate(places):
                access("tileloadd64", number, place, result_row)
        with otherwise:
            for number in range(4):
                _call(builder, "tilezero", tile(number))
    blocks = builder.udiv(depth, ir.Constant(_ADDRESS, AMX_DEPTH))
    with cgutils.for_range(builder, blocks, intp=_ADDRESS) as loop:
        along = builder.mul(loop.index, left_step)
        down = builder.mul(loop.index, ir.Constant(_ADDRESS, 4 * TILE_COLUMNS * AMX_DEPTH))
        for side in range(2):
            of_left = shifted(builder.add(left, along), left_row, _SIDE * side, 0)
            access("tileloadd64", 4 + side, of_left, left_row)
            of_panel = shifted(builder.add(panel, down), panel_row, 0, 4 * LANES * side)
            access("tileloadd64", 6 + side, of_panel, panel_row)
        for number, (row, column) in enumerate(sides):
            _call(builder, "tdpbf16ps", tile(number), tile(4 + row), tile(6 + column))
    for number, place in enumerate(places):
        access("tilestored64", number, place, result_row)
