"""What is asked of a model, and how it is set up for that.

Sizes are those of the published base models, or of a recipe's model, with random weights. Three profiles:

- ``paper``: as Table A2 has it: SDPA without its flash kernels, logits at every position, dropout 0.1 (Table A1),
  nothing packed or compiled. A CPU has no memory-efficient kernel, so SDPA keeps a matrix of scores in float32 there,
  as the paper's MaBERT did by its memory and the paper's BERT did not.
- ``stock``: rivals as transformers runs them: SDPA where a family has it, its own attention elsewhere, `torch.compile`
  where that helps; MaBERT as in ``best``.
- ``best``: each model as fast as settings make it. For attention `attn_implementation="mabert"` where transformers has
  SDPA for a family, else transformers' own; GELU's tanh form in one kernel; logits at scored positions only, no
  dropout. Forwards on a CPU have prepacked weights, or `torch.compile` where one text of a family was measured to gain
  more by that. On a GPU a rival has the same settings, uncompiled.
"""

import copy
import shutil
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mabert.baselines.family import Family
from mabert.baselines.load import class_for
from mabert.model import MaBertConfig

Profile = Literal["paper", "stock", "best"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

SMALL = {"hidden_size": 64, "layer_pattern": "MMT", "num_attention_heads": 2, "intermediate_size": 96}
"""Sizes that show in seconds whether everything runs."""

WITHOUT_FLASH = "sdpa_plain"
"""Name of SDPA without its flash kernels among transformers' attention implementations, which take any with "flash" in
it for a kernel to fetch."""


def without_flash(module: torch.nn.Module, *tensors: Tensor, **options: Any) -> tuple[Tensor, None]:
    """SDPA as the paper's measurements had it: plain, or memory-efficient where the device offers that."""
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return sdpa_attention_forward(module, *tensors, **options)


AttentionInterface.register(WITHOUT_FLASH, without_flash)
AttentionMaskInterface.register(WITHOUT_FLASH, sdpa_mask)


@dataclass(frozen=True)
class Cell:
    """What is asked of a model.

    Attributes:
        measure: ``latency`` and ``memory`` of a forward, ``training`` of a step, ``throughput`` of many texts.
        profile: See the head of this file.
        dtype: Of the weights in a forward; of autocast in a training step.
        length: Tokens of a row, of the longest text.
        device: ``cpu`` or ``cuda``.
        small: Whether the model is of `SMALL` sizes instead of base size.
        texts: Tokens of each text, of several; none is one text of that length.
        recipe: The recipe whose model's sizes are taken; none for base size.
        layout: How several texts are run, see `mabert_lab.bench.tasks.LAYOUTS`.
    """

    measure: Literal["latency", "memory", "training", "throughput"]
    profile: Profile
    dtype: str
    length: int
    device: str = "cpu"
    small: bool = False
    texts: tuple[int, ...] = ()
    recipe: str = ""
    layout: str = "alone"


def configured(family: Family, cell: Cell, own: PreTrainedConfig | None = None, **changes: Any) -> PreTrainedConfig:
    """The configuration of the published base model, of a recipe's sizes or of a folder's model (`own`), for inputs of
    a cell's length, in its profile.

    The attention that it will run with stands in ``_attn_implementation``; families without SDPA have their own.
    """
    length, profile = cell.length, cell.profile
    if cell.small:
        config = family.config_of({**SMALL, **changes}, vocab_size=30_000, **family.special_ids(0, 1, 2))
    elif own is not None:
        config = copy.deepcopy(own)
        config.update(changes)
    elif cell.recipe:
        config = family.config_of({**sizes_of(cell.recipe, family), **changes})
    else:
        config = family.base_config(**changes)
    limit = family.longest(config) or config.max_position_embeddings
    if length > limit:
        for name, value in family.longer(config, length).items():
            setattr(config, name, value)
    fast = class_for("encoder", config)._supports_sdpa
    with_sdpa = {"paper": WITHOUT_FLASH, "stock": "sdpa", "best": family.fast_attention}
    config._attn_implementation = with_sdpa[profile] if fast else "eager"
    if profile == "best" and getattr(config, "hidden_act", None) == "gelu_new":
        # The same function, which transformers computes in eight steps under the other name.
        config.hidden_act = "gelu_pytorch_tanh"
    if hasattr(config, "unpad"):
        config.unpad = "never" if profile == "paper" or cell.layout == "masked" else "auto"
    return config


def model_of(recipe: str) -> dict[str, Any]:
    """A recipe's model section.

    Raises:
        FileNotFoundError: There is no such recipe.
        ValueError: It is none, or has no model of its own.
    """
    from mabert.train.recipe import load_recipe  # asks for packages that read text, which measuring does without

    read = load_recipe(recipe)
    if read.start_from is not None:
        raise ValueError(f"recipe is {recipe!r}, whose sizes are those of its start_from; name one with a model")
    return read.model


def sizes_of(recipe: str, family: Family) -> dict[str, Any]:
    """The fields of a recipe's model that a family understands; the vocabulary is that of its published model."""
    known = family.known_fields()
    return {name: value for name, value in model_of(recipe).items() if name in known}


def is_compiled(family: Family, cell: Cell) -> bool:
    """Whether a model goes through `torch.compile`: a forward, but in the paper's settings, of inputs of one length,
    where that was measured to help and can be had."""
    helped = family.compiles_at_best if cell.profile == "best" else family.compiles
    gains = cell.length in helped.get(cell.dtype, ())
    wanted = gains and cell.profile != "paper" and cell.device == "cpu" and not cell.small
    alike = cell.measure != "training" and len(set(cell.texts)) <= 1
    return wanted and alike and shutil.which("g++") is not None


def is_prepacked(family: Family, cell: Cell) -> bool:
    """Whether a model's weights are prepacked where that can be: of what comes from transformers, at its best alone."""
    return cell.profile == "best" or (cell.profile == "stock" and family.model_type == MaBertConfig.model_type)
