"""Longformer (Beltagy et al., 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family, repeat

MOST_UNUSED = 100
"""Maximum number of unused rows before the first position; the published model has two."""


class Longformer(Family):
    """Attention in a window of 512; in classifiers the first token is global. Inputs are padded to a multiple of the
    window."""

    name, title, model_type, hub = "longformer", "Longformer", "longformer", "allenai/longformer-base-4096"
    head = "lm_head"
    keeps_state = True
    unreached = ("_global.",)
    base: ClassVar = {
        "vocab_size": 50265,
        "max_position_embeddings": 4098,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        first = first_position(config)
        if first > MOST_UNUSED:
            raise ValueError(
                f"pad_token_id is {config.pad_token_id}; Longformer's table of positions begins behind that row, so "
                f"the tokenizer must have padding among its first {MOST_UNUSED} tokens"
            )
        config.max_position_embeddings += first
        return config

    def longest(self, config: PreTrainedConfig) -> int | None:
        return config.max_position_embeddings - first_position(config)

    @torch.no_grad()
    def finish_pretraining(self, model: PreTrainedModel) -> None:
        """Copies the local projections to those of global tokens, as the published model was initialised."""
        weights = dict(model.named_parameters())
        for name, weight in weights.items():
            if "_global." in name:
                weight.copy_(weights[name.replace("_global.", ".")])

    def is_finished(self, model: PreTrainedModel) -> bool:
        weights = dict(model.named_parameters())
        distant = (name for name in weights if "_global." in name)
        return all(torch.equal(weights[name], weights[name.replace("_global.", ".")]) for name in distant)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        return {"max_position_embeddings": length + first_position(config)}

    def lengthen(self, table: Tensor, rows: int, config: PreTrainedConfig) -> Tensor:
        return repeat(table, rows, kept=first_position(config))


def first_position(config: PreTrainedConfig) -> int:
    """Returns the row of the first token's position: as in RoBERTa, rows up to the padding id are unused."""
    return config.pad_token_id + 1
