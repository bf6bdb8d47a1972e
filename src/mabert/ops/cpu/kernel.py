"""Compiling a kernel on its first use, once for each machine, and telling the person what takes a while."""

import logging
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from mabert.ops import layout
from mabert.ops.cpu.simd import add_atomically, load_shared

logger = logging.getLogger(__name__)

_LINGER = 1 << 16  # looks, some 100 microseconds
_NOTICEABLE = 1.0  # seconds; loading a kernel from the cache stays below it


def _fingerprint() -> str:
    sources = [Path(layout.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    return f"{zlib.crc32(b''.join(source.read_bytes() for source in sources)):08x}"


BUILD = _fingerprint()
"""Changes with any source of the kernels.

Numba's cache looks only at the file of the kernel itself. Each kernel carries this in its qualified name, under which
the cache files it, so no stale one is loaded.
"""

NEXT, JOBS, FINISHED = range(3)
"""Places in the three numbers that all threads at work on one call share: see `claim`, `finish` and `linger`."""


@njit
def claim(calls: int) -> int:
    """Take the next job of a call; -1 where none is left. ``calls`` is the address of the shared numbers."""
    job = add_atomically(calls + 8 * NEXT, 1)
    return job if job < load_shared(calls + 8 * JOBS) else -1


@njit
def finish(calls: int) -> None:
    """Say that a job is done, and with it all it wrote."""
    add_atomically(calls + 8 * FINISHED, 1)


@njit
def linger(calls: int) -> None:
    """Wait for the last jobs of other threads, but not long: it is quicker than being woken up by them."""
    for _ in range(_LINGER):
        if load_shared(calls + 8 * FINISHED) >= load_shared(calls + 8 * JOBS):
            return


class Kernel:
    """A function to be compiled on first use, without the interpreter lock, cached on disk where that is possible.

    Args:
        function: What to compile, of this shape (Numba caches no function that is given the job as a variable)::

            def kernel(calls, scratch, *args):
                job = claim(calls)
                while job >= 0:
                    do(job, scratch, *args)
                    finish(calls)
                    job = claim(calls)
                linger(calls)
    """

    _announced = False
    _lock = threading.Lock()

    def __init__(self, function: Callable[..., None]) -> None:
        function.__qualname__ += f"_{BUILD}"
        self._function = function
        self._ready: Callable[..., None] | None = None

    def prepared(self, *args: Any) -> Callable[..., None]:
        """Return the compiled function, compiling it for arguments like these if that has not been done."""
        if self._ready is None:
            with Kernel._lock:
                if self._ready is None:
                    self._ready = self._compile(args)
        return self._ready

    def _compile(self, args: tuple[Any, ...]) -> Callable[..., None]:
        started = time.perf_counter()
        notice = threading.Timer(_NOTICEABLE, self._announce)
        notice.daemon = True
        notice.start()
        try:
            dispatcher = self._dispatcher()
            no_jobs = np.zeros(3, np.int64)
            try:
                dispatcher(no_jobs.ctypes.data, 0, *args)
            except OSError as error:  # Numba keeps what it compiled while it is first called
                dispatcher = self._unkept(error)
                dispatcher(no_jobs.ctypes.data, 0, *args)
        finally:
            notice.cancel()
        seconds = time.perf_counter() - started
        if seconds > _NOTICEABLE:
            logger.warning("compiled %s in %.1f s", self._function.__name__, seconds)
        return dispatcher

    def _dispatcher(self) -> Callable[..., None]:
        try:
            return njit(nogil=True, cache=True)(self._function)
        except RuntimeError as error:
            return self._unkept(error)

    def _unkept(self, error: Exception) -> Callable[..., None]:
        logger.warning("the compiled kernels cannot be kept on disk (%s); set NUMBA_CACHE_DIR to a folder", error)
        return njit(nogil=True)(self._function)

    @staticmethod
    def _announce() -> None:
        if not Kernel._announced:
            Kernel._announced = True
            logger.warning("compiling the CPU kernels on their first use on this machine; later runs find them cached")
