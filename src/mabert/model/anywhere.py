"""What a saved folder holds so that transformers opens it by itself, where this package is installed but not imported.

`AutoModel.from_pretrained(folder, trust_remote_code=True)` looks in the configuration's `auto_map` for a class and in
the folder for the module that has it. Here that module only imports the class; where the package is missing,
transformers says that `mabert` is to be installed.
"""

from pathlib import Path
from typing import Any

MODULE = "open_with_mabert"
"""The module in the folder."""

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
"""transformers' Auto classes, and the class of this package that each of them opens a folder by."""

AUTO_MAP = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
"""The configuration's field of that name."""

CODE = '"""Opens this folder by the classes of the package mabert: pip install mabert."""\n\nfrom mabert import (\n'
CODE += "".join(f"    {name},  # noqa: F401\n" for name in sorted(set(CLASSES.values()))) + ")\n"


class OpensAnywhere:
    """A configuration or model whose folder names this package in place of holding a copy of its code."""

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Does nothing: transformers would save a copy of the file that defines the class."""


def write_module(folder: str | Path) -> None:
    """Writes the module into a folder."""
    (Path(folder) / f"{MODULE}.py").write_text(CODE, encoding="utf-8")
