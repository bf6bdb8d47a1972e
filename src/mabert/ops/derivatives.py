"""Derivatives of the operators: first derivatives by the kernels, all others by the reference; and which of torch's
transforms the code runs under.

A custom op supports only reverse mode: the transforms of `torch.func` refuse it, and forward mode would silently ignore
it. Inside a transform, and for gradients that are differentiated again, the reference in plain PyTorch is used instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from mabert.ops.backends import AUTO, Choice, warn_if_slow
from mabert.ops.library import (
    CONV_FLOATS,
    SCAN_FLOATS,
    attention_op,
    conv_backward_op,
    conv_op,
    reference_attention,
    reference_conv,
    reference_scan,
    scan_backward_op,
    scan_op,
    spread,
)


@torch.compiler.assume_constant_result
def is_transformed() -> bool:
    """Returns whether this code runs under any transform, or in forward mode."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


@torch.compiler.assume_constant_result
def is_mapped() -> bool:
    """Returns whether this code runs for many inputs at once (`torch.vmap`), so that it must not look at values."""
    if not torch._C._are_functorch_transforms_active():
        return False
    return any(level.key() == TransformType.Vmap for level in get_interpreter_stack() or ())


_ONLY_REFERENCE = "transform of torch.func, forward mode or second derivatives"


def scan(*arguments: Any) -> Tensor:
    """Returns the output of `scan_op`, with all its derivatives; takes the op's arguments."""
    return _by_reference(reference_scan, arguments) if is_transformed() else scan_op(*arguments)[0]


def conv(*arguments: Any) -> Tensor:
    """Returns the output of `conv_op`, with all its derivatives; takes the op's arguments."""
    return _by_reference(reference_conv, arguments) if is_transformed() else conv_op(*arguments)


def attention(*arguments: Any) -> Tensor:
    """Returns the output of `attention_op`, or under a transform the reference's, which has derivatives."""
    return _by_reference(reference_attention, arguments) if is_transformed() else attention_op(*arguments)


def _by_reference(specification: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Calls the reference unless the last argument, the backend, requests another one."""
    if arguments[-1] == AUTO:
        warn_if_slow(Choice("reference", f"the kernels serve no {_ONLY_REFERENCE}", slow=True))
    elif arguments[-1] != "reference":
        raise ValueError(f"backend {arguments[-1]!r} was asked for, but it serves no {_ONLY_REFERENCE}")
    return specification(*arguments)


def _differentiable(specification: Callable[..., Tensor], grad: Tensor, arguments: tuple[Any, ...], floats: int) -> Any:
    """Returns the gradients of the first ``floats`` arguments by torch's own rules, which torch can differentiate."""
    given = [tensor for tensor in arguments[:floats] if tensor is not None]

    def function(*tensors: Tensor) -> Any:
        return _by_reference(specification, (*spread(tensors, *arguments[:floats]), *arguments[floats:]))

    return torch.func.vjp(function, *given)[1](grad)


def _save_scan(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, delta_softplus, reverse, _, backend = inputs
    ctx.save_for_backward(output[1], *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.flags = (delta_softplus, reverse, backend)


def _save_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, mode, silu, reverse, backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.flags = (mode, silu, reverse, backend)


def _scan_autograd(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    states, *tensors = ctx.saved_tensors
    if torch.is_grad_enabled():
        gradients = _differentiable(reference_scan, grad, (*tensors, *ctx.flags), SCAN_FLOATS)
    else:
        gradients = scan_backward_op(grad, states, *tensors, *ctx.flags)
    return (*spread(gradients, *tensors[:SCAN_FLOATS]), *[None] * 6)


def _conv_autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if torch.is_grad_enabled():
        gradients = _differentiable(reference_conv, grad, (*tensors, *ctx.flags), CONV_FLOATS)
    else:
        gradients = conv_backward_op(grad, *tensors, *ctx.flags)
    return (*spread(gradients, *tensors[:CONV_FLOATS]), *[None] * 6)


torch.library.register_autograd("mabert::selective_scan", _scan_autograd, setup_context=_save_scan)
torch.library.register_autograd("mabert::depthwise_conv1d", _conv_autograd, setup_context=_save_conv)
