"""The memory of a process, as the system counts it, and the rate at which a device copies."""

import contextlib
import ctypes
import sys
from pathlib import Path

import torch

from mabert.machine.memory import field_of, memory_left
from mabert.machine.rounds import timed

SHARE = 0.85  # share of the free memory at the start of a cell that its model may take
STATUS = "/proc/self/status"


def free_memory() -> int | None:
    """Returns the bytes that one model may take now; None if the free memory is unknown."""
    left = memory_left()
    return None if left is None else int(SHARE * left)


def limit_memory(allowed: int | None) -> None:
    """Limits this process to `allowed` more bytes, so that too large a model fails alone; None sets no limit."""
    if allowed is None or sys.platform != "linux":
        return
    import resource  # not on every system

    bound = field_of(STATUS, "VmData") + allowed
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))


def trim() -> None:
    """Returns freed memory to the system if the C library supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> bool:
    """Returns freed memory to the system and resets this process's peak size; False if that is not supported."""
    trim()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


_COPIED_BYTES = 256 << 20


def copy_rate(device: str) -> float:
    """Returns the best bytes per second, read and written together, in a few copies of 256 MiB, more than any cache."""
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        synchronise(device)

    copy()
    return 2 * source.nbytes / min(timed(copy) for _ in range(7))


def synchronise(device: str) -> None:
    """Waits for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
