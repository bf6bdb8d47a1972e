"""Shares the jobs of one call among torch's own OpenMP threads.

Kernels run on the same threads as torch's products, so threads do not compete and the interpreter need not wake any.
Threads claim jobs one by one; which thread does which job has no effect, since each job writes to its own memory.
"""

import ctypes
import os
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mabert.ops.cpu.simd import add_atomically, load_shared

_ALIGNMENT = 64  # bytes of a cache line
_NEXT, _JOBS, _THREAD, _SCRATCH, _SCRATCH_SIZE, _FAILED, _FORK, _THREADS = range(8)

_INT64, _INT32 = ir.IntType(64), ir.IntType(32)
_PART = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
_FORK_TYPE = ir.FunctionType(ir.VoidType(), [_PART.as_pointer(), cgutils.voidptr_t, _INT32, _INT32])


def _address_of_fork() -> int:
    """Returns the address of the function that starts a parallel region in torch's OpenMP; 0 if there is none."""
    function = getattr(ctypes.CDLL(torch._C.__file__), "GOMP_parallel", None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0


_fork = _address_of_fork()


def _stay_alone() -> None:
    """Uses one thread in a forked child: the other OpenMP threads do not exist there, and it would wait for them."""
    global _fork
    _fork = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_alone)


class Call:
    """The numbers that all threads of one call share, in memory that lives as long as this object: the number of jobs,
    the next job, and each thread's ``scratch`` bytes of working memory."""

    def __init__(self, jobs: int, scratch: int) -> None:
        # All threads even for fewer jobs: otherwise OpenMP would end some and restart them for torch's next operation.
        threads = torch.get_num_threads() if jobs > 1 and _fork else 1
        size = -(-scratch // _ALIGNMENT) * _ALIGNMENT
        self._scratch = torch.empty(threads * size + _ALIGNMENT, dtype=torch.uint8, device="cpu")
        place = -(-self._scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        self._numbers = np.array([0, jobs, 0, place, size, 0, _fork if threads > 1 else 0, threads], np.int64)
        self.address = self._numbers.ctypes.data

    def check(self) -> None:
        """Raises RuntimeError if a job failed."""
        if self._numbers[_FAILED]:
            raise RuntimeError("a CPU kernel failed in the middle of its work; its result is lost")


def _take_part(job: Any, call: int, args: Any) -> None:
    """Runs jobs until none is left; every thread of a call runs this."""
    thread = add_atomically(call + 8 * _THREAD, 1)
    scratch = load_shared(call + 8 * _SCRATCH) + thread * load_shared(call + 8 * _SCRATCH_SIZE)
    number = add_atomically(call + 8 * _NEXT, 1)
    while number < load_shared(call + 8 * _JOBS):
        job(number, scratch, *args)
        number = add_atomically(call + 8 * _NEXT, 1)


@intrinsic
def share(typingctx: Any, job: Any, call: Any, args: Any) -> Any:
    """Runs ``job(number, scratch, *args)`` for each number below the call's jobs, on its threads, and waits for all.

    ``call`` is the address of a `Call`.
    """
    signature = types.void(job, types.int64, args)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, call, args = values
        handed = ir.LiteralStructType([call.type, args.type])
        place = cgutils.alloca_once(builder, handed)
        builder.store(call, cgutils.gep_inbounds(builder, place, 0, 0))
        builder.store(args, cgutils.gep_inbounds(builder, place, 0, 1))
        part = _part(context, builder, signature, handed)
        data = builder.bitcast(place, cgutils.voidptr_t)
        fork, threads = (builder.load(_place(builder, call, number)) for number in (_FORK, _THREADS))
        with builder.if_else(cgutils.is_null(builder, fork)) as (alone, together):
            with alone:
                builder.call(part, [data])
            with together:
                threads = builder.trunc(threads, _INT32)
                builder.call(
                    builder.inttoptr(fork, _FORK_TYPE.as_pointer()), [part, data, threads, ir.Constant(_INT32, 0)]
                )
        return context.get_dummy_value()

    return signature, emit


def _place(builder: Any, call: Any, number: int) -> Any:
    address = builder.add(call, ir.Constant(_INT64, 8 * number))
    return builder.inttoptr(address, _INT64.as_pointer())


def _part(context: Any, builder: Any, signature: Any, handed: Any) -> ir.Function:
    """Returns `_take_part` in OpenMP's calling convention: it takes an address of its arguments and returns nothing."""
    compiled = context.compile_subroutine(builder, _take_part, signature)
    part = ir.Function(builder.module, _PART, builder.module.get_unique_name("part"))
    part.linkage = "internal"
    inside = ir.IRBuilder(part.append_basic_block())
    place = inside.bitcast(part.args[0], handed.as_pointer())
    call, args = (inside.load(cgutils.gep_inbounds(inside, place, 0, field)) for field in (0, 1))
    values = [context.get_dummy_value(), call, args]
    status, _ = context.call_internal_no_propagate(inside, compiled.fndesc, signature, values)
    with cgutils.if_unlikely(inside, status.is_error):
        inside.store(ir.Constant(_INT64, 1), _place(inside, call, _FAILED))
    inside.ret_void()
    return part
