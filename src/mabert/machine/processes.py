"""Processes that start fast, forked from one that has done the imports; their signals and memory."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, in `malloc.h`."""

PAGES = Path("/proc/self/statm")
"""Pages of this process: in all, then in memory."""

LARGEST_KEPT = (1 << 30, 32 << 20)
"""Bytes of the largest block kept when freed; the second is for a glibc that accepts no more (before 2.36, say)."""


def context(*modules: str, **environment: str) -> Any:
    """Returns a multiprocessing context whose processes are forked from one that has imported the modules. The
    variables are set before it starts, unless they are set already, since a running process could not change them for
    itself; they have no effect if such a process was started before."""
    from multiprocessing import forkserver  # few commands start processes

    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(list(modules))
    added = {name: value for name, value in environment.items() if name not in os.environ}
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        for name in added:
            del os.environ[name]
    return chosen


@contextlib.contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles a signal while the block runs; does nothing outside of the main thread, where Python forbids it."""
    try:
        before = signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


def ended_as_interrupted() -> contextlib.AbstractContextManager[None]:
    """Treats SIGTERM, with which a system or a cluster ends a job, as Ctrl-C, in the main thread only."""
    return handling(signal.SIGTERM, interrupting_once())


def interrupting_once() -> Callable[[int, FrameType | None], None]:
    """Returns a handler that treats the first signal as Ctrl-C; it may come again while a process saves."""
    warned = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal warned
        if warned:
            return
        warned = True
        heard = signal.getsignal(signal.SIGINT)
        if callable(heard):
            heard(signal.SIGINT, frame)
        else:  # a shell makes background jobs ignore Ctrl-C
            raise KeyboardInterrupt

    return interrupt


def described(error: BaseException) -> str:
    """Returns the class and the message of an error in one line, for another process to tell."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _glibc() -> ctypes.CDLL | None:
    """Returns glibc, or None where the C library is another one."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version") else None


class FreedMemory:
    """Returns freed memory to the system once a process has outgrown what its steps need.

    Where steps need blocks of ever different sizes, freed memory is kept in pieces that fit no later block, and the
    process grows from step to step. So its size is taken after a step that began with nothing kept, and everything
    freed is returned when the process is twice as large as the largest such size.
    """

    def __init__(self) -> None:
        self.limit, self.returned = 0.0, False
        self.library = _glibc() if PAGES.exists() else None

    def after_step(self) -> None:
        """Looks at the size after a step; does nothing where the C library is not glibc or the size is not told."""
        if self.library is None:
            return
        size = self.size()
        if self.returned:
            self.limit = max(self.limit, 2.0 * size)
        self.returned = size > self.limit
        if self.returned:
            self.library.malloc_trim(0)

    def size(self) -> int:
        """Returns the process's pages in memory."""
        return int(PAGES.read_text(encoding="ascii").split()[1])


def keep_freed_memory() -> None:
    """Makes glibc reuse this process's freed memory instead of returning it to the system.

    With glibc's own thresholds, memory that one layer freed comes back for the next page by page, each filled with
    zeros: a seventh of a training step's time in bf16. Only whole programs should call this, not a library, since the
    process keeps its peak size (see `FreedMemory`). It does nothing with another C library, or if the environment sets
    either threshold.
    """
    chosen = any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"))
    if sys.platform != "linux" or chosen or "_threshold=" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    if (library := _glibc()) is None:
        return
    # Setting only the trim threshold would map every block anew: once one is set, glibc no longer adapts the other.
    if any(library.mallopt(_MMAP_THRESHOLD, size) for size in LARGEST_KEPT):
        library.mallopt(_TRIM_THRESHOLD, -1)  # never
