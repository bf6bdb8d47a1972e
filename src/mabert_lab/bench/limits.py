"""What this machine reaches at best: the rates that floors are computed with, measured where the floor is used."""

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
    """Multiply two square matrices of 2,048; return the best floating-point operations a second of a few tries.

    Where weights can be prepacked, such a product is tried as well: it is the one that a forward runs then.
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


def copy_rate() -> float:
    """Copy 256 MiB that no cache holds; return the best bytes a second of a few tries, read and written together."""
    source = torch.ones(_COPIED_BYTES // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(timed(lambda: target.copy_(source)) for _ in range(_SAMPLES))
    return 2 * source.nbytes / best
