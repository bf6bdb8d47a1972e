"""Custom mixers: another letter for the schedule, without a change to this package.

A mixer is an `nn.Module` whose constructor takes only the model's configuration, with::

    forward(hidden, mask, output_attentions=False) -> (mixed, attention or None)

`hidden` is (batch, time, D), normalised, and zero at padding; `mixed` has the same shape. `mask` is a `PaddingMask`;
its `per_text` gives batches with one text per row, whether the input is padded or packed. The output for a text must
not depend on padding or on other texts in the batch or row, which `mabert.testing.check_mixer` tests. A submodule with
parameters of its own, not only layers, initializes them in a method `init_weights`.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Literal

from torch import nn

from mabert.model.blocks import BLOCKS, MixerBlock
from mabert.model.config import LAYER_TYPES
from mabert.model.encoder import MaBertPreTrainedModel

VARIABLE = "MABERT_MIXERS"
"""Environment variable that lists files or modules that register mixers, separated by `os.pathsep`, a colon."""


def register_mixer(
    letter: str, mixer: type[nn.Module], *, kind: Literal["linear_attention", "full_attention"] = "linear_attention"
) -> None:
    """Registers a mixer under a letter of the schedule, for this process: ``layer_pattern="GGT"``.

    A model with it is saved as any other, and opens wherever the letter is registered. For the command line, the
    environment variable MABERT_MIXERS names the code that registers it.

    Args:
        letter: A capital other than M and T.
        mixer: The mixer's class, see the top of this module.
        kind: The kind of layer that transformers is told.

    Raises:
        ValueError: If it is not such a letter, or another mixer has it.
    """
    if not (isinstance(letter, str) and len(letter) == 1 and "A" <= letter <= "Z"):
        raise ValueError(f"letter is {letter!r}; it must be one capital of A to Z")
    held = BLOCKS.get(letter)
    if held is not None:
        known = getattr(held, "MIXER", None)
        same = known is not None and (known.__module__, known.__qualname__) == (mixer.__module__, mixer.__qualname__)
        if same and letter not in "MT":
            return
        raise ValueError(f"letter is {letter!r}, which is taken by {held.__name__}")
    block = type(f"{mixer.__name__}Block", (MixerBlock,), {"MIXER": mixer, "__doc__": f"A block of {mixer.__name__}."})
    BLOCKS[letter], LAYER_TYPES[letter] = block, kind
    MaBertPreTrainedModel._no_split_modules.append(block.__name__)


def register_named() -> None:
    """Imports the files and modules that `VARIABLE` names.

    Raises:
        ValueError: If there is no such file or module, or another module of a file's name is imported.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        path = Path(name)
        if path.suffix != ".py":
            try:
                there = importlib.util.find_spec(name) is not None
            except ImportError as error:
                if error.name and not f"{name}.".startswith(f"{error.name}."):  # what a package before the dot imports
                    raise
                there = False
            if not there:
                raise ValueError(f"{VARIABLE} names {name!r}; there is no such module (a file ends in .py)")
            importlib.import_module(name)
            continue
        if not path.is_file():
            raise ValueError(f"{VARIABLE} names {name!r}; there is no such file")
        if path.stem not in sys.modules:
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
        elif Path(other := getattr(sys.modules[path.stem], "__file__", None) or "built in").resolve() != path.resolve():
            raise ValueError(f"{VARIABLE} names {name!r}; another {path.stem} is imported ({other}): rename the file")
