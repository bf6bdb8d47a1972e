"""Measures this machine's peak rates, from which floors are computed."""

from collections.abc import Callable

import torch
from torch import nn

from mabert.machine.rounds import timed
from mabert.model.prepack import PackedLinear, can_prepack

_MATRIX = 2048
_COPIED_BYTES = 256 << 20
_SAMPLES = 7


@torch.inference_mode()
def matrix_rate(dtype: torch.dtype) -> float:
    """Returns the best floating-point operations per second in a few products of two 2,048 x 2,048 matrices.

    If weights can be prepacked, a prepacked product is tried too, since forward passes then use it.
    """
    left, right = torch.randn(2, _MATRIX, _MATRIX).to(dtype)
    result = torch.mm(left, right)
    products: list[Callable[[], object]] = [lambda: torch.mm(left, right, out=result)]
    if can_prepack(left.device, dtype):
        packed = PackedLinear(nn.Linear(_MATRIX, _MATRIX, bias=False), dtype)
        packed(left)
        products.append(lambda: packed(left))
    best = min(timed(product) for product in products for _ in range(_SAMPLES))
    return 2 * _MATRIX**3 / best


def copy_rate(device: str = "cpu") -> float:
    """Returns the best bytes per second, read and written together, in a few copies of 256 MiB, more than any cache."""
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        synchronise(device)

    copy()
    return 2 * source.nbytes / min(timed(copy) for _ in range(_SAMPLES))


def synchronise(device: str) -> None:
    """Waits for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
