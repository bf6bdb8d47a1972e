"""The scan as a plain C++ loop, compiled where there is a compiler: how far the kernel is from what C++ reaches."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
STATES, LANES = 16, 16


def compiler() -> str | None:
    """The C++ compiler that would be used, None where there is none."""
    return shutil.which("g++") or shutil.which("clang++")


@functools.cache
def _library() -> ctypes.CDLL:
    found = compiler()
    if found is None:
        raise FileNotFoundError("no C++ compiler (g++ or clang++) is installed: the C++ loop cannot be built")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "scan.so"
        source = Path(__file__).with_name("scan.cpp")
        done = subprocess.run([found, *FLAGS, source, "-o", library], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{found} cannot compile {source.name}: {done.stderr.strip()[:300]}")
        return ctypes.CDLL(str(library))


def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor) -> Tensor:
    """Run the C++ loop.

    Args:
        u: ``(1, time, channel)``, float32 and contiguous as all others; channels a multiple of 16.
        delta: As ``u``.
        A: ``(channel, 16)``.
        B: ``(1, time, 16)``.
        C: ``(1, time, 16)``.
        D: ``(channel,)``.
        z: As ``u``.
        delta_bias: ``(channel,)``.

    Returns:
        ``y`` as ``u``.

    Raises:
        FileNotFoundError: There is no compiler.
        ValueError: A tensor is not what the loop was written for.
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
