"""How much memory a process may take, and has taken, as the system sees it."""

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

SHARE = 0.85
"""Of the memory that is free when a cell begins, how much its model may take."""

STATUS = "/proc/self/status"


def free_memory() -> int:
    """Bytes that one model may take now, of those that the machine has free; 0 where that is not known."""
    return int(SHARE * min([field_of("/proc/meminfo", "MemAvailable"), *group_memory()]))


def group_memory(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes that are left of each limit which this process's control groups set, as containers and clusters do; files
    that were read and can be dropped count as left.

    Args:
        groups: Linux's file that names them.
        root: Where they lie.
    """
    if not groups.is_file():
        return []
    left = []
    for line in groups.read_text(encoding="utf-8").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        # Version 2 has one tree, version 1 one for each controller.
        top, limit, used, dropped = (
            (root, "memory.max", "memory.current", "inactive_file")
            if not controllers
            else (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        inner = top / own.strip("/")
        for group in (inner, *inner.parents):
            files = [group / name for name in (limit, used, "memory.stat")]
            if group.is_relative_to(top) and all(file.is_file() for file in files):
                most, now, told = (file.read_text(encoding="ascii") for file in files)
                statistics = dict(each.split() for each in told.splitlines())
                if most.strip() != "max":
                    left.append(max(0, int(most) - int(now) + int(statistics.get(dropped, 0))))
    return left


def limit_memory(allowed: int) -> None:
    """Bounds this process to so many bytes more than it has, so that a model too large gets an error instead of taking
    the machine with it."""
    if sys.platform != "linux":
        return
    bound = field_of(STATUS, "VmData") + allowed
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))


def field_of(file: str, name: str) -> int:
    """Bytes by a field of one of Linux's files about memory; 0 where there is no such file, or it lacks the field."""
    if not Path(file).is_file():
        return 0
    lines = (line.split() for line in Path(file).read_text(encoding="ascii").splitlines())
    return next((int(words[1]) << 10 for words in lines if words[0] == f"{name}:"), 0)


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
