"""A GPU that is not there: counts the kernels that a forward starts on one, and the times that it waits for one.

Tensors that claim to lie on a GPU hold their values on the CPU, so the code takes the ways of a GPU, and its results
can be looked at. A kernel of Triton is noted instead of run.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from mabert.ops import backends

GPU = torch.device("cuda:0")

FREE = {"_unsafe_view", "detach", "lift_fresh", "_fused_sdp_choice", "is_same_size", "record_stream"}
"""Operators of torch that start no kernel, besides views and `empty`."""

WAITING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_consecutive"}
"""Operators whose result's value or shape the host waits for, besides copies from and to the host."""


BY_MASK = {"index", "index_put", "index_put_"}
"""Operators that wait if they are given a mask, whose tokens are counted."""


READING = {
    *(Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.numpy),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
}
"""Methods that wait for a tensor's values. In inference mode torch does not take them apart into operators."""


class Event(NamedTuple):
    """What happened, and in which block of the model."""

    block: str
    what: str


class OnGpu(Tensor):
    """A tensor that says it lies on a GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, held.size(), device=GPU, **layout)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is called with a tensor of a stand-in outside of its context")


class Values(TorchFunctionMode):
    """Answers what torch asks a tensor's storage for, which a wrapped tensor lacks; and attends, by one kernel."""

    def __init__(self, mode: "StandIn") -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, Tensor.new_tensor) and (device := _device_of(func, args, kwargs)) is not None:
            return torch.tensor(*args[func is Tensor.new_tensor :], **{**kwargs, "device": "cpu"}).to(device)
        if args and isinstance(args[0], OnGpu):
            if func is nn.functional.scaled_dot_product_attention:
                return self.mode.attended(func, args, kwargs)
            if func is Tensor.__getitem__:
                return _part_of(*args)
            if func is Tensor.__setitem__:
                tensor, index, value = args
                tensor.held[index] = value.held if isinstance(value, OnGpu) else value
                self.mode.launches.append(Event(self.mode.block, "copy_"))
                return None
            if func is Tensor.copy_:
                return self.mode.copied(*args, **kwargs)
            if func is Tensor.contiguous:
                given = args[0]
                return given if given.is_contiguous() else given.clone(memory_format=torch.contiguous_format)
            if func in READING:
                self.mode.waits.append(Event(self.mode.block, func.__name__))
                return func(args[0].held)
            if func in (Tensor.data_ptr, Tensor.untyped_storage):
                return func(args[0].held)
        return func(*args, **kwargs)


def _part_of(tensor: OnGpu, index: Any) -> Tensor:
    """Indexes by numbers and slices, which starts nothing, or else by tensors."""
    indices = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(each, Tensor) for each in indices):
        return OnGpu(tensor.held[index])
    return torch.ops.aten.index.Tensor(tensor, list(indices))


def _device_of(func: Any, args: Any, kwargs: Any) -> torch.device | None:
    device = kwargs.get("device", args[0].device if func is Tensor.new_tensor else None)
    return GPU if device is not None and torch.device(device).type == "cuda" else None


