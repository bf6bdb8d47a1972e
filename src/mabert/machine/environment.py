"""On what a result was made: machine, versions, commit; and in what the machine is fast.

Functions import torch themselves: what imports this module may have to refuse a command, and should do so at once.
"""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux tells of the processor."""

NUMBERS = {"cpu family": "family", "model": "model"}
"""What it has numbers for on x86, and how a result says it."""


def environment() -> dict[str, Any]:
    """Machine, versions and commit, as every result records them."""
    import torch

    packages = ("mabert", "torch", "triton", "transformers", "tokenizers", "datasets", "accelerate", "numba", "numpy")
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor(),
        "instructions": instructions(),
        "cores": os.cpu_count(),
        "memory_gib": memory(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "packages": {name: installed(name) for name in packages},
        "commit": commit(),
    }


def fast_dtype(device: str | None = None) -> str:
    """``bfloat16`` where a device has instructions for products in it, else ``float32``.

    Without them bf16 is computed in float32 after all, after a conversion, and several times as slow.

    Args:
        device: ``cpu`` or ``cuda``; default, the GPU where there is one.
    """
    import torch

    if device == "cuda" or (device is None and torch.cuda.is_available()):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if bf16_instructions() else "float32"


def bf16_instructions() -> frozenset[str]:
    """Which instructions for products in bf16 the processor has, of ``avx512_bf16``, ``amx_bf16`` and ARM's ``bf16``.

    Empty where nobody tells. Torch tells from some release on; before that Linux does, by the same names, since a
    processor that has them must not be taken for one without.
    """
    import torch

    wanted = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return frozenset(name for name in wanted if capabilities.get(name))
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):  # x86's word and ARM's
                return wanted.intersection(line.split())
    return frozenset()


def instructions() -> str:
    """The processor's kind of instructions, as torch uses them: ``AVX2``, ``AVX512``, ``AVX512 BF16 AMX``."""
    import torch

    short = bf16_instructions()
    return torch.backends.cpu.get_cpu_capability() + " BF16" * bool(short) + " AMX" * ("amx_bf16" in short)


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed, as this one where it runs from its sources."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name, where the system tells it, with its family and model where it has numbers for these.

    A virtual machine's processor may have no name but its maker's, which stands for generations of unlike speed.
    """
    told: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            field, _, value = line.partition(":")
            told.setdefault(field.strip(), value.strip())
    if "model name" not in told:
        return platform.processor() or platform.machine()
    numbers = " ".join(f"{word} {told[field]}" for field, word in NUMBERS.items() if field in told)
    return f"{told['model name']}, {numbers}" if numbers else told["model name"]


def memory() -> float | None:
    """GiB of main memory; None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def commit() -> str | None:
    """The commit of the checkout this package runs from, `+` behind it where files differ.

    Outside a checkout what the variable `MABERT_COMMIT` says, by which a copy without its history can tell; else None.
    A checkout of something else, in which this package happens to be installed, does not know its files.
    """
    here = Path(__file__).parent
    try:
        git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        name = git(here, "rev-parse", "--short", "HEAD")
        return name + ("+" if git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MABERT_COMMIT")


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
