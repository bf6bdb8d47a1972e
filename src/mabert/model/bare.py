"""When a shortcut may stand for the call of a module: where nobody hung something on it or put something else in its
place."""

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook


def is_bare(module: nn.Module) -> bool:
    """Whether a module is called as its class has it: no hooks of its own or of all modules, and no forward of its
    own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(hooks) or _has_any_global_hook() or "forward" in vars(module))


def is_plain(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a module is a bare linear layer of torch's own class whose parameters are ordinary tensors.

    A quantized or sharded weight is a tensor of a class of its own, which need not know how to be cut or laid out.
    """
    if type(module) is not nn.Linear or not is_bare(module):
        return False
    return all(held is None or type(held) in (nn.Parameter, Tensor) for held in module._parameters.values())
