"""Running the jobs of one call on as many threads as torch uses, without a second OpenMP.

Kernels release the interpreter lock. The calling thread works too, so a call never waits for a thread that is busy with
another one, and several Python threads may call at once. Which thread does which job decides nothing: jobs write to
places of their own.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mabert.ops.cpu.kernel import FINISHED, JOBS, NEXT, Kernel
from mabert.ops.cpu.memory import count_scratch

_ALIGNMENT = 64
_NEVER = 1 << 62  # more jobs than there are


class _Call:
    """The jobs of one call, claimed one by one by whoever comes to work."""

    def __init__(self, kernel: Callable[..., None], jobs: int, scratch: int, args: tuple[Any, ...]) -> None:
        self._kernel, self._scratch, self._args = kernel, scratch, args
        self._shared = np.array([0, jobs, 0], np.int64)
        self._changed = threading.Condition()
        self._at_work: set[int] = set()
        self._closed = False
        self._error: BaseException | None = None

    def work(self) -> None:
        me = threading.get_ident()
        try:
            with self._changed:
                if self._closed:
                    return
                self._at_work.add(me)
            self._kernel(self._shared.ctypes.data, _scratch_address(self._scratch), *self._args)
        except BaseException as error:
            self._error = error
            self._shared[NEXT] = _NEVER
        finally:
            with self._changed:
                self._at_work.discard(me)
                self._changed.notify_all()

    def finish(self) -> None:
        """Let nobody in any more, wait for the last job, and raise what went wrong.

        Kernels write to memory that the caller frees, so nothing that a signal raises may cut the waiting short.
        """
        interrupt: BaseException | None = None
        done = False
        while not done:
            try:
                with self._changed:
                    self._closed = True
                    # A thread that has finished the last job may still be on its way back to the interpreter.
                    finished = self._error is None and self._shared[FINISHED] == self._shared[JOBS]
                    done = finished or not self._at_work - {threading.get_ident()}
                    if not done:
                        self._changed.wait()
            except BaseException as error:
                interrupt = error
        failure = interrupt or self._error
        if failure is not None:
            raise failure


class _Pool:
    """Daemon threads waiting for calls; grows to the number asked for and never shrinks."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()

    def help_with(self, call: _Call, helpers: int) -> None:
        with self._lock:
            for number in range(self._threads, helpers):
                threading.Thread(target=self._serve, name=f"mabert-{number}", daemon=True).start()
            self._threads = max(self._threads, helpers)
        for _ in range(helpers):
            self._calls.put(call)

    def _serve(self) -> None:
        while True:
            self._calls.get().work()


_pool = _Pool()
_local = threading.local()


def _start_afresh() -> None:
    """Forget the parent's threads: they do not exist in a forked child."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def _scratch_address(size: int) -> int:
    """Return the address of at least ``size`` bytes of this thread's own, on a cache line."""
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.nbytes < size + _ALIGNMENT:
        buffer = _local.buffer = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    return -(-buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT


def run(kernel: Kernel, jobs: int, scratch: int, *args: Any) -> None:
    """Run a kernel on every job below ``jobs``, on several threads, and wait for all.

    Args:
        kernel: The kernel.
        jobs: How many jobs there are.
        scratch: Bytes of working memory that each thread needs.
        *args: Passed on to every job; what they point to must stay alive until this returns.
    """
    compiled = kernel.prepared(*args)
    if jobs == 0:
        return
    call = _Call(compiled, jobs, scratch, args)
    helpers = min(torch.get_num_threads(), jobs) - 1
    count_scratch((1 + helpers) * (scratch + _ALIGNMENT))
    try:
        if helpers > 0:
            _pool.help_with(call, helpers)
        call.work()
    finally:
        call.finish()
