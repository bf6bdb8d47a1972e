"""The modules that PEFT adapts in a MaBERT when its own configuration names none."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

TABLES = "peft.utils.constants"
"""The module of PEFT that maps model types to module names."""

PROJECTIONS = ["query", "value", "in_proj", "out_proj"]

DEFAULTS = {
    "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING": PROJECTIONS,
    "TRANSFORMERS_MODELS_TO_ADALORA_TARGET_MODULES_MAPPING": PROJECTIONS,
    "TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING": ["key", "value", "in_proj", "down"],
    "TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING": ["down"],
}
"""PEFT's tables and MaBERT's row in each: attention's projections and their counterparts in the Mamba blocks."""


def register_with_peft(model_type: str) -> None:
    """Fills PEFT's tables now if PEFT is imported, else when it is: importing it here would take seconds."""
    if TABLES in sys.modules:
        fill(sys.modules[TABLES], model_type)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(model_type))


def fill(tables: ModuleType, model_type: str) -> None:
    """Adds a row to each of PEFT's tables that has none for this model."""
    for name, modules in DEFAULTS.items():
        getattr(tables, name, {}).setdefault(model_type, list(modules))


class _WhenImported(MetaPathFinder):
    """Waits for PEFT's tables to be imported, fills them, and removes itself."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of PEFT's tables, extended to fill them once executed; None for other modules."""
        if name != TABLES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def filled(module: ModuleType) -> None:
            execute(module)
            fill(module, self.model_type)

        spec.loader.exec_module = filled  # type: ignore[method-assign]
        return spec
