"""Chooses the backend that serves a call, automatically or on request, and gives the reason."""

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from mabert.machine.environment import bf16_instructions

AUTO = "auto"
BACKENDS = ("reference", "cpu", "triton")
PORTABLE = "portable"
"""The backend that captures the recurrent operators in torch's own operations, see `mabert.ops.portable`."""

KERNEL_DTYPES = (torch.float32, torch.bfloat16)

_requested: ContextVar[str] = ContextVar("mabert_backend", default=AUTO)
_warned: set[str] = set()


class SlowBackendWarning(UserWarning):
    """The automatic choice fell back to the step-by-step reference, which is hundreds of times slower."""


@dataclass(frozen=True)
class Choice:
    """The backend that serves a call.

    Attributes:
        name: ``reference``, ``cpu``, ``triton`` or ``portable``.
        reason: Reason for the choice, in words.
        slow: Whether the automatic choice fell back to the reference.
    """

    name: str
    reason: str
    slow: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Serves every operator call inside the ``with`` block by one backend.

    The choice applies to the current thread or task and to the backward of what was computed inside. A compiled or
    exported graph takes it when it is traced. Activation checkpointing recomputes in the backward, which must then run
    inside the block too.

    Args:
        name: ``reference``, ``cpu``, ``triton``, or ``auto`` for the choice by device and dtype; ``portable`` for
            `torch.export`, so that the graph does not need this package.

    Raises:
        ValueError: No backend has that name. Whether the backend can serve a call is checked at the call.
    """
    if name not in (*BACKENDS, AUTO, PORTABLE):
        raise ValueError(f"backend must be one of {', '.join((*BACKENDS, AUTO, PORTABLE))}, got {name!r}")
    token = _requested.set(name)
    try:
        yield
    finally:
        _requested.reset(token)


@torch.compiler.assume_constant_result
def requested_backend() -> str:
    """Returns the name requested by `use_backend`, or ``auto``."""
    return _requested.get()


def explain(*tensors: torch.Tensor | None) -> Choice:
    """Tells which backend would serve a call of the two recurrent operators here, and why.

    Args:
        *tensors: The tensor arguments of the call; None is skipped. The operators copy float16 tensors to float32, so
            they count as such.

    Returns:
        The choice; ``str()`` of it is one readable line.

    Raises:
        ValueError: The backend requested by `use_backend` cannot serve them; the message says what is missing.
    """
    if requested_backend() == PORTABLE:
        return Choice(PORTABLE, "asked for by use_backend")
    present = [tensor for tensor in tensors if tensor is not None]
    wide = [tensor.new_empty(0, dtype=torch.float32) if tensor.dtype == torch.float16 else tensor for tensor in present]
    return choose(requested_backend(), *wide)


def choose(name: str, *tensors: torch.Tensor | None, among: tuple[str, ...] = BACKENDS) -> Choice:
    """Resolves a requested name (or ``auto``) for the tensors of one call of an operator that the backends ``among``
    have; see `explain`."""
    present = [tensor for tensor in tensors if tensor is not None]
    if name == AUTO:
        on_gpu = any(tensor.device.type == "cuda" for tensor in present)
        name, place = ("triton", "a GPU") if on_gpu else ("cpu", "the CPU")
        missing = _what_is_missing(name, present) if name in among else f"the operator has no kernel for {place}"
        if missing:
            return Choice("reference", missing, slow=True)
        return Choice(name, f"tensors lie on {place} in float32 or bfloat16")
    if name not in among:
        raise ValueError(f"backend {name!r} was asked for, but it lacks this operator; {', '.join(among)} have it")
    if missing := _what_is_missing(name, present):
        raise ValueError(f"backend {name!r} was asked for, but {missing}")
    return Choice(name, "asked for by use_backend")


def _what_is_missing(name: str, tensors: list[torch.Tensor]) -> str:
    if name == "reference":
        return ""
    device = "cuda" if name == "triton" and not interprets_triton() else "cpu"
    for tensor in tensors:
        if tensor.device.type != device:
            return f"its kernels run on {device} and a tensor lies on {tensor.device}"
        if tensor.is_floating_point() and tensor.dtype not in KERNEL_DTYPES:
            return f"its kernels take float32 and bfloat16, and a tensor is {tensor.dtype}"
    compiler = {"cpu": "numba", "triton": "triton"}[name]
    if not _is_installed(compiler):
        return f"{compiler}, which compiles the kernels, is not installed"
    return ""


def refuse_unless_portable(cu_seqlens: torch.Tensor | None) -> None:
    """Raises if the portable form of an operator cannot serve: outside of a captured graph, or for packed rows."""
    if not torch.compiler.is_compiling():
        raise ValueError("backend 'portable' is for graphs that torch.export captures; any other is faster here")
    if cu_seqlens is not None:
        raise ValueError("backend 'portable' takes no packed rows (cu_seqlens); give a padded batch")


def interprets_triton() -> bool:
    """Tells whether Triton's interpreter was requested: the GPU kernels then run, very slowly, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


AMX_PAYS_FROM = 1024
"""Tokens of a single text from which our attention beats torch's own on a processor with AMX."""

_instructions = functools.cache(bf16_instructions)


def attention_pays(tensor: torch.Tensor, sequences: int, windowed: bool = False) -> bool:
    """Tells whether `mabert.ops.softmax_attention` is faster on such a tensor here than torch's own attention.

    It is faster if the processor has bfloat16 products in AVX-512 but no AMX, because torch's kernel then runs at
    float32 speed. With AMX, it is faster in bfloat16 for several sequences or for one of at least `AMX_PAYS_FROM`
    tokens (measured: `benchmarks/LOG.md`). Other cases were not measured, and the answer is no; a window has no AMX
    code. The tensor is ``(batch, time, width)``, padded or packed sequences; under autocast, autocast's dtype counts.
    """
    if _what_is_missing("cpu", [tensor]) or requested_backend() not in (AUTO, "cpu"):
        return False
    instructions = _instructions()
    if "amx_bf16" not in instructions:
        return "avx512_bf16" in instructions
    if windowed:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else tensor.dtype
    if dtype != torch.bfloat16 or (sequences == 1 and tensor.shape[1] < AMX_PAYS_FROM):
        return False
    from mabert.ops.cpu.amx import may_use_amx

    return may_use_amx()


@functools.cache
def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def warn_if_slow(choice: Choice) -> None:
    """Warns, once for each reason, that a call fell back to the reference unasked."""
    if choice.slow and choice.reason not in _warned:
        _warned.add(choice.reason)
        warnings.warn(
            f"mabert serves this call by the slow step-by-step reference: {choice.reason}. "
            "Wrap the call in mabert.ops.use_backend('reference') to ask for it and silence this.",
            SlowBackendWarning,
            stacklevel=2,
        )
