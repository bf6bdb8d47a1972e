"""Constants and shapes shared by all compiled kernels, which graphs need without importing a compiler."""

from typing import overload

import torch

CHUNK = 64
"""Steps between two saved states; the backward recomputes the states in between."""

BLOCK = 64
"""Channels that one job processes along time."""


GPU_CHUNK = 16
"""Steps between two saved states on a GPU, whose threads hold a chunk in registers during the backward."""


def padded_channels(channels: int) -> int:
    """Rounds the number of channels up to whole blocks."""
    return -(-channels // BLOCK) * BLOCK


def saved_states_shape(u: torch.Tensor, A: torch.Tensor, cu_seqlens: torch.Tensor | None) -> tuple[int, int, int]:
    """Returns ``(boundaries, state, channel rounded up to whole blocks)`` of the states saved for the backward.

    The state before a sequence's first chunk is zero and is not saved. Packed sequences of any lengths need at most
    ``time // CHUNK`` boundaries in total.
    """
    rows, time, channels = u.shape
    boundaries = rows * (max(time - 1, 0) // CHUNK) if cu_seqlens is None else time // CHUNK
    return boundaries, A.shape[1], padded_channels(channels)


def gpu_states_shape(u: torch.Tensor, A: torch.Tensor) -> tuple[int, int, int]:
    """Returns ``(boundaries, state, channel)`` of the states that a GPU saves: every `GPU_CHUNK` steps of each row.

    A packed row is cut like any other, wherever its sequences start.
    """
    rows, time, channels = u.shape
    return rows * (max(time - 1, 0) // GPU_CHUNK), A.shape[1], channels


@overload
def readable(tensor: torch.Tensor) -> torch.Tensor: ...
@overload
def readable(tensor: torch.Tensor | None) -> torch.Tensor | None: ...
def readable(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the tensor itself if its last dimension has stride 1, otherwise a contiguous copy."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


def steps_before(width: int, mode: str, reverse: bool) -> int:
    """Counts the steps of a convolution's window that lie before the window's own step in time."""
    before = width - 1 if mode == "causal" else (width - 1) // 2
    return width - 1 - before if reverse else before
