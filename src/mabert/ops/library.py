"""The operators and their backwards as `torch.library` custom ops: one node each for compile, export and autocast.

`mabert.ops.derivatives` registers each backward as its operator's derivative. An operator's schema is the only list of
its arguments; its backward and both fakes take them by position. Each op has the backend's name as an argument, so that
the backward, on whatever thread it runs, uses the backend of the forward.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from mabert.ops import reference
from mabert.ops.backends import choose, warn_if_slow
from mabert.ops.layout import gpu_states_shape, saved_states_shape

SCAN = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
    "Tensor? mask, Tensor? cu_seqlens, bool delta_softplus, bool reverse"
)
CONV = "Tensor u, Tensor weight, Tensor? bias, Tensor? mask, Tensor? cu_seqlens, str mode, bool silu, bool reverse"
ATTENTION = (
    "Tensor query, Tensor key, Tensor value, SymInt heads, float scale, Tensor? mask, Tensor? cu_seqlens, "
    "SymInt? window"
)
"""Arguments of the operators, see `mabert.ops`; those of the backwards begin with `grad`."""

SCAN_ARGUMENTS, ATTENTION_ARGUMENTS = (each.count(",") + 1 for each in (SCAN, ATTENTION))
"""Number of arguments, per operator."""

SCAN_FLOATS, CONV_FLOATS = 8, 3
"""Number of leading arguments that have a gradient, per operator."""


def _define(name: str, schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Makes an operator of a function.

    `torch.library.custom_op` does the same and takes the host half as long again: it also looks for an output that is
    an input, which `opcheck` does in the tests. `fake` makes empty outputs from its arguments, for a capture.
    """
    torch.library.define(f"mabert::{name}", schema)
    torch.library.register_fake(f"mabert::{name}", fake)

    def register(function: Callable[..., Any]) -> Any:
        torch.library.impl(f"mabert::{name}", "default", torch.compiler.disable(function))
        return getattr(torch.ops.mabert, name).default

    return register


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _kernels(name: str) -> Any:
    """Imports a backend's kernels, and with them its compiler, on first use."""
    if name == "triton":
        from mabert.ops import triton

        return triton
    from mabert.ops import cpu

    return cpu


def spread(gradients: Sequence[Tensor], *inputs: Tensor | None) -> list[Tensor | None]:
    """Gives each input its gradient, and None to absent inputs."""
    remaining = iter(gradients)
    return [None if tensor is None else next(remaining) for tensor in inputs]


def _differentiate(function: Any, grad: Tensor, inputs: list[Any], floats: int) -> list[Tensor]:
    """Differentiates the reference by autograd.

    Inside a custom op, autograd is off for this thread, so another thread does it: it has its own switches, and none of
    the modes that the op may be running under. It does all of it: on a GPU this thread is the one that autograd has for
    the device, and serves no other while it waits here. The first `floats` inputs may have a gradient.
    """
    stream = torch.cuda.current_stream(grad.device) if grad.is_cuda else None

    def run() -> list[Tensor]:
        with torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            leaves = [tensor.detach().requires_grad_() for tensor in _present(*inputs[:floats])]
            output = function(*spread(leaves, *inputs[:floats]), *inputs[floats:])
            gradients = torch.autograd.grad(output, leaves, grad, materialize_grads=True)
        return [gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients]

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def reference_scan(*arguments: Any) -> Tensor:
    """Calls the reference with the arguments of `scan_op`."""
    return reference.selective_scan(*arguments[:SCAN_ARGUMENTS])


def reference_conv(*arguments: Any) -> Tensor:
    """Calls the reference with the arguments of `conv_op`."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse, *_ = arguments
    return reference.depthwise_conv1d(u, weight, bias, mask, cu_seqlens, mode, "silu" if silu else None, reverse)


def reference_attention(*arguments: Any) -> Tensor:
    """Calls the reference with the arguments of `attention_op`."""
    return reference.softmax_attention(*arguments[:ATTENTION_ARGUMENTS])


def _fake_scan(*given: Any) -> tuple[Tensor, Tensor]:
    *inputs, keep_states, backend = given
    u, A, cu_seqlens = inputs[0], inputs[2], inputs[9]
    name = choose(backend, *inputs[:SCAN_FLOATS]).name
    shape: tuple[int, ...] = (0,)
    if keep_states and name != "reference":
        shape = saved_states_shape(u, A, cu_seqlens) if name == "cpu" else gpu_states_shape(u, A)
    return u.new_empty(u.shape), u.new_empty(shape, dtype=torch.float32)


@_define("selective_scan", f"({SCAN}, bool keep_states, str backend) -> (Tensor, Tensor)", _fake_scan)
def scan_op(*given: Any) -> tuple[Tensor, Tensor]:
    """Returns ``y`` and the states at chunk boundaries (empty if the backend or the caller keeps none)."""
    *inputs, keep_states, backend = given
    choice = choose(backend, *inputs[:SCAN_FLOATS])
    warn_if_slow(choice)
    if choice.name != "reference":
        return _kernels(choice.name).scan_forward(*inputs, keep_states=keep_states)
    return reference_scan(*inputs).contiguous(), inputs[0].new_empty(0, dtype=torch.float32)


def _like(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in _present(*tensors)]


@_define(
    "selective_scan_backward",
    f"(Tensor grad, Tensor states, {SCAN}, str backend) -> Tensor[]",
    lambda grad, states, *given: _like(*given[:SCAN_FLOATS]),
)
def scan_backward_op(grad: Tensor, states: Tensor, *given: Any) -> list[Tensor]:
    """Returns the gradients of the floating inputs that are present, in the order of the arguments."""
    *inputs, backend = given
    name = choose(backend, *inputs[:SCAN_FLOATS]).name
    if name != "reference":
        return _present(*_kernels(name).scan_backward(grad, states, *inputs))
    return _differentiate(reference_scan, grad, inputs, SCAN_FLOATS)


@_define("depthwise_conv1d", f"({CONV}, str backend) -> Tensor", lambda u, *_: u.new_empty(u.shape))
def conv_op(*given: Any) -> Tensor:
    """Returns the convolution of ``u``, contiguous."""
    *inputs, backend = given
    choice = choose(backend, *inputs[:CONV_FLOATS])
    warn_if_slow(choice)
    if choice.name != "reference":
        return _kernels(choice.name).conv_forward(*inputs)
    return reference_conv(*inputs).contiguous()


@_define(
    "depthwise_conv1d_backward",
    f"(Tensor grad, {CONV}, str backend) -> Tensor[]",
    lambda grad, *given: _like(*given[:CONV_FLOATS]),
)
def conv_backward_op(grad: Tensor, *given: Any) -> list[Tensor]:
    """Returns the gradients of ``u``, ``weight`` and, if present, ``bias``."""
    *inputs, backend = given
    name = choose(backend, *inputs[:CONV_FLOATS]).name
    if name != "reference":
        return _present(*_kernels(name).conv_backward(grad, *inputs))
    return _differentiate(reference_conv, grad, inputs, CONV_FLOATS)


@_define("softmax_attention", f"({ATTENTION}, str backend) -> Tensor", lambda query, *_: query.new_empty(query.shape))
def attention_op(*given: Any) -> Tensor:
    """Returns the attention's output, contiguous. It has no gradient."""
    *inputs, backend = given
    choice = choose(backend, *inputs[:3], among=("reference", "cpu"))
    warn_if_slow(choice)
    if choice.name == "cpu":
        return _kernels(choice.name).attention(*inputs)
    return reference_attention(*inputs).contiguous()
