"""A vector of float32 as a Numba type, so that kernels state explicitly what one instruction does.

With loops over arrays, LLVM would have to prove that nothing overlaps and choose a vector width; kernels on this type
need neither. Addresses are plain integers, so one compiled kernel serves every combination of strides and of float32
with bfloat16. LLVM splits the vectors to the processor's width.

Products and sums may be contracted to fused multiply-adds; nothing else is relaxed, so NaN and infinity propagate.
"""

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 16
"""Numbers in one vector: one AVX-512 register, two of AVX2, four of NEON."""


def _target_features() -> str:
    """Returns the features that Numba compiles for: those in its settings if set, otherwise this processor's."""
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    return "" if config.CPU_NAME is not None else str(get_host_cpu_features())


HAS_BF16 = "+avx512bf16" in _target_features().split(",")
"""Whether the kernels may compute in bfloat16 (AVX-512 BF16)."""

HAS_AMX = {"+amx-tile", "+amx-bf16", "+avx512bf16"} <= set(_target_features().split(","))
"""Whether the kernels may use tiles of bfloat16 (AMX), if the system permits; see `may_use_amx`."""

_FLOAT = ir.FloatType()
_INT16 = ir.IntType(16)
_INT32 = ir.IntType(32)
_CONTRACT = ("contract",)


class VectorType(types.Type):
    """The Numba type of ``LANES`` float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: VectorType) -> None:
        super().__init__(manager, numba_type, ir.VectorType(_FLOAT, LANES))


vector = VectorType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT32, LANES)
_HALVES = ir.VectorType(_INT16, LANES)


class BFloatType(ir.Type):
    """bfloat16 under LLVM's name; llvmlite has no type for it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloatType)

    def __hash__(self) -> int:
        return hash(BFloatType)


def _register_operator(function: Callable, method: str) -> None:
    @type_callable(function)
    def _(context: Any) -> Callable:
        def typer(left: Any, right: Any) -> Any:
            return vector if left == vector and right == vector else None

        return typer

    @lower_builtin(function, vector, vector)
    def _(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, method)(*args, flags=_CONTRACT)


_register_operator(operator.add, "fadd")
_register_operator(operator.sub, "fsub")
_register_operator(operator.mul, "fmul")
_register_operator(operator.truediv, "fdiv")


