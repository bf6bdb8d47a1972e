"""Chooses the parameters under AdamW's weight decay."""

from torch import nn

from mabert.model.mamba import Recurrence


def decay_parameter_names(model: nn.Module, exempt: str = "default") -> list[str]:
    """Returns the names of the parameters under weight decay: matrices and embeddings.

    Biases, norms and the recurrence's A_log, D and Δ bias are exempt: decay would pull time constants and step sizes
    towards arbitrary values. Mamba-1 exempts them too.

    Args:
        model: Any of the models.
        exempt: `default`, or `nothing` to decay every parameter.

    Raises:
        ValueError: For any other `exempt`.
    """
    if exempt not in ("default", "nothing"):
        raise ValueError(f"decay_exempt is {exempt!r}; it must be 'default' or 'nothing'")
    if exempt == "nothing":
        return [name for name, _ in model.named_parameters()]
    scans = [module for module in model.modules() if isinstance(module, Recurrence)]
    spared = {id(getattr(scan, name)) for scan in scans for name in Recurrence.FLOAT32}
    return [name for name, parameter in model.named_parameters() if parameter.ndim > 1 and id(parameter) not in spared]
