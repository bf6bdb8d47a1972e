"""Functions of weights alone, kept between forwards of inference on a GPU: each would start kernels anew."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from mabert.model.packing import is_tracing

T = TypeVar("T")

_kept: WeakKeyDictionary[nn.Module, dict[int | None, tuple[Any, Any]]] = WeakKeyDictionary()
"""For each module and stream, the kept value and the state of the weights that it was computed from. It lies outside
the modules, so that their copies, pickles and state dicts do not hold it."""

_held: ContextVar[list[Any] | None] = ContextVar("mabert_held", default=None)
"""Values that the CUDA graph that is being captured must keep alive."""


def kept(module: nn.Module, function: Callable[..., T], *weights: Tensor | None) -> T:
    """Returns what a function makes of a module's weights; the last forward's result, if the weights are unchanged.

    A module has one such function; its weights lie on one device, and None stands for an absent one.

    The value is computed anew if:
    - torch counted a write to a weight (an optimizer's step, loading, `copy_`);
    - a weight has new memory (`.to`, an assigned `.data`);
    - there was a forward outside `torch.inference_mode`;
    - `train` or `eval` was called, since torch does not count a write through `.data`.

    Nothing is kept for:
    - weights on a CPU;
    - a captured graph, though within `holding` a CUDA graph takes what was kept before;
    - inference tensors, whose writes are not counted;
    - modules that accelerate moves;
    - a process group, since sharding writes uncounted.
    """
    if torch.compiler.is_compiling():  # dynamo cannot capture what follows
        return function(*weights)
    present = [weight for weight in weights if weight is not None]
    held = _held.get()
    if is_tracing() and held is None:
        return function(*weights)
    if not in_inference() or not _may_keep(module, present):
        forget(module)
        return function(*weights)
    device = present[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    key = [*map(_state, present)]
    there = {each: entry for each, entry in _kept.get(module, {}).items() if entry[0] == key}
    if held is not None:
        if stream not in there:
            return function(*weights)
        held.append(there[stream][1])
    elif stream not in there:
        with torch.inference_mode(False), torch.no_grad():
            there[stream] = key, function(*weights)
        _kept[module] = there
    return there[stream][1]


@contextlib.contextmanager
def holding() -> Iterator[list[Any]]:
    """Lets a CUDA graph that is captured inside read what is kept; yields a list that the graph must hold on to."""
    held: list[Any] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


def in_inference() -> bool:
    """Returns whether the forward is one of `torch.inference_mode`, and not captured, which dynamo does not let ask."""
    if torch.compiler.is_compiling() or (is_tracing() and _held.get() is None):
        return False
    return torch.is_inference_mode_enabled()


def forget(module: nn.Module) -> None:
    """Drops what is kept for a module."""
    _kept.pop(module, None)


def _may_keep(module: nn.Module, weights: list[Tensor]) -> bool:
    uncounted = any(weight.device.type == "cpu" or weight.is_inference() for weight in weights)
    sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not (uncounted or sharded or hasattr(module, "_hf_hook"))


def _state(weight: Tensor) -> tuple[Any, ...]:
    """Returns what changes with a weight's values: its memory, by a reference that does not hold it, and its writes."""
    layout = (weight.storage_offset(), weight.shape, weight.stride(), weight.dtype, weight.device)
    return (StorageWeakRef(weight.untyped_storage()), weight._version, *layout)


class KeepsValues(nn.Module):
    """A module with a value of `kept`."""

    def train(self, mode: bool = True) -> "KeepsValues":
        forget(self)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeepsValues":
        forget(self)  # frees its memory on the old device
        super()._apply(fn, recurse)
        return self
