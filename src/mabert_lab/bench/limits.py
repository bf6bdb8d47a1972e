"""Waits for a device, and measures the peak rate at which it copies."""

import torch

from mabert.machine.rounds import timed

_COPIED_BYTES = 256 << 20
_SAMPLES = 7


def copy_rate(device: str) -> float:
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
