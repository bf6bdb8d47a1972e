"""Compiling a kernel on its first use, once for each machine, and telling the person what takes a while."""

import logging
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.event import Event, Listener, install_listener

from mabert.ops import layout
from mabert.ops.cpu.team import Call

logger = logging.getLogger(__name__)

_NOTICEABLE = 1.0  # seconds


def _fingerprint() -> str:
    sources = [Path(layout.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    return f"{zlib.crc32(b''.join(source.read_bytes() for source in sources)):08x}"


BUILD = _fingerprint()
"""Changes with any source of the kernels.

Numba's cache looks only at the file of the kernel itself. Each kernel carries this in its qualified name, under which
the cache files it, so no stale one is loaded.
"""


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

            def kernel(call, *args):
                share(job, call, args)
    """

    _lock = threading.Lock()

    def __init__(self, function: Callable[..., None]) -> None:
        function.__qualname__ += f"_{BUILD}"
        self._function = function
        self._ready: Callable[..., None] | None = None

    def run(self, jobs: int, scratch: int, *args: Any) -> None:
        """Do every job below ``jobs``, on as many threads as torch uses, and wait for all.

        Args:
            jobs: How many jobs there are.
            scratch: Bytes of working memory that each thread needs.
            *args: Passed on to every job; what they point to must stay alive until this returns.

        Raises:
            RuntimeError: A job failed.
        """
        if self._ready is None:
            with Kernel._lock:
                if self._ready is None:
                    self._ready = self._compile(args)
        call = Call(jobs, scratch)
        self._ready(call.address, *args)
        call.check()

    def _compile(self, args: tuple[Any, ...]) -> Callable[..., None]:
        started = time.perf_counter()
        dispatcher = self._dispatcher()
        nothing = Call(0, 0)
        with install_listener("numba:compile", Notice("compiling the CPU kernels on their first use on this machine")):
            try:
                dispatcher(nothing.address, *args)
            except OSError as error:  # Numba keeps what it compiled while it is first called
                dispatcher = self._unkept(error)
                dispatcher(nothing.address, *args)
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
