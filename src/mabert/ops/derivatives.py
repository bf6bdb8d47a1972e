"""Derivatives of the operators: in autograd, under the transforms of `torch.func`, and in forward mode.

A custom op knows reverse mode alone. The transforms refuse it, and forward mode would pass it by without a word.
Inside a transform the op therefore runs in an `autograd.Function`, which keeps the kernels for first gradients and
which `vmap` calls in a loop. Forward-mode and second derivatives have no kernels: they are the reference's, and so is
a transform in compiled code, where torch cannot capture such a Function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mabert.ops.backends import AUTO, Choice, warn_if_slow
from mabert.ops.library import (
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
from mabert.ops.transforms import is_forward_mode, is_transformed

Outputs = tuple[Tensor, ...]

_ONLY_REFERENCE = "forward-mode or second derivatives, compiled torch.func transform, or attention under a transform"


def scan(*arguments: Any) -> Tensor:
    """The output of `scan_op`, by its arguments, with all its derivatives."""
    if not is_transformed():
        return scan_op(*arguments)[0]
    return _transformed(_TransformedScan, reference_scan, arguments)


def conv(*arguments: Any) -> Tensor:
    """The output of `conv_op`, by its arguments, with all its derivatives."""
    if not is_transformed():
        return conv_op(*arguments)
    return _transformed(_TransformedConv, reference_conv, arguments)


def attention(*arguments: Any) -> Tensor:
    """The output of `attention_op`, by its arguments; under a transform the reference's, which has derivatives."""
    return _by_reference(reference_attention, arguments) if is_transformed() else attention_op(*arguments)


def _transformed(function: type[Function], specification: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
    if is_forward_mode() or torch.compiler.is_compiling():
        return _by_reference(specification, arguments)
    return function.apply(*arguments)[0]


def _by_reference(specification: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Calls the reference if the caller has not asked for another backend, which is the last argument."""
    if arguments[-1] == AUTO:
        warn_if_slow(Choice("reference", f"the kernels serve no {_ONLY_REFERENCE}", slow=True))
    elif arguments[-1] != "reference":
        raise ValueError(f"backend {arguments[-1]!r} was asked for, but it serves no {_ONLY_REFERENCE}")
    return specification(*arguments)


def _is_float(given: Any) -> bool:
    return isinstance(given, Tensor) and given.is_floating_point()


def _pull_back(specification: Callable[..., Any], grad: Any, arguments: tuple[Any, ...]) -> Outputs:
    """The gradients of the floating arguments by torch's own rules, which torch can differentiate again."""
    wanted = [_is_float(given) for given in arguments]

    def function(*floats: Tensor) -> Any:
        remaining = iter(floats)
        filled = [next(remaining) if is_float else given for is_float, given in zip(wanted, arguments, strict=True)]
        return _by_reference(specification, tuple(filled))

    return torch.func.vjp(function, *filter(_is_float, arguments))[1](grad)


def _make_function(outputs: Callable[..., Outputs], gradients: Callable[..., Outputs]) -> type[Function]:
    """Makes a Function that the transforms of `torch.func` know.

    Args:
        outputs: From the arguments to the outputs.
        gradients: From the gradients of the outputs, one tuple, and the arguments to those of the floating arguments.
    """

    class Transformed(Function):
        @staticmethod
        def forward(*arguments: Any) -> Outputs:
            return outputs(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Outputs) -> None:
            ctx.others = [None if isinstance(given, Tensor) else given for given in inputs]
            ctx.save_for_backward(*(given if isinstance(given, Tensor) else None for given in inputs))

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
            arguments = [other if tensor is None else tensor for tensor, other in pairs]
            floats = [given if _is_float(given) else None for given in arguments]
            return tuple(spread(gradients(grads, *arguments), *floats))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Outputs, tuple[int, ...]]:
            split = [
                [given] * info.batch_size if dim is None else given.unbind(dim)
                for given, dim in zip(arguments, in_dims, strict=True)
            ]
            each = [Transformed.apply(*one) for one in zip(*split, strict=True)]
            together = tuple(torch.stack(outputs) for outputs in zip(*each, strict=True))
            return together, (0,) * len(together)

    return Transformed


def _make_backward(backward: Callable[..., Outputs], specification: Callable[..., Tensor]) -> Callable[..., Outputs]:
    """Makes what computes gradients under a transform, or where they are to be differentiated in turn.

    Args:
        backward: From the output's gradient and the operator's arguments to the gradients of the floating ones.
        specification: The operator in plain PyTorch.
    """

    def pull_back(grad: Tensor, *arguments: Any) -> Outputs:
        return _pull_back(specification, grad, arguments)

    function = _make_function(backward, lambda grads, *arguments: _pull_back(pull_back, grads, arguments))
    return lambda *arguments: pull_back(*arguments) if is_forward_mode() else function.apply(*arguments)


def _scan_anew(*arguments: Any) -> Outputs:
    return (scan_op(*arguments)[0],)


def _scan_backward(grad: Tensor, *arguments: Any) -> Outputs:
    """Computes the forward's states anew: under a transform nothing keeps them."""
    *given, _, backend = arguments
    states = scan_op(*given, True, backend)[1]
    return tuple(scan_backward_op(grad, states, *given, backend))


def _conv_once(*arguments: Any) -> Outputs:
    return (conv_op(*arguments),)


def _conv_backward(grad: Tensor, *arguments: Any) -> Outputs:
    return tuple(conv_backward_op(grad, *arguments))


_scan_gradients = _make_backward(_scan_backward, reference_scan)
_conv_gradients = _make_backward(_conv_backward, reference_conv)
_TransformedScan = _make_function(_scan_anew, lambda grads, *arguments: _scan_gradients(*grads, *arguments))
_TransformedConv = _make_function(_conv_once, lambda grads, *arguments: _conv_gradients(*grads, *arguments))


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
    if torch.is_grad_enabled() or is_forward_mode():
        *flags, backend = ctx.flags
        gradients = _scan_gradients(grad, *tensors, *flags, False, backend)
    else:
        gradients = scan_backward_op(grad, states, *tensors, *ctx.flags)
    return (*spread(gradients, *tensors[:8]), *[None] * 6)


def _conv_autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    again = torch.is_grad_enabled() or is_forward_mode()
    gradients = (_conv_gradients if again else conv_backward_op)(grad, *tensors, *ctx.flags)
    return (*spread(gradients, *tensors[:3]), *[None] * 6)


scan_op.register_autograd(_scan_autograd, setup_context=_save_scan)
conv_op.register_autograd(_conv_autograd, setup_context=_save_conv)
