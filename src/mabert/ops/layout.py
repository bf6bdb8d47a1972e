"""Checks of the operators' arguments, and the constants, shapes and sequences that all kernels share: what graphs need
without importing a compiler.

A sequence is the unit that both recurrent operators stay within.
"""

import itertools
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

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


Span = tuple[int, int, int]

_read: WeakIdKeyDictionary = WeakIdKeyDictionary()


def offsets_of(cu_seqlens: torch.Tensor) -> list[int]:
    """Reads offsets, those on a GPU once: the host waits there for all that was started before."""
    known = _read.get(cu_seqlens)
    if known is not None and known[0] == cu_seqlens._version:
        return known[1]
    offsets = cu_seqlens.tolist()
    remember(cu_seqlens, offsets)
    return offsets


def remember(cu_seqlens: torch.Tensor, offsets: Sequence[int]) -> None:
    """Keeps the offsets that a tensor on a GPU holds, for as long as it lives and is not written to."""
    if cu_seqlens.device.type != "cpu" and not cu_seqlens.is_inference():
        _read[cu_seqlens] = cu_seqlens._version, list(offsets)


def spans(cu_seqlens: torch.Tensor | Sequence[int] | None, rows: int, time: int) -> list[Span]:
    """Lists the sequences of a batch as half-open spans ``(row, start, end)``, in order; some may be empty.

    ``cu_seqlens`` are ``(sequences + 1,)`` offsets into the one packed row, None if each row is a sequence.

    Raises:
        ValueError: The offsets do not rise from 0 to ``time``.
    """
    if cu_seqlens is None:
        return [(row, 0, time) for row in range(rows)]
    offsets = offsets_of(cu_seqlens) if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    if offsets[0] != 0 or offsets[-1] != time:
        raise ValueError(f"cu_seqlens must run from 0 to time={time}, got {offsets[0]} to {offsets[-1]}")
    for start, end in itertools.pairwise(offsets):
        if end < start:
            raise ValueError(f"cu_seqlens must not fall, got {start} followed by {end}")
    return [(0, start, end) for start, end in itertools.pairwise(offsets)]


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_float(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str, device: torch.device) -> None:
    """Requires a floating tensor of one shape on one device, or none; ``what`` names the dimensions in messages."""
    if tensor is None:
        return
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be float32, bfloat16, float16 or float64, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {what} = {shape}, got {tuple(tensor.shape)}")
    check_device(name, tensor, device)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Requires a tensor to be on the device of the first argument."""
    if tensor.device != device:
        raise ValueError(f"{name} must lie on the device of the first argument, {device}, got {tensor.device}")


def check_input(name: str, tensor: Tensor) -> None:
    """Requires the first argument to be a floating ``(batch, time, channel)`` tensor."""
    if tensor.dim() != 3:
        raise ValueError(f"{name} must have 3 dimensions (batch, time, channel), got shape {tuple(tensor.shape)}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be float32, bfloat16, float16 or float64, got {tensor.dtype}")


def check_matrix(name: str, tensor: Tensor, columns: str) -> None:
    """Requires a two-dimensional ``(channel, columns)`` tensor with at least one column."""
    if tensor.dim() != 2 or tensor.shape[1] < 1:
        raise ValueError(f"{name} must have shape (channel, {columns}) with {columns} >= 1, got {tuple(tensor.shape)}")


def check_steps(u: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """Requires the mask to be boolean ``(batch, time)`` and ``cu_seqlens`` to be int32 offsets into a single row."""
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, got {mask.dtype}")
        if tuple(mask.shape) != tuple(u.shape[:2]):
            raise ValueError(f"mask must have shape (batch, time) = {tuple(u.shape[:2])}, got {tuple(mask.shape)}")
        check_device("mask", mask, u.device)
    if cu_seqlens is not None:
        if cu_seqlens.dtype != torch.int32:
            raise ValueError(f"cu_seqlens must be int32, got {cu_seqlens.dtype}")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
            raise ValueError(f"cu_seqlens must have shape (sequences + 1,), got {tuple(cu_seqlens.shape)}")
        check_device("cu_seqlens", cu_seqlens, u.device)
        if u.shape[0] != 1:
            raise ValueError(f"cu_seqlens needs batch size 1 (one packed row), got batch size {u.shape[0]}")


@overload
def widen(tensor: Tensor) -> Tensor: ...
@overload
def widen(tensor: None) -> None: ...
def widen(tensor: Tensor | None) -> Tensor | None:
    """Returns a float16 tensor as float32, any other unchanged: kernels take float32, bfloat16 and float64."""
    return tensor.float() if tensor is not None and tensor.dtype == torch.float16 else tensor
