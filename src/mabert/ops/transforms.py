"""Tells which of torch's transforms the code runs under: those of `torch.func`, and forward-mode differentiation."""

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad


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
