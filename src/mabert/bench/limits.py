"""What this machine reaches at best: the rates that floors are computed with, measured where the floor is used."""

import torch

from mabert.bench.rounds import timed

_MATRIX = 2048
_COPIED_BYTES = 256 << 20
_SAMPLES = 7


def matrix_rate(dtype: torch.dtype) -> float:
    """Multiply two square matrices of 2,048; return the best floating-point operations a second of a few tries."""
    left, right = torch.randn(2, _MATRIX, _MATRIX).to(dtype)
    result = torch.mm(left, right)
    best = min(timed(lambda: torch.mm(left, right, out=result)) for _ in range(_SAMPLES))
    return 2 * _MATRIX**3 / best


def copy_rate() -> float:
    """Copy 256 MiB that no cache holds; return the best bytes a second of a few tries, read and written together."""
    source = torch.ones(_COPIED_BYTES // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(timed(lambda: target.copy_(source)) for _ in range(_SAMPLES))
    return 2 * source.nbytes / best
