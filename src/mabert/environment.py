"""On what a result was made: machine, versions, commit."""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Machine, versions and commit, as every result records them."""
    packages = ("mabert", "torch", "triton", "transformers", "tokenizers", "datasets", "accelerate", "numba", "numpy")
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": memory(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "packages": {name: installed(name) for name in packages},
        "commit": commit(),
    }


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed, as this one where it runs from its sources."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory() -> float | None:
    """GiB of main memory; None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def commit() -> str | None:
    """The commit of the checkout this package runs from, `+` behind it where files differ; None outside a checkout."""
    here = Path(__file__).parent
    try:
        name = git(here, "rev-parse", "--short", "HEAD")
        return name + ("+" if git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
