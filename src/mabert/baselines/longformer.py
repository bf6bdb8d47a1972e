"""Longformer (Beltagy et al., 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family, first_position


class Longformer(Family):
    """Attention in a window of 512; in classifiers the first token is global. Inputs are padded to a multiple of the
    window."""

    name, title, model_type, hub = "longformer", "Longformer", "longformer", "allenai/longformer-base-4096"
    head = "lm_head"
    keeps_state = True
    unreached = ("_global.",)
    repeats = True
    unused = staticmethod(first_position)
    base: ClassVar = {
        "vocab_size": 50265,
        "max_position_embeddings": 4098,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }

    MOST_UNUSED = 100
    """Maximum number of unused rows before the first position; the published model has two."""

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        if self.unused(config) > self.MOST_UNUSED:
            raise ValueError(
                f"pad_token_id is {config.pad_token_id}; Longformer's table of positions begins behind that row, so "
                f"the tokenizer must have padding among its first {self.MOST_UNUSED} tokens"
            )
        config.max_position_embeddings += self.unused(config)
        return config

    def derived(self, model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
        """Pairs the projections of global tokens with the local ones, of which the published model's are copies."""
        weights = dict(model.named_parameters())
        there = (name for name in weights if "_global." in name)
        return [(weights[name], weights[name.replace("_global.", ".")]) for name in there]