def instruction(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function of kernels, with Numba's types of result and arguments, from one that emits its instructions,
    which takes LLVM's builder and the arguments' values, and returns the result's value."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
            result = emit(builder, *args)
            return context.get_dummy_value() if signature.return_type == types.void else result

        @wraps(emit)  # numba reads the names of the arguments, after the first
        def typed(context: Any, *given: Any) -> Any:
            return signature, generate

        return intrinsic(typed)

    return decorate


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _widen(builder: Any, halves: Any, ints: Any, floats: Any) -> Any:
    """Converts bfloat16 bits, which are float32's upper half, to float32."""
    return builder.bitcast(builder.shl(builder.zext(halves, ints), _constant(ints, 16)), floats)


def _constant(kind: Any, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _narrow(builder: Any, floats: Any, ints: Any, halves: Any) -> Any:
    """Rounds float32 to bfloat16 bits, to nearest, ties to even; a NaN stays a NaN."""
    bits = builder.bitcast(floats, ints)
    odd = builder.and_(builder.lshr(bits, _constant(ints, 16)), _constant(ints, 1))
    rounded = builder.add(bits, builder.add(odd, _constant(ints, 0x7FFF)))
    quiet = builder.or_(bits, _constant(ints, 0x00400000))
    chosen = builder.select(builder.fcmp_unordered("uno", floats, floats), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _constant(ints, 16)), halves)


def _narrow_at_once(builder: Any, floats: Any) -> Any:
    """Rounds in one instruction of AVX-512 BF16, which also flushes float32 below 2**-126 to zero."""
    bf16 = ir.VectorType(BFloatType(), LANES)
    kind = ir.FunctionType(bf16, [_VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.cvtneps2bf16.512")
    return builder.bitcast(builder.call(function, [floats]), _HALVES)


def _loader(numba_type: Any, floats: Any, ints: Any, halves: Any, bf16: bool) -> Any:
    @instruction(numba_type(types.int64))
    def load_(builder: Any, address: Any) -> Any:
        if bf16:
            return _widen(builder, builder.load(_pointer(builder, address, halves), align=2), ints, floats)
        return builder.load(_pointer(builder, address, floats), align=4)

    return load_


def _storer(numba_type: Any, ints: Any, halves: Any, bf16: bool) -> Any:
    @instruction(types.void(types.int64, numba_type))
    def store_(builder: Any, address: Any, value: Any) -> None:
        if bf16 and ints is _INTS and HAS_BF16:
            value = _narrow_at_once(builder, value)
        elif bf16:
            value = _narrow(builder, value, ints, halves)
        builder.store(value, _pointer(builder, address, value.type), align=2 if bf16 else 4)

    return store_


@instruction(types.void(*[types.int64] * 3))
def interleave(builder: Any, first: Any, second: Any, target: Any) -> None:
    """Writes ``2 * LANES`` halves from two addresses as words: the first gives the lower half, the second the upper."""
    kind = ir.VectorType(_INT16, 2 * LANES)
    halves = [builder.load(_pointer(builder, address, kind), align=2) for address in (first, second)]
    for part in range(2):
        lanes = [part * LANES + i // 2 + 2 * LANES * (i % 2) for i in range(2 * LANES)]
        words = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_INT32, 2 * LANES), lanes))
        place = builder.add(target, ir.Constant(ir.IntType(64), part * 4 * LANES))
        builder.store(words, _pointer(builder, place, kind), align=4)


@instruction(types.void(*[types.int64] * 4))
def transpose(builder: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
    """Transposes a square of ``LANES`` by ``LANES`` words; row strides are in bytes."""

    def row(base: Any, distance: Any, number: int) -> Any:
        place = builder.add(base, builder.mul(distance, ir.Constant(ir.IntType(64), number)))
        return _pointer(builder, place, _INTS)

    rows = [builder.load(row(source, source_row, number), align=2) for number in range(LANES)]
    apart = LANES // 2
    while apart:  # within each square of twice this side, exchange the two sub-squares off the diagonal
        upper = [i if not i & apart else i - apart + LANES for i in range(LANES)]
        lower = [i + apart if not i & apart else i + LANES for i in range(LANES)]
        for i in range(LANES):
            if not i & apart:
                pair = rows[i], rows[i + apart]
                rows[i], rows[i + apart] = (
                    builder.shuffle_vector(*pair, ir.Constant(_INTS, lanes)) for lanes in (upper, lower)
                )
        apart //= 2
    for number, words in enumerate(rows):
        builder.store(words, row(target, target_row, number), align=4)


@instruction(types.void(types.int64, vector, vector))
def store_pairs(builder: Any, address: Any, low: Any, high: Any) -> None:
    """Writes two vectors as bfloat16, interleaved by lane: ``low`` is the lower half of each 32-bit word.

    Requires AVX-512 BF16.
    """
    halves = ir.VectorType(_INT16, 2 * LANES)
    kind = ir.FunctionType(ir.VectorType(BFloatType(), 2 * LANES), [_VECTOR, _VECTOR])
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    both = builder.bitcast(builder.call(function, [high, low]), halves)
    lanes = [i // 2 + LANES * (i % 2) for i in range(2 * LANES)]
    pairs = builder.shuffle_vector(both, both, ir.Constant(ir.VectorType(_INT32, 2 * LANES), lanes))
    builder.store(pairs, _pointer(builder, address, halves), align=4)


load = _loader(vector, _VECTOR, _INTS, _HALVES, bf16=False)
load_bf16 = _loader(vector, _VECTOR, _INTS, _HALVES, bf16=True)
store = _storer(vector, _INTS, _HALVES, bf16=False)
store_bf16 = _storer(vector, _INTS, _HALVES, bf16=True)
load_one = _loader(types.float32, _FLOAT, _INT32, _INT16, bf16=False)
load_one_bf16 = _loader(types.float32, _FLOAT, _INT32, _INT16, bf16=True)
store_one = _storer(types.float32, _INT32, _INT16, bf16=False)
store_one_bf16 = _storer(types.float32, _INT32, _INT16, bf16=True)


def _integer_loader(bits: int) -> Any:
    @instruction(types.int64(types.int64))
    def load_(builder: Any, address: Any) -> Any:
        value = builder.load(_pointer(builder, address, ir.IntType(bits)), align=min(bits // 8, 2))
        return builder.zext(value, ir.IntType(64))

    return load_


# Each reads an unsigned number of 8, 16 or 32 bits.
load_byte = _integer_loader(8)
load_half = _integer_loader(16)
load_word = _integer_loader(32)  # aligned as bfloat16, since a word may be two of them


@instruction(types.void(types.int64, types.int64))
def store_word(builder: Any, address: Any, value: Any) -> None:
    """Writes the lower 32 bits of a number."""
    builder.store(builder.trunc(value, _INT32), _pointer(builder, address, _INT32), align=4)


@instruction(types.void(types.int64, vector))
def store_bytes(builder: Any, address: Any, shifted: Any) -> None:
    """Writes the lowest 8 bits of the mantissa of each lane."""
    octets = builder.trunc(builder.bitcast(shifted, _INTS), ir.VectorType(ir.IntType(8), LANES))
    builder.store(octets, _pointer(builder, address, octets.type), align=1)


@instruction(types.int64(types.int64, types.int64))
def add_atomically(builder: Any, address: Any, value: Any) -> Any:
    """Adds to a 64-bit number shared by several threads; returns its old value."""
    return builder.atomic_rmw("add", _pointer(builder, address, ir.IntType(64)), value, "seq_cst")


@instruction(types.int64(types.int64))
def load_shared(builder: Any, address: Any) -> Any:
    """Reads a 64-bit number that other threads write, and sees everything they wrote before it (acquire)."""
    return builder.load_atomic(_pointer(builder, address, ir.IntType(64)), "acquire", 8)


def _prefetcher(writing: int) -> Any:
    @instruction(types.void(types.int64))
    def prefetch_(builder: Any, address: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        options = [ir.Constant(_INT32, value) for value in (writing, 2, 1)]  # into the second level, data
        builder.call(function, [builder.inttoptr(address, ir.PointerType()), *options])

    return prefetch_


# Prefetch the cache line at an address, to read or to write it; the address need not be accessible.
prefetch = _prefetcher(writing=0)
prefetch_to_write = _prefetcher(writing=1)


@instruction(vector(types.float32))
def splat(builder: Any, value: Any) -> Any:
    """Repeats one number in all lanes."""
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), _constant(_INTS, 0))


@instruction(types.float32(vector))
def total(builder: Any, value: Any) -> Any:
    """Adds up all lanes in a fixed order, halves onto halves."""
    return _fold(builder, value, builder.fadd)


@instruction(types.float32(vector))
def largest(builder: Any, value: Any) -> Any:
    """Finds the largest of all lanes; a NaN among numbers may be ignored."""
    return _fold(builder, value, lambda low, high: builder.select(builder.fcmp_ordered(">", low, high), low, high))


def _fold(builder: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combines one half of the lanes with the other until one is left."""
    count = LANES
    while count > 1:
        count //= 2
        low, high = (
            builder.shuffle_vector(
                value, value, ir.Constant(ir.VectorType(_INT32, count), list(range(first, first + count)))
            )
            for first in (0, count)
        )
        value = combine(low, high)
    return builder.extract_element(value, ir.Constant(_INT32, 0))


def _chooser(comparison: str) -> Any:
    @instruction(vector(vector, vector))
    def choose(builder: Any, value: Any, limit: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, value, limit), limit, value)

    return choose


at_least = _chooser("<")
at_most = _chooser(">")


@instruction(vector(vector))
def magnitude(builder: Any, value: Any) -> Any:
    """Drops the sign."""
    return builder.bitcast(builder.and_(builder.bitcast(value, _INTS), _constant(_INTS, 0x7FFFFFFF)), _VECTOR)


@instruction(vector(vector))
def power_of_two(builder: Any, shifted: Any) -> Any:
    """Reads the integer in the lowest bits of the mantissa as a biased exponent: 2**(integer - 127)."""
    return builder.bitcast(builder.shl(builder.bitcast(shifted, _INTS), _constant(_INTS, 23)), _VECTOR)
