"""Cells (what is measured of a model) and profiles (how the model is set up).

Models have the sizes of the published base models and random weights. Three profiles:

- ``paper``: as in Table A2: SDPA without its flash kernels, logits at every position, dropout 0.1 (Table A1), nothing
  packed or compiled. A CPU has no memory-efficient kernel, so SDPA keeps a float32 matrix of scores there. Judged by
  its memory, the paper's MaBERT did so too, but the paper's BERT did not.
- ``stock``: rivals as transformers runs them: SDPA if the family supports it, else its own attention, and
  `torch.compile` where it helps; MaBERT as in ``best``.
- ``best``: the fastest settings of each model. Attention is `attn_implementation="mabert"` if transformers supports
  SDPA for the family, else transformers' own; GELU's tanh form runs in one kernel; logits are computed at scored
  positions only; there is no dropout. Forward passes on a CPU use prepacked weights, or `torch.compile` where that was
  measured to be faster for one text. On a GPU rivals have the same settings, uncompiled.
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
from mabert.model import MaBertConfig
from mabert.model.prepack import can_prepack
from mabert.opening.uses import class_for

Profile = Literal["paper", "stock", "best"]

Dtype = Literal["float32", "bfloat16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

SMALL = {"hidden_size": 64, "layer_pattern": "MMT", "num_attention_heads": 2, "intermediate_size": 96}
"""Sizes for testing in seconds that everything runs."""

WITHOUT_FLASH = "sdpa_plain"  # in transformers, which takes a name with "flash" for a kernel to download


def without_flash(module: torch.nn.Module, *tensors: Tensor, **options: Any) -> tuple[Tensor, None]:
    """Runs SDPA as in the paper's measurements: plain, or memory-efficient if the device supports it."""
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return sdpa_attention_forward(module, *tensors, **options)


AttentionInterface.register(WITHOUT_FLASH, without_flash)
AttentionMaskInterface.register(WITHOUT_FLASH, sdpa_mask)


@dataclass(frozen=True)
class Cell:
    """What is measured of a model."""

    # Of a forward pass, but for the training step; throughput is of many texts.
    measure: Literal["latency", "memory", "training", "throughput"]
    profile: Profile  # see the module's docstring
    dtype: str  # of the weights in a forward pass, of autocast in a training step
    length: int  # tokens of a row or of the longest text
    device: str = "cpu"  # or `cuda`
    small: bool = False  # whether the model has `SMALL` sizes instead of base size
    texts: tuple[int, ...] = ()  # tokens of each of several; empty for one text of `length`, in training for 32
    # How several texts run: `alone`, one by one; `together`, in one batch; `masked`, in a batch that MaBERT does not
    # unpad; `even`, as many tokens in rows of equal length.
    layout: str = "alone"


def configured(family: Family, cell: Cell, own: PreTrainedConfig | None = None, **changes: Any) -> PreTrainedConfig:
    """Returns the configuration of a family's base model, or of a folder's (`own`), for a cell's length and profile."""
    profile = cell.profile
    if cell.small:
        config = family.config_of({**SMALL, **changes}, vocab_size=30_000, **family.special_ids(0, 1, 2))
    elif own is not None:
        config = copy.deepcopy(own)
        config.update(changes)
    else:
        config = family.base_config(**changes)
    if cell.length > family.finite_limit(config):
        for name, value in family.longer(config, cell.length).items():
            setattr(config, name, value)
    fast = class_for("encoder", config)._supports_sdpa
    with_sdpa = {"paper": WITHOUT_FLASH, "stock": "sdpa", "best": family.fast_attention}
    config._attn_implementation = with_sdpa[profile] if fast else "eager"
    if profile == "best" and getattr(config, "hidden_act", None) == "gelu_new":
        # The same function; under the other name transformers computes it in eight steps.
        config.hidden_act = "gelu_pytorch_tanh"
    if hasattr(config, "unpad"):
        config.unpad = "never" if profile == "paper" or cell.layout == "masked" else "auto"
    return config


def is_compiled(family: Family, cell: Cell) -> bool:
    """Checks whether to use `torch.compile`: where it was measured to help, on inputs of one length."""
    helped = family.compiles_at_best if cell.profile == "best" else family.compiles
    gains = cell.length in helped.get(cell.dtype, ())
    wanted = gains and cell.profile != "paper" and cell.device == "cpu" and not cell.small
    alike = cell.measure != "training" and len(set(cell.texts)) <= 1
    return wanted and alike and shutil.which("g++") is not None


def engine_of(family: Family, cell: Cell) -> str:
    """Returns the engine of a family in a cell's profile; only `best` prepacks the weights of transformers' models."""
    if is_compiled(family, cell):
        return "compiled"
    packs = cell.profile == "best" or (cell.profile == "stock" and family.model_type == MaBertConfig.model_type)
    can_pack = can_prepack(torch.device(cell.device), DTYPES[cell.dtype])
    return "prepacked" if packs and can_pack else "eager"
