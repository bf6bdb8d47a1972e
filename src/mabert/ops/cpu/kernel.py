"""Compiles a kernel on its first use, once per machine, and tells the user if that takes a while."""

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
"""A hash that changes with any source of the kernels.

Numba's cache checks only the kernel's own file. Each kernel therefore has this in its qualified name, under which the
cache files it, so that no stale kernel is loaded.
"""


class Notice(Listener):
    """Reports, once per process, that kernels are being compiled, if that takes a while.

    Loading a kernel from Numba's cache is not reported, however long it takes.
    """

    _lock = threading.Lock()
    _told = False

    def __init__(self, text: str) -> None:
        self._text = text
        self._timers: list[threading.Timer] = []

    def on_start(self, event: Event) -> None:
        """Starts a timer; functions that a kernel calls are compiled within its own compilation."""
        self._timers.append(threading.Timer(_NOTICEABLE, self._tell))
        self._timers[-1].daemon = True
        self._timers[-1].start()

    def on_end(self, event: Event) -> None:
        """Stops the timer."""
        self._timers.pop().cancel()

    def _tell(self) -> None:
        with Notice._lock:
            if not Notice._told:
                Notice._told = True
                logger.warning(self._text)


class Kernel:
    """A function that is compiled on first use, releases the interpreter lock, and is cached on disk if possible.

    Args:
        function: The function, of this shape (Numba cannot cache a function that takes the job as a variable)::

            def kernel(call, *args):
                share(job, call, args)
    """

    _lock = threading.Lock()

    def __init__(self, function: Callable[..., None]) -> None:
        function.__qualname__ += f"_{BUILD}"
        self._function = function
        self._ready: Callable[..., None] | None = None

    def run(self, jobs: int, scratch: int, *args: Any) -> None:
        """Runs every job below ``jobs`` with these arguments, on as many threads as torch uses, and waits for all.

        A thread has ``scratch`` bytes of working memory. What arguments point to must stay alive until this returns.

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
            except OSError as error:  # Numba saves the compiled code during the first call
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
