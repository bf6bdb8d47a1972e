"""What PEFT adapts in a MaBERT where its configuration names no modules."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

TABLES = "peft.utils.constants"
"""The module of PEFT in which a model's type leads to module names."""

PROJECTIONS = ["query", "value", "in_proj", "out_proj"]

DEFAULTS = {
    "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING": PROJECTIONS,
    "TRANSFORMERS_MODELS_TO_ADALORA_TARGET_MODULES_MAPPING": PROJECTIONS,
    "TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING": ["key", "value", "in_proj", "down"],
    "TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING": ["down"],
}
"""PEFT's tables, and what each has for a MaBERT: attention's projections and the Mamba blocks' of the same standing."""


def register_with_peft(model_type: str) -> None:
    """Tells PEFT, now if it is imported, else as soon as it is: importing it here would take seconds."""
    if TABLES in sys.modules:
        fill(sys.modules[TABLES], model_type)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(model_type))


def fill(tables: ModuleType, model_type: str) -> None:
    """Adds a row to each of PEFT's tables, unless it has one."""
    for name, modules in DEFAULTS.items():
        getattr(tables, name, {}).setdefault(model_type, list(modules))


class _WhenImported(MetaPathFinder):
    """Waits for PEFT's tables to be imported, fills them, and is gone."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds nothing itself; has the tables filled once they are executed."""
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
