"""Whether a person hung something on a module that shortcuts would pass by."""

from torch import nn


def is_bare(module: nn.Module) -> bool:
    """Whether a module is called as its class has it: no hooks, and no forward of its own."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