class StandIn(TorchDispatchMode):
    """Runs operators on the values that tensors of the stand-in hold.

    Attributes:
        launches: The kernels started so far.
        waits: The waits of the host so far.
        block: The part of the model that runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Event] = []
        self.waits: list[Event] = []
        self.block = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given: list[Tensor] = []
        tree_map_only(OnGpu, given.append, (args, kwargs))
        if func.namespace == "mabert" and given:
            with self, Values(self):
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)
        wanted = kwargs.get("device")
        there = bool(given) if wanted is None else torch.device(wanted).type == "cuda"
        noted = args, kwargs
        if wanted is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        held_args, held_kwargs = tree_map_only(OnGpu, lambda tensor: tensor.held, (args, kwargs))
        made = func(*held_args, **held_kwargs)
        if (there or given) and (func._schema.is_mutable or not _is_view(made, given)):
            self._note(func, *noted, bool(given), there)
        if func._schema.is_mutable:
            return args[0]
        return tree_map_only(Tensor, OnGpu, made) if there else made

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], from_gpu: bool, to_gpu: bool) -> None:
        name, sized = func._schema.name.split("::")[1], kwargs.get("output_size") is not None
        if name in FREE or name.startswith(("empty", "new_empty")):
            return
        if from_gpu != to_gpu and name in ("to", "_to_copy"):
            if not kwargs.get("non_blocking"):
                self.waits.append(Event(self.block, f"{name} {'to' if to_gpu else 'from'} the GPU"))
            return  # the copy engine's work, not a kernel
        if name in WAITING or (name in BY_MASK and _holds_mask(args[1])) or (name == "repeat_interleave" and not sized):
            self.waits.append(Event(self.block, name))
        if name != "_local_scalar_dense":
            self.launches.append(Event(self.block, name))

    def attended(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Takes the place of attention, which is one kernel for a GPU, whose output lies in memory as the CPU's."""
        self.launches.append(Event(self.block, func.__name__))
        return OnGpu(func(*(tensor.held for tensor in args), **kwargs))

    def copied(self, tensor: OnGpu, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Takes the place of a copy in place, for which torch asks a storage in inference mode."""
        tensor.held.copy_(source.held if isinstance(source, OnGpu) else source)
        if isinstance(source, OnGpu):
            self.launches.append(Event(self.block, "copy_"))
        elif not non_blocking:
            self.waits.append(Event(self.block, "copy_ to the GPU"))
        return tensor

    def launched(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        """Takes the place of `launch` in `mabert.ops.triton`."""
        self.launches.append(Event(self.block, kernel.__name__))


def _is_view(made: Any, given: list[Tensor]) -> bool:
    """Returns whether an operator's result, or each of its results, lies in the memory of what it was given."""
    memory = {tensor.held.untyped_storage().data_ptr() for tensor in given}
    results = made if isinstance(made, (tuple, list)) else [made]
    tensors = [result for result in results if isinstance(result, Tensor)]
    return bool(tensors) and all(tensor.untyped_storage().data_ptr() in memory for tensor in tensors)


def _holds_mask(indices: Any) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def move(module: nn.Module) -> nn.Module:
    """Moves a module to the stand-in, without gradients, which torch cannot compute there; returns it."""
    moved: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for kind in (part._parameters, part._buffers):
            for name, tensor in kind.items():
                if tensor is not None:
                    kind[name] = moved.setdefault(tensor, nn.Parameter(OnGpu(tensor.detach()), requires_grad=False))
    return module


def _marking(mode: StandIn, module: nn.Module, name: str) -> list[Any]:
    """Notes in which block what happens inside a module."""
    outer: list[str] = []

    def enter(*_: Any) -> None:
        outer.append(mode.block)
        mode.block = name

    def leave(*_: Any) -> None:
        mode.block = outer.pop()

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


@contextlib.contextmanager
def stand_in(model: nn.Module | None = None) -> Iterator[StandIn]:
    """Pretends a GPU; inside, `.to(GPU)` moves tensors and modules there.

    Args:
        model: The model whose parts are told apart: embeddings, layers, and the rest.
    """
    from mabert.ops import triton  # noqa: F401  (its modules must be there to be replaced)

    mode, hooks = StandIn(), []
    for name, module in [] if model is None else model.named_modules():
        parts = name.split(".")
        if parts[-1] in ("embeddings", "pooler", "predictions") or parts[-2:-1] == ["layers"]:
            hooks += _marking(mode, module, name)
    here = torch.cuda
    with pytest.MonkeyPatch.context() as patch, mode, Values(mode):
        patch.setattr(backends, "_what_is_missing", lambda name, *_: "a GPU" if name == "cpu" else "")
        patch.setattr(here, "_lazy_init", lambda: None)
        patch.setattr(here, "device", lambda _: contextlib.nullcontext())
        patch.setattr(here, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
        patch.setattr(here, "is_current_stream_capturing", lambda: False)
        patch.setattr(here, "get_device_capability", lambda *_: (9, 0))
        patch.setattr(here, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
        for name, loaded in list(sys.modules.items()):
            if name.startswith("mabert.ops.triton") and hasattr(loaded, "launch") and callable(loaded.launch):
                patch.setattr(loaded, "launch", mode.launched)
        try:
            yield mode
        finally:
            for hook in hooks:
                hook.remove()
