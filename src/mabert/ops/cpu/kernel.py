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
from numba.core.event import Event, Listener, install_listener

from mabert.ops import layout
from mabert.ops.cpu.simd import add_atomically, load_shared

logger = logging.getLogger(__name__)

_LINGER = 1 << 16  # looks, some 100 microseconds
_NOTICEABLE = 1.0  # seconds


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


class Notice(Listener):
    """Tells, once in a process, that kernels are being compiled, if that takes a while; loading one that is in Numba's
    cache is no compiling, however long it takes."""

    _lock = threading.Lock()
    _told = False

    def __init__(self, text: str) -> None:
        self._text = text
        self._timers: list[threading.Timer] = []

    def on_start(self, event: Event) -> None:
        """Begins to wait; what a kernel calls is compiled within its own compiling."""
        self._timers.append(threading.Timer(_NOTICEABLE, self._tell))
        self._timers[-1].daemon = True
        self._timers[-1].start()

    def on_end(self, event: Event) -> None:
        """Stops to wait."""
        self._timers.pop().cancel()

    def _tell(self) -> None:
        with Notice._lock:
            if not Notice._told:
                Notice._told = True
                logger.warning(self._text)


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
        dispatcher = self._dispatcher()
        no_jobs = np.zeros(3, np.int64)
        with install_listener("numba:compile", Notice("compiling the CPU kernels on their first use on this machine")):
            try:
                dispatcher(no_jobs.ctypes.data, 0, *args)
            except OSError as error:  # Numba keeps what it compiled while it is first called
                dispatcher = self._unkept(error)
                dispatcher(no_jobs.ctypes.data, 0, *args)
        seconds = time.perf_counter() - started
        if dispatcher.stats.cache_misses and seconds > _NOTICEABLE:
            logger.warning("compiled %s in %.1f s", self._function.__name__, seconds)
        ready: Callable[..., None] = dispatcher
        return ready

    def _dispatcher(self) -> Any:
        try:
            return njit(nogil=True, cache=True)(self._function)
        except RuntimeError as error:
            return self._unkept(error)

    def _unkept(self, error: Exception) -> Any:
        logger.warning("the compiled kernels cannot be kept on disk (%s); set NUMBA_CACHE_DIR to a folder", error)
        return njit(nogil=True)(self._function)
