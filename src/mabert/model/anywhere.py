"""The module that a saved folder holds so that transformers can open it without an import of this package.

`AutoModel.from_pretrained(folder, trust_remote_code=True)` reads the class's name from the configuration's `auto_map`
and imports it from a module in the folder. Here that module only imports the class from `mabert`; if the package is
missing, transformers asks to install it.
"""

from pathlib import Path
from typing import Any

MODULE = "open_with_mabert"
"""Name of the module in the folder."""

CLASSES = {
    "AutoConfig": "MaBertConfig",
    "AutoModel": "MaBertModel",
    "AutoModelForTextEncoding": "MaBertModel",
    "AutoModelForPreTraining": "MaBertForMaskedLM",
    "AutoModelForMaskedLM": "MaBertForMaskedLM",
    "AutoModelForSequenceClassification": "MaBertForSequenceClassification",
    "AutoModelForTokenClassification": "MaBertForTokenClassification",
    "AutoModelForQuestionAnswering": "MaBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "MaBertForMultipleChoice",
}
"""transformers' Auto classes and the class of this package that each one opens a folder with."""

AUTO_MAP = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
"""The configuration's field `auto_map`."""

CODE = '"""Opens this folder by the classes of the package mabert: pip install mabert."""\n\nfrom mabert import (\n'
CODE += "".join(f"    {name},  # noqa: F401\n" for name in sorted(set(CLASSES.values()))) + ")\n"


class OpensAnywhere:
    """A configuration or model whose folder refers to this package instead of holding a copy of its code."""

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Does nothing; transformers would save a copy of the file that defines the class."""


def write_module(folder: str | Path) -> None:
    """Writes the module into a folder."""
    (Path(folder) / f"{MODULE}.py").write_text(CODE, encoding="utf-8")
