"""The environment of a result (machine, versions, commit), the precision that a device is fast in, and the packages
that only some commands need.

Functions import torch themselves: importers of this module may have to refuse a command, and should do so at once.
"""

import contextlib
import logging
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from mabert.machine import Precision

logger = logging.getLogger(__name__)

PRECISIONS = get_args(Precision)

CPUINFO = Path("/proc/cpuinfo")
"""Linux's file about the processor."""

NUMBERS = {"cpu family": "family", "model": "model"}
"""The fields that hold numbers on x86, and their names in a result."""


def environment() -> dict[str, Any]:
    """Returns machine, versions and commit, as every result records them."""
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
    """Returns ``bfloat16`` if a device (``cpu`` or ``cuda``; default, the GPU if there is one) has instructions for
    products in it, else ``float32``: bf16 is then converted and computed in float32, several times as slow."""
    import torch

    if device == "cuda" or (device is None and torch.cuda.is_available()):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if bf16_instructions() else "float32"


def resolve_precision(precision: str, device: str | None = None) -> str:
    """Resolves `auto` to `bf16` if that is the device's `fast_dtype`, else to `fp32`; keeps these two."""
    if precision != "auto":
        return precision
    return "bf16" if fast_dtype(device) == "bfloat16" else "fp32"


def warn_of_emulation(precision: str, device: str | None = None) -> None:
    """Warns if bf16 is asked for on a device that computes it in float32; takes `resolve_precision`'s arguments."""
    if precision == "bf16" and fast_dtype(device) == "float32":
        import torch

        gpu = torch.cuda.is_available() if device is None else device == "cuda"
        logger.warning(
            "precision is bf16, for which this %s has no instructions: fp32 is several times as fast here",
            "GPU" if gpu else "CPU",
        )


def bf16_instructions() -> frozenset[str]:
    """Returns the processor's instructions for bf16 products, of ``avx512_bf16``, ``amx_bf16`` and ARM's ``bf16``; none
    if they are unknown. Older torch releases do not report them, but Linux does under the same names."""
    import torch

    wanted = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return frozenset(name for name in wanted if capabilities.get(name))
    fields = cpuinfo()
    return wanted.intersection(fields.get("flags", fields.get("Features", "")).split())  # x86's name and ARM's


def cpuinfo() -> dict[str, str]:
    """Returns what Linux says of the first processor, by field; empty on other systems."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            field, _, value = line.partition(":")
            fields.setdefault(field.strip(), value.strip())
    return fields


def instructions() -> str:
    """Returns the instruction set that torch uses: ``AVX2``, ``AVX512``, ``AVX512 BF16 AMX``."""
    import torch

    short = bf16_instructions()
    return torch.backends.cpu.get_cpu_capability() + " BF16" * bool(short) + " AMX" * ("amx_bf16" in short)


def installed(package: str) -> str | None:
    """Returns a package's version; None if it is not installed, like this one when it runs from its sources."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Returns the processor's name if the system reports it, with family and model numbers if there are any.

    A virtual machine's processor may have only its maker's name, which covers generations of very different speeds.
    """
    fields = cpuinfo()
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    numbers = " ".join(f"{word} {fields[field]}" for field, word in NUMBERS.items() if field in fields)
    return f"{fields['model name']}, {numbers}" if numbers else fields["model name"]


def memory() -> float | None:
    """Returns the GiB of main memory; None if the system does not report it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def commit() -> str | None:
    """Returns the commit of the checkout that this package runs from, with a `+` if files differ. Outside a checkout,
    also if installed in one of another project, which does not track its files, it is the variable `MABERT_COMMIT`,
    which a copy without history can set; else None."""
    here = Path(__file__).parent
    try:
        git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        name = git(here, "rev-parse", "--short", "HEAD")
        return name + ("+" if git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MABERT_COMMIT")


def git(folder: Path, *arguments: str) -> str:
    """Returns the output of a git command."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


EXTRAS = {
    "train": ("accelerate", "datasets", "pyarrow", "scipy", "sentencepiece", "sklearn", "tensorboard", "zstandard"),
    "export": ("onnx", "onnxruntime", "onnxscript", "openvino"),
    "lab": ("bm25s", "jinja2", "mambapy", "markdown_it", "matplotlib", "pandas"),
    "bench": ("nncf",),
    "cluster": ("pyspark", "ray"),
}
"""Import names of each extra's packages, without those of other extras."""

DISTRIBUTIONS = {"markdown_it": "markdown-it-py", "ray": "ray[data]", "sklearn": "scikit-learn"}
"""Names to install, if they differ from those to import."""


def check_installed(*packages: str) -> None:
    """Checks that packages of the extras are installed, without importing them.

    Raises:
        ValueError: If one is missing; names the extra that brings it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(_line(package))


def check_reporters(names: Sequence[str]) -> None:
    """Checks that transformers knows all names of `report_to`, and that their packages are installed.

    Raises:
        ValueError: If not; names the package to install.
    """
    if names in (["tensorboard"], ["none"], ["all"], []):  # the extra `train` brings TensorBoard
        return
    from transformers.integrations import integration_utils

    known = sorted(integration_utils.INTEGRATION_TO_CALLBACK)
    # transformers does not list the last two even where they are installed.
    there = {*integration_utils.get_available_reporting_integrations(), "azure_ml", "flyte"}
    for name in names:
        if name not in known:
            raise ValueError(f"report_to names {name!r}; transformers knows {', '.join(known)}; or all or none alone")
        if name not in there:
            package = name.replace("_", "-")
            raise ValueError(f"report_to names {name!r}, which is not installed: pip install {package}")


def lacking(error: ModuleNotFoundError) -> str:
    """Returns a message that names the extra with the package that an import missed.

    Raises:
        ModuleNotFoundError: The same error, if no extra has the package.
    """
    package = str(error.name).partition(".")[0]
    if not any(package in packages for packages in EXTRAS.values()):
        raise error
    return _line(package)


def _line(package: str) -> str:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    name = DISTRIBUTIONS.get(package, package)
    return f"{name} is not installed; the extra {extra} brings it: pip install 'mabert[{extra}]'"
