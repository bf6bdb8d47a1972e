"""Compiling a kernel on its first use, once for each machine, and telling the person what takes a while."""

import logging
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from mabert.ops import layout

logger = logging.getLogger(__name__)

_NOTICEABLE = 1.0  # seconds; loading a kernel from the cache stays below it


def _fingerprint() -> int:
    sources = [Path(layout.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


BUILD = _fingerprint()
"""Changes with any source of the kernels.

Numba's cache looks only at the file of the kernel itself. Each kernel has this number as the default of its last
argument, and defaults are part of the signature under which the cache files a kernel, so no stale one is loaded.
"""


class Kernel:
    """A function to be compiled on first use, without the interpreter lock, cached on disk where that is possible.

    Args:
        function: What to compile; returns nothing, its last argument is ``build=BUILD``.
    """

    _announced = False
    _lock = threading.Lock()

    def __init__(self, function: Callable[..., None]) -> None:
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
            dispatcher(-1, 0, *args)
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
            logger.warning("the compiled kernels cannot be kept on disk (%s); set NUMBA_CACHE_DIR to a folder", error)
            return njit(nogil=True)(self._function)

    @staticmethod
    def _announce() -> None:
        if not Kernel._announced:
            Kernel._announced = True
            logger.warning("compiling the CPU kernels on their first use on this machine; later runs find them cached")
