"""Derivatives of the operators: how their backwards serve autograd, and what serves torch's function transforms.

A custom op knows reverse mode alone: `torch.func`'s transforms refuse it, and forward mode would pass it by without a
word. Under a transform an operator therefore runs as an `autograd.Function` around its op, whose gradients come from
the kernels, and which `vmap` calls in a loop. Forward-mode and second derivatives, for which there are no kernels, are
those of the reference.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

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


@torch.compiler.assume_constant_result
def is_transformed() -> bool:
    """Whether this code runs under a transform of `torch.func` or in forward-mode differentiation."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


@torch.compiler.assume_constant_result
def is_forward_mode() -> bool:
    """Whether tensors may carry tangents."""
    return forward_ad._current_level >= 0


def serve(
    op: Callable[..., Any], around: type[Function], specification: Callable[..., Tensor], arguments: tuple[Any, ...]
) -> Tensor:
    """Run an operator so that what is asked of its derivatives is right.

    Args:
        op: The custom op.
        around: What `function_around` makes of it.
        specification: The same in plain PyTorch, of which torch knows every derivative.
        arguments: Those of the op, the backend last.

    Raises:
        ValueError: In forward mode, if another backend than the reference was asked for.
    """
    if not is_transformed():
        result = op(*arguments)
    elif is_forward_mode():
        result = by_reference(specification)(*arguments)
    else:
        result = around.apply(*arguments)
    return result[0] if isinstance(result, tuple) else result


def by_reference(specification: Callable[..., Any]) -> Callable[..., Any]:
    """A specification that raises ValueError where another backend was asked for, and else warns of being slow."""

    def function(*arguments: Any) -> Any:
        backend = arguments[-1]
        if backend not in (AUTO, "reference"):
            raise ValueError(
                f"backend {backend!r} was asked for, but forward-mode and second derivatives are the reference's alone"
            )
        if backend == AUTO:
            warn_if_slow(Choice("reference", "forward-mode and second derivatives have no kernels", slow=True))
        return specification(*arguments)

    return function


def gradients_of(specification: Callable[..., Any], cotangent: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Gradients of a specification's floating arguments, themselves differentiable in any way."""
    places = [n for n, given in enumerate(arguments) if is_float(given)]

    def function(*floats: Tensor) -> Any:
        filled = list(arguments)
        for place, given in zip(places, floats, strict=True):
            filled[place] = given
        return by_reference(specification)(*filled)

    return torch.func.vjp(function, *(arguments[place] for place in places))[1](cotangent)


def is_float(given: Any) -> bool:
    """Whether an argument is a tensor that has a derivative."""
    return isinstance(given, Tensor) and given.is_floating_point()


def pullback(specification: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The gradients of a specification as a function of the output's gradient, the forward's states, which it has no
    use for, and the specification's arguments."""
    return lambda grad, states, *arguments: gradients_of(specification, grad, arguments)


def function_around(
    op: Callable[..., Any], gradients: Callable[..., Any], *, states: bool = False, several: bool = False
) -> type[Function]:
    """Make a Function that `torch.func.grad`, `vmap` and what is made of them know.

    Args:
        op: Computes it.
        gradients: From the output's gradient, the states and the op's arguments to gradients of the floating ones.
        states: Whether the op gives states beside its output.
        several: Whether the op gives a list of outputs.
    """

    class Around(Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return tuple(op(*arguments)) if several else op(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            kept = output[1] if states else None
            if kept is not None:
                ctx.mark_non_differentiable(kept)
            ctx.places = [n for n, given in enumerate(inputs) if isinstance(given, Tensor)]
            ctx.others = [None if isinstance(given, Tensor) else given for given in inputs]
            ctx.save_for_backward(kept, *(inputs[place] for place in ctx.places))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
            kept, *tensors = ctx.saved_tensors
            arguments = list(ctx.others)
            for place, tensor in zip(ctx.places, tensors, strict=True):
                arguments[place] = tensor
            found = gradients(grads if several else grads[0], kept, *arguments)
            return tuple(spread(found, *(given if is_float(given) else None for given in arguments)))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            each = (
                Around.apply(
                    *(
                        given if dim is None else given.select(dim, index)
                        for given, dim in zip(arguments, in_dims, strict=True)
                    )
                )
                for index in range(info.batch_size)
            )
            if not states and not several:
                return torch.stack(list(each)), 0
            stacked = tuple(torch.stack(outputs) for outputs in zip(*each, strict=True))
            return stacked, (0,) * len(stacked)

    return Around


def _scan_backward(grad: Tensor, states: Tensor, *arguments: Any) -> list[Tensor]:
    *told, _, backend = arguments  # without whether states are kept
    return scan_backward_op(grad, states, *told, backend)


def _conv_backward(grad: Tensor, states: None, *arguments: Any) -> list[Tensor]:
    return conv_backward_op(grad, *arguments)


def differentiable(
    backward: Callable[..., list[Tensor]], specification: Callable[..., Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    """A backward whose results have derivatives, where somebody may ask for them."""
    pulled = pullback(specification)
    around = function_around(
        backward, lambda grads, _, *arguments: gradients_of(pulled, grads, arguments), several=True
    )

    def gradients(*arguments: Any) -> tuple[Tensor, ...]:
        if is_forward_mode():
            return pulled(*arguments)
        return around.apply(*arguments) if torch.is_grad_enabled() else tuple(backward(*arguments))

    return gradients


scan_gradients = differentiable(_scan_backward, reference_scan)
conv_gradients = differentiable(_conv_backward, reference_conv)
ScanFunction = function_around(scan_op, scan_gradients, states=True)
ConvFunction = function_around(conv_op, conv_gradients)
AttentionFunction = function_around(attention_op, pullback(reference_attention))


def scan(*arguments: Any) -> Tensor:
    """`scan_op`'s output, with its derivatives."""
    return serve(scan_op, ScanFunction, reference_scan, arguments)


def conv(*arguments: Any) -> Tensor:
    """`conv_op`, with its derivatives."""
    return serve(conv_op, ConvFunction, reference_conv, arguments)


def attention(*arguments: Any) -> Tensor:
    """`attention_op`, with forward-mode derivatives and `vmap`."""
    return serve(attention_op, AttentionFunction, reference_attention, arguments)


def _save_scan(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, delta_softplus, reverse, keep_states, backend = inputs
    ctx.save_for_backward(output[1], *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.flags = (delta_softplus, reverse, keep_states, backend)


def _backward_of_scan(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    states, *tensors = ctx.saved_tensors
    return (*spread(scan_gradients(grad, states, *tensors, *ctx.flags), *tensors[:8]), *[None] * 6)


def _save_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, mode, silu, reverse, backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.flags = (mode, silu, reverse, backend)


def _backward_of_conv(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    return (*spread(conv_gradients(grad, None, *tensors, *ctx.flags), *tensors[:3]), *[None] * 6)


scan_op.register_autograd(_backward_of_scan, setup_context=_save_scan)
conv_op.register_autograd(_backward_of_conv, setup_context=_save_conv)
