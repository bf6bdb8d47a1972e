"""The precision a device computes in: the one that is asked for, or the one it is fast in."""

import logging
from typing import get_args

import torch

from mabert.machine import Precision
from mabert.machine.environment import fast_dtype

logger = logging.getLogger(__name__)

PRECISIONS = get_args(Precision)


def resolve_precision(precision: str, device: str | None = None) -> str:
    """Resolves `auto` to `bf16` if a device has instructions for products in it, else to `fp32`; keeps these two.

    Args:
        precision: One of `PRECISIONS`.
        device: `cpu` or `cuda`; default, the GPU if there is one.

    Raises:
        ValueError: If it is none of the three.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; it must be one of {list(PRECISIONS)}")
    if precision != "auto":
        return precision
    return "bf16" if fast_dtype(device) == "bfloat16" else "fp32"


def warn_of_emulation(precision: str, device: str | None = None) -> None:
    """Warns if bf16 is asked for on a device that computes it in float32; takes `resolve_precision`'s arguments."""
    if resolve_precision(precision, device) == "bf16" and fast_dtype(device) == "float32":
        gpu = torch.cuda.is_available() if device is None else device == "cuda"
        logger.warning(
            "precision is bf16, for which this %s has no instructions: fp32 is several times as fast here",
            "GPU" if gpu else "CPU",
        )
