"""The operators and their backwards as `torch.library` custom ops: one node each for compile, export and autocast. How
one is the derivative of the other stands in `mabert.ops.derivatives`.

Each op takes the name of the backend as an argument, so that a backward, on whatever thread it runs, is served by the
backend that served the forward.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from mabert.ops import reference
from mabert.ops.backends import choose, warn_if_slow
from mabert.ops.layout import gpu_states_shape, saved_states_shape


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _kernels(name: str) -> Any:
    """Import the kernels of a backend, and with them its compiler, on first use."""
    if name == "triton":
        from mabert.ops import triton

        return triton
    from mabert.ops import cpu

    return cpu


def spread(gradients: Sequence[Tensor], *inputs: Tensor | None) -> list[Tensor | None]:
    """Give each input its gradient, and None to those that were not given."""
    remaining = iter(gradients)
    return [None if tensor is None else next(remaining) for tensor in inputs]


def _differentiate(function: Any, grad: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Differentiate the reference by autograd.

    Inside a custom op autograd is switched off, for this thread; another one has its own switches, and none of the
    modes under which the op may be running.
    """
    stream = torch.cuda.current_stream(grad.device) if grad.is_cuda else None

    def run() -> list[Tensor]:
        with torch.cuda.stream(stream):
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            gradients = torch.autograd.grad(function(*leaves), leaves, grad, materialize_grads=True)
        return [gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients]

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def reference_scan(*arguments: Any) -> Tensor:
    """The reference, by the arguments of `scan_op`."""
    u, delta, A, B, C, D, z, bias, mask, cu_seqlens, softplus, reverse, *_ = arguments
    options = {"delta_softplus": softplus, "mask": mask, "cu_seqlens": cu_seqlens, "reverse": reverse}
    return reference.selective_scan(u, delta, A, B, C, D, z, delta_bias=bias, **options)


def reference_conv(*arguments: Any) -> Tensor:
    """The reference, by the arguments of `conv_op`."""
    u, weight, bias, mask, cu_seqlens, mode, silu, reverse, *_ = arguments
    options = {"mode": mode, "activation": "silu" if silu else None, "reverse": reverse}
    return reference.depthwise_conv1d(u, weight, bias, mask=mask, cu_seqlens=cu_seqlens, **options)


def reference_attention(*arguments: Any) -> Tensor:
    """The reference, by the arguments of `attention_op`."""
    query, key, value, heads, scale, mask, cu_seqlens, window, *_ = arguments
    options = {"scale": scale, "mask": mask, "cu_seqlens": cu_seqlens, "window": window}
    return reference.softmax_attention(query, key, value, heads, **options)


@torch.library.custom_op("mabert::selective_scan", mutates_args=())
def scan_op(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
    keep_states: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Return ``y`` and the states at chunk boundaries (empty where the backend or the caller keeps none)."""
    choice = choose(backend, u, delta, A, B, C, D, z, delta_bias)
    warn_if_slow(choice)
    if choice.name != "reference":
        inputs = (u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse)
        return _kernels(choice.name).scan_forward(*inputs, keep_states=keep_states)
    y = reference_scan(u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse)
    return y.contiguous(), u.new_empty(0, dtype=torch.float32)


@scan_op.register_fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
    keep_states: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    name = choose(backend, u, delta, A, B, C, D, z, delta_bias).name
    shape: tuple[int, ...] = (0,)
    if keep_states and name != "reference":
        shape = saved_states_shape(u, A, cu_seqlens) if name == "cpu" else gpu_states_shape(u, A)
    return u.new_empty(u.shape), u.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("mabert::selective_scan_backward", mutates_args=())
def scan_backward_op(
    grad: Tensor,
    states: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
    backend: str,
) -> list[Tensor]:
    """Return the gradients of the floating inputs that were given, in the order of the arguments."""
    name = choose(backend, u, delta, A, B, C, D, z, delta_bias).name
    if name != "reference":
        inputs = (u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse)
        return _kernels(name).scan_backward(grad, states, *inputs)

    def scan(*inputs: Tensor) -> Tensor:
        floats = spread(list(inputs), u, delta, A, B, C, D, z, delta_bias)
        return reference_scan(*floats, mask, cu_seqlens, delta_softplus, reverse)

    return _differentiate(scan, grad, _present(u, delta, A, B, C, D, z, delta_bias))


@scan_backward_op.register_fake
def _(
    grad: Tensor,
    states: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    reverse: bool,
    backend: str,
) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in _present(u, delta, A, B, C, D, z, delta_bias)]


@torch.library.custom_op("mabert::depthwise_conv1d", mutates_args=())
def conv_op(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    mode: str,
    silu: bool,
    reverse: bool,
    backend: str,
) -> Tensor:
    """Return the convolution of ``u``, contiguous."""
    choice = choose(backend, u, weight, bias)
    warn_if_slow(choice)
    if choice.name != "reference":
        return _kernels(choice.name).conv_forward(u, weight, bias, mask, cu_seqlens, mode, silu, reverse)
    return reference_conv(u, weight, bias, mask, cu_seqlens, mode, silu, reverse).contiguous()


@conv_op.register_fake
def _(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    mode: str,
    silu: bool,
    reverse: bool,
    backend: str,
) -> Tensor:
    return u.new_empty(u.shape)


@torch.library.custom_op("mabert::depthwise_conv1d_backward", mutates_args=())
def conv_backward_op(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    mode: str,
    silu: bool,
    reverse: bool,
    backend: str,
) -> list[Tensor]:
    """Return the gradients of ``u``, ``weight`` and, where given, ``bias``."""
    name = choose(backend, u, weight, bias).name
    if name != "reference":
        return _kernels(name).conv_backward(grad, u, weight, bias, mask, cu_seqlens, mode, silu, reverse)

    def conv(*inputs: Tensor) -> Tensor:
        return reference_conv(*spread(list(inputs), u, weight, bias), mask, cu_seqlens, mode, silu, reverse)

    return _differentiate(conv, grad, _present(u, weight, bias))


@conv_backward_op.register_fake
def _(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    mode: str,
    silu: bool,
    reverse: bool,
    backend: str,
) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in _present(u, weight, bias)]


@torch.library.custom_op("mabert::softmax_attention", mutates_args=())
def attention_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    window: int | None,
    backend: str,
) -> Tensor:
    """Return the attention's output, contiguous. It has no gradient."""
    choice = choose(backend, query, key, value, among=("reference", "cpu"))
    warn_if_slow(choice)
    if choice.name == "cpu":
        return _kernels(choice.name).attention(query, key, value, heads, scale, mask, cu_seqlens, window)
    return reference_attention(query, key, value, heads, scale, mask, cu_seqlens, window).contiguous()


@attention_op.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    window: int | None,
    backend: str,
) -> Tensor:
    return query.new_empty(query.shape)
