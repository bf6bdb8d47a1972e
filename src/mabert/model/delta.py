"""Folders that hold a model's difference to another one, and where the whole model is that they stand for."""

from importlib import import_module
from pathlib import Path
from typing import Any

FILE = "delta.safetensors"
"""The weights that differ."""

COMPOSER = ("mabert.conversion.delta", "compose")
"""The function that makes a whole model's folder of such a folder; it knows teachers, and the model does not."""


def is_delta(path: str | Path) -> bool:
    """Whether a folder holds a difference in place of whole weights."""
    return (Path(path) / FILE).is_file()


def whole(path: Any) -> Any:
    """The folder to read weights from: that of the whole model where `path` is a difference, else `path`."""
    if not isinstance(path, str | Path) or not is_delta(path):
        return path
    module, function = COMPOSER
    return getattr(import_module(module), function)(path)
