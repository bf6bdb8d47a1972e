"""The scan as a plain C++ loop, to compare the kernel with; needs a compiler."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
STATES, LANES = 16, 16


@functools.cache
def missing() -> str:
    """Returns why the loop cannot be built here; empty if it can."""
    try:
        _library()
    except (OSError, RuntimeError) as error:
        return str(error)
    return ""


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler (g++ or clang++) is installed")
    with tempfile.TemporaryDirectory() as folder:
        compiled, library = Path(folder) / "scan.o", Path(folder) / "scan.so"
        source = Path(__file__).with_name("scan.cpp")
        # Linked without -ffast-math: otherwise loading the library turns off subnormal numbers in this process.
        for command in ([*FLAGS, "-c", source, "-o", compiled], ["-shared", "-fopenmp", compiled, "-o", library]):
            done = subprocess.run([compiler, *map(str, command)], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{compiler} cannot build {source.name}: {' '.join(done.stderr.split())[:300]}")
        return ctypes.CDLL(str(library))


def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor) -> Tensor:
    """Runs the C++ loop on contiguous float32 tensors.

    ``u``, ``delta``, ``z`` and the result are ``(1, time, channel)``, ``A`` is ``(channel, 16)``, ``B`` and ``C`` are
    ``(1, time, 16)``, ``D`` and ``delta_bias`` ``(channel,)``; channels are a multiple of 16.

    Raises:
        FileNotFoundError: There is no compiler.
        RuntimeError: The compiler fails, see `missing`.
        ValueError: A tensor has another shape, dtype or layout.
    """
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    batch, time, channels = u.shape
    if batch != 1 or A.shape[1] != STATES or channels % LANES:
        raise ValueError(f"the C++ loop takes one row, {STATES} states and whole vectors of {LANES} channels")
    if any(tensor.dtype != torch.float32 or not tensor.is_contiguous() for tensor in inputs):
        raise ValueError("the C++ loop takes contiguous float32 tensors")
    y = torch.empty_like(u)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*inputs, y)]
    _library().scan16(*pointers, ctypes.c_long(time), ctypes.c_long(channels))
    return y
