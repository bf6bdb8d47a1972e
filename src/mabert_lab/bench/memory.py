"""How much memory a process may take, and has taken, as the system sees it."""

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

from mabert.machine.memory import field_of, group_memory

SHARE = 0.85
"""Of the memory that is free when a cell begins, how much its model may take."""

STATUS = "/proc/self/status"


def free_memory() -> int:
    """Bytes that one model may take now, of those that the machine has free; 0 where that is not known."""
    return int(SHARE * min([field_of("/proc/meminfo", "MemAvailable"), *group_memory()]))


def limit_memory(allowed: int) -> None:
    """Bounds this process to so many bytes more than it has, so that a model too large gets an error instead of taking
    the machine with it."""
    if sys.platform != "linux":
        return
    bound = field_of(STATUS, "VmData") + allowed
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))


def trim() -> None:
    """Gives free memory back to the system, where its C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> bool:
    """Gives free memory back to the system and lets it count this process's greatest size anew; False where that is not
    to be had."""
    trim()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
