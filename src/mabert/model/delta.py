"""Folders that hold only a model's difference from another one, and the whole models they stand for."""

from importlib import import_module
from pathlib import Path
from typing import Any

FILE = "delta.safetensors"
"""The weights that differ."""

COMPOSER = ("mabert.conversion.delta", "compose")
"""The function that makes a whole model's folder from such a folder; it lives in `conversion`, which knows teachers."""


def is_delta(path: str | Path) -> bool:
    """Returns whether a folder holds a difference instead of whole weights."""
    return (Path(path) / FILE).is_file()


def whole(path: Any) -> Any:
    """Returns the folder to read weights from: the whole model's if `path` holds a difference, else `path`."""
    if not isinstance(path, str | Path) or not is_delta(path):
        return path
    module, function = COMPOSER
    return getattr(import_module(module), function)(path)
