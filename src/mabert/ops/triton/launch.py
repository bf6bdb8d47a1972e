"""Prepares a kernel's launch from torch's tensors: layouts, offsets of packed sequences, and how rows are split."""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mabert.ops.layout import GPU_CHUNK, spans

COMPILATION = {"enable_fp_fusion": True}
"""Fused multiply-add, whose default differs between Triton's releases."""

_KEPT_NUMBERS = 8
_numbered: dict[Any, tuple[Tensor, "Numbered"]] = {}
_trusted = WeakIdKeyDictionary()
_numbers_lock = threading.Lock()  # autograd has one thread per GPU

_SHORTEST_SPLIT = 64
_MOST_SPLITS = 64
_WARPS_TO_HIDE_LATENCY = 1.7
_COST_OF_SPLITS = 1.9
_SCHEDULERS = 4
_ASSUMED_PROCESSORS = 1  # without a GPU, when kernels are interpreted


def launch(kernel: Any, programs: int, *args: Any, warps: int = 1, **options: Any) -> None:
    """Starts ``programs`` of a kernel on the device of its first argument, with fused multiply-add."""
    device = args[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[(programs,)](*args, num_warps=warps, **COMPILATION, **options)


def strides(*tensors: Tensor | None) -> list[int]:
    """Lists the strides of rows and of steps of each tensor; zeros for an absent one."""
    return [distance for tensor in tensors for distance in ((0, 0) if tensor is None else tensor.stride()[:2])]


def as_bytes(mask: Tensor | None) -> Tensor | None:
    """Returns a mask's memory as bytes."""
    return None if mask is None else mask.view(torch.uint8)


def words_of(matrix: Tensor) -> tuple[int, int, int]:
    """Returns how many words of 32 bits one load of B or C takes, and the strides of rows and of steps in such loads.

    A step's numbers are read as words if its start and its length are whole words; otherwise the first is 0, and the
    strides count numbers.
    """
    row, time, _ = matrix.stride()
    size = matrix.element_size()
    for words in (4, 2, 1):
        numbers = 4 * words // size
        aligned = matrix.data_ptr() % (4 * words) == 0
        if aligned and not any(each % numbers for each in (row, time, matrix.shape[2])):
            return words, row // numbers, time // numbers
    return 0, row, time


def split_steps(programs: int, time: int, resident: int, device: torch.device) -> int:
    """Chooses the steps of a split, a multiple of a chunk, such that a row takes the least time by a simple reckoning.

    Warps of a scheduler take turns, so time is proportional to their number, but a warp alone waits for its own
    results. A split row is processed twice. All programs must be resident, or the last ones begin when others end.
    ``programs`` are those of whole rows; a multiprocessor holds ``resident`` of them.
    """
    processors = _ASSUMED_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    most = min(_MOST_SPLITS, time // _SHORTEST_SPLIT, resident * processors // programs)

    def cost(splits: int) -> float:
        turns = max(math.ceil(programs * splits / (_SCHEDULERS * processors)), _WARPS_TO_HIDE_LATENCY)
        return turns * math.ceil(time / splits) * (1 if splits == 1 else _COST_OF_SPLITS)

    splits = min(range(1, max(1, most) + 1), key=cost)
    return math.ceil(math.ceil(time / splits) / GPU_CHUNK) * GPU_CHUNK


class Numbered:
    """The sequence of each step of a packed row, in the forms that kernels read."""

    def __init__(self, cu_seqlens: Tensor, time: int) -> None:
        steps = torch.arange(time, dtype=torch.int32, device=cu_seqlens.device)
        # int32 (time,), the number of each step's sequence, from 1 on
        self.numbers = torch.searchsorted(cu_seqlens.contiguous(), steps, right=True).to(torch.int32)
        self._starts: dict[bool, Tensor] = {}

    def starts(self, reverse: bool) -> Tensor:
        """Marks the steps at which the scan enters a sequence, bytes ``(time,)``."""
        if reverse not in self._starts:
            marks = torch.ones_like(self.numbers, dtype=torch.uint8)
            changes = self.numbers[1:] != self.numbers[:-1]
            (marks[:-1] if reverse else marks[1:]).copy_(changes)
            self._starts[reverse] = marks
        return self._starts[reverse]


def numbered(cu_seqlens: Tensor, time: int) -> Numbered:
    """Numbers the sequences of a packed row.

    Checking the offsets makes the host wait for the GPU, and every layer asks for the same ones, so the last few
    answers are kept. Inference tensors have no version counter that reveals writes, so they are checked each time.

    Raises:
        ValueError: The offsets do not rise from 0 to ``time``.
        RuntimeError: The offsets lie on a GPU, and a CUDA graph is being captured there outside of `trusting`.
    """
    trusted = _trusted.get(cu_seqlens)
    if trusted is not None:
        assert len(trusted.numbers) == time
        return trusted
    if _is_capturing(cu_seqlens):
        raise RuntimeError(
            "cu_seqlens on a GPU cannot go into a CUDA graph: their check reads them, and the graph would keep the "
            "sequences of its capture; capture with rows of one sequence each, or run packed rows without a graph"
        )
    key = None if cu_seqlens.is_inference() else _key_of(cu_seqlens, time)
    with _numbers_lock:
        kept = _numbered.get(key)
    if kept is not None:
        return kept[1]
    spans(cu_seqlens, 1, time)
    made = Numbered(cu_seqlens, time)
    if key is not None:
        with _numbers_lock:
            # The offsets are kept too, so that no other tensor can reuse their memory and match the key.
            _numbered[key] = (cu_seqlens, made)
            while len(_numbered) > _KEPT_NUMBERS:
                del _numbered[next(iter(_numbered))]
    return made


@contextlib.contextmanager
def trusting(cu_seqlens: Tensor, time: int) -> Iterator[None]:
    """Numbers the sequences of a packed row without a look at its offsets, for all calls inside.

    So offsets can go into a CUDA graph: it numbers those that lie there when it is replayed. The caller checks them.
    """
    _trusted[cu_seqlens] = Numbered(cu_seqlens, time)
    try:
        yield
    finally:
        del _trusted[cu_seqlens]


def _is_capturing(cu_seqlens: Tensor) -> bool:
    """Returns whether a CUDA graph is being captured on the device of the offsets."""
    if not cu_seqlens.is_cuda:
        return False
    with torch.cuda.device(cu_seqlens.device):
        return torch.cuda.is_current_stream_capturing()


def _key_of(cu_seqlens: Tensor, time: int) -> tuple[Any, ...]:
    """Returns a key of a tensor of offsets, and of the stream on which its numbers were computed."""
    device = cu_seqlens.device
    stream = torch.cuda.current_stream(device).cuda_stream if cu_seqlens.is_cuda else None
    layout = (cu_seqlens.data_ptr(), cu_seqlens.numel(), cu_seqlens.stride(), cu_seqlens.dtype)
    return (*layout, cu_seqlens._version, device, stream, time)
