"""A linear layer that multiplies 8-bit integers, for inference on a CPU with instructions for it.

Weights have one scale per output channel, inputs one per token. oneDNN multiplies the bytes; `mabert.ops.cpu.int8`
makes them and applies the scales.
"""

import platform
from typing import NamedTuple

import torch
from torch import Tensor

STEP = 16
"""Widths must be a multiple of this."""


class Bytes(NamedTuple):
    """A weight in 8 bits: bytes in oneDNN's layout, float32 (out,) scales, and int32 (out,) zeros for oneDNN."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "Bytes":
        """Rounds a weight (out, in), each row to 255 levels scaled to its largest value."""
        wide = weight.detach().float()
        scales = wide.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        return cls.of_levels((wide / scales[:, None]).round().to(torch.int8), scales)

    @classmethod
    def of_levels(cls, levels: Tensor, scales: Tensor) -> "Bytes":
        """Packs int8 levels (out, in) for oneDNN."""
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        return cls(torch.ops.onednn.qlinear_prepack(levels, None), scales, zeros)

    @property
    def levels(self) -> Tensor:
        """The levels in the ordinary layout, int8 (out, in)."""
        return self.packed.to_dense().t().contiguous()

    @property
    def weight(self) -> Tensor:
        """The values that the levels stand for, float32 (out, in)."""
        return self.levels * self.scales[:, None]


def has_onednn_on_x86() -> bool:
    """Returns whether this is an x86 processor and torch has oneDNN."""
    return platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()


def check(device: str = "cpu") -> None:
    """Raises ValueError if there are no such products: on a GPU, a CPU without VNNI, or in a torch without oneDNN."""
    if device != "cpu":
        raise ValueError(f"int8 is for a CPU, and the model is on {device}; take bf16 or fp32")
    if not (has_onednn_on_x86() and torch.cpu._is_vnni_supported()):
        raise ValueError(
            "int8 is for a CPU with instructions for 8-bit products (VNNI), which this one has not; take fp32"
        )


def linear(x: Tensor, weight: Bytes, bias: Tensor | None, activation: tuple[str, str], dtype: torch.dtype) -> Tensor:
    """Computes f(x W^T + b) in ``dtype``, float32 or bfloat16, with x (..., in) in either rounded to 8 bits per token.

    The bias is float32 (out,), or None; for f see `mabert.ops.cpu.int8.ACTIVATIONS`. The result is (..., out); a token
    with a NaN or an infinity gets NaN.
    """
    from mabert.ops.cpu import int8

    levels, scales = int8.to_bytes(x)
    product = torch.ops.onednn.qlinear_pointwise(levels, 1.0, int8.ZERO, *weight, None, 1.0, 0, dtype, "none", [], "")
    return int8.from_bytes(product, scales, bias, int8.ACTIVATIONS[activation]).view(*x.shape[:-1], len(weight.scales))
