"""A linear layer by a product of 8-bit integers, for inference on a CPU that has instructions for it.

Weights have one scale a channel of the result, inputs one a token. oneDNN multiplies the bytes; `mabert.ops.cpu.int8`
makes them, and gives the product its scales.
"""

import platform
from typing import NamedTuple

import torch
from torch import Tensor

STEP = 16
"""Widths are a multiple of this."""


class Bytes(NamedTuple):
    """A weight in 8 bits: in oneDNN's own layout, and float32 (out,) scales; with int32 (out,) zeros, which it asks
    for."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "Bytes":
        """Rounds a weight (out, in), each row to the 255 numbers that its largest one allows."""
        wide = weight.detach().float()
        scales = wide.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        return cls.of_levels((wide / scales[:, None]).round().to(torch.int8), scales)

    @classmethod
    def of_levels(cls, levels: Tensor, scales: Tensor) -> "Bytes":
        """Lays out int8 (out, in)."""
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        return cls(torch.ops.onednn.qlinear_prepack(levels, None), scales, zeros)

    @property
    def levels(self) -> Tensor:
        """The numbers in the ordinary layout, int8 (out, in)."""
        return self.packed.to_dense().t().contiguous()

    @property
    def weight(self) -> Tensor:
        """What they stand for, float32 (out, in)."""
        return self.levels * self.scales[:, None]


def check(device: str = "cpu") -> None:
    """Raises ValueError where there are no such products: on a GPU, on a processor without instructions for them
    (VNNI), with a torch without oneDNN."""
    if device != "cpu":
        raise ValueError(f"int8 is for a CPU, and the model is on {device}; take bf16 or fp32")
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (x86 and torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()):
        raise ValueError(
            "int8 is for a CPU with instructions for 8-bit products (VNNI), which this one has not; take fp32"
        )


def linear(x: Tensor, weight: Bytes, bias: Tensor | None, activation: tuple[str, str], dtype: torch.dtype) -> Tensor:
    """f(x W^T + b), x rounded to 8 bits a token.

    Args:
        x: float32 or bfloat16 (..., in).
        weight: W.
        bias: float32 (out,), or None.
        activation: f, see `mabert.ops.cpu.int8.ACTIVATIONS`.
        dtype: Of the result: float32 or bfloat16.

    Returns:
        (..., out); a token with a NaN or an infinity gets NaN.
    """
    from mabert.ops.cpu import int8

    levels, scales = int8.to_bytes(x)
    product = torch.ops.onednn.qlinear_pointwise(levels, 1.0, int8.ZERO, *weight, None, 1.0, 0, dtype, "none", [], "")
    return int8.from_bytes(product, scales, bias, int8.ACTIVATIONS[activation]).view(*x.shape[:-1], len(weight.scales))
