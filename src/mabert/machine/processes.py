"""Processes that begin at once, since they begin from one that has imported what they need; and their memory."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
"""How processes begin; on Windows each imports for itself."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What `mallopt` calls them, in `malloc.h`."""

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, in `prctl.h`."""

LARGEST_KEPT = (1 << 30, 32 << 20)
"""Bytes of the largest block that is kept when it is freed; the second where glibc takes no more (before 2.36, say)."""


def context(*modules: str, **environment: str) -> Any:
    """What makes processes.

    Args:
        modules: Imported once, before the first process begins.
        environment: Variables that the processes begin with where they are not set already, which a process that has
            begun could not change for itself any more; not where each imports for itself, nor where processes of this
            kind were begun before.
    """
    chosen = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        chosen.set_forkserver_preload(list(modules))
        from multiprocessing import forkserver  # which not every system has

        with variables(environment):
            forkserver.ensure_running()
    return chosen


@contextlib.contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables that are not set, for a while."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def end_with_parent() -> None:
    """Lets this process get SIGTERM when its parent ends, however it does; on Linux only. For `subprocess`'s
    `preexec_fn`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


@contextlib.contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles a signal for a while; outside of the main thread, where Python allows none, does nothing."""
    try:
        before = signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Takes SIGTERM, by which a system or a cluster ends a job, for Ctrl-C, once: it may be sent again while this
    process saves; only possible in the main thread."""
    told = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if told:
            return
        told = True
        heard = signal.getsignal(signal.SIGINT)
        if callable(heard):
            heard(signal.SIGINT, frame)
        else:  # a shell lets what it runs in the background ignore Ctrl-C
            raise KeyboardInterrupt

    with handling(signal.SIGTERM, interrupt):
        yield


def import_ahead(*modules: str) -> None:
    """Starts importing while this process does something else."""
    context(*modules)


def keep_freed_memory() -> None:
    """Has glibc use this process's freed memory again instead of giving it back to the system.

    By its own thresholds what one layer freed comes back for the next page by page, each filled with zeros first: a
    seventh of a training step's time in bf16. For whole programs, not for a library to call: the process keeps its
    largest size. Does nothing under another C library, or where the environment speaks of either threshold.
    """
    told = any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"))
    if sys.platform != "linux" or told or "_threshold=" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if not (hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version")):
        return
    # The second alone would have every block mapped anew: where one threshold is set, the other moves no more.
    if any(library.mallopt(_MMAP_THRESHOLD, size) for size in LARGEST_KEPT):
        library.mallopt(_TRIM_THRESHOLD, -1)  # never
