"""Engines: what runs the forwards of a model once it is built.

An engine is a function from a model to what is called in its place, with ``input_ids`` and, where a batch is padded,
``attention_mask``. A further one is a file with such a function and a line in `ENGINES`; ``bert:NAME`` is then BERT by
that engine wherever models are named.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from mabert.baselines.family import Family
from mabert.baselines.registry import FAMILIES, family_named
from mabert.model.prepack import can_prepack, prepack
from mabert_lab.bench.profiles import DTYPES, Cell, is_compiled, is_prepacked

Engine = Callable[[PreTrainedModel], Callable[..., Any]]


def compiled(model: PreTrainedModel) -> Callable[..., Any]:
    """Compile a model, anew for each shape of a batch; what was compiled before is forgotten."""
    torch.compiler.reset()
    # Past a limit dynamo would run eagerly without a word.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(model, dynamic=False)


ENGINES: dict[str, Engine] = {"eager": lambda model: model, "compiled": compiled, "prepacked": prepack}
"""Engines by name."""


def contender(name: str) -> tuple[Family, str]:
    """The family and the engine that ``FAMILY`` or ``FAMILY:ENGINE`` names; no engine means the profile's.

    Raises:
        ValueError: There is no such family or engine, naming those there are.
    """
    family, _, engine = name.partition(":")
    if engine not in ("", *ENGINES):
        raise ValueError(f"there is no engine {engine!r} for {name!r}; there are {', '.join(ENGINES)}")
    return family_named(family), engine


def title_of(name: str) -> str:
    """How tables call a contender."""
    family, colon, engine = name.partition(":")
    return FAMILIES[family].title + (f", {engine}" if colon else "")


def engine_of(family: Family, cell: Cell) -> str:
    """The engine that runs a family in a cell's profile."""
    if is_compiled(family, cell):
        return "compiled"
    packs = is_prepacked(family, cell) and can_prepack(torch.device(cell.device), DTYPES[cell.dtype])
    return "prepacked" if packs else "eager"
