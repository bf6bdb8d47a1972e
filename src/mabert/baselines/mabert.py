"""MaBERT as a family, so that every command treats it like its baselines."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedConfig

from mabert.baselines.family import Family
from mabert.model import MaBertConfig, register
from mabert.model.config import make_config


class MaBert(Family):
    """This package's hybrid encoder; a recipe's model section is its configuration."""

    name, title, model_type, hub = "mabert", "MaBERT", MaBertConfig.model_type, "google-bert/bert-base-uncased"
    head = "predictions"
    fast_attention = "sdpa"  # its layers replace SDPA by the kernel themselves

    def base_config(self, **changes: Any) -> PreTrainedConfig:
        register()
        return make_config(**changes)

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        return make_config(**{**fields, **of_run})

    def set_packing(self, config: PreTrainedConfig, packing: str, pools: bool = False) -> None:
        config.unpad = "never" if packing == "none" else "auto"
        masking, obstacle = config.padding_safe_masking, None
        if masking != "exact":
            obstacle = f"padding_safe_masking {masking!r}: packed rows have no padding for it to act on"
        elif pools and config.pooling == "attention":
            obstacle = "pooling 'attention': that pooling looks at padding, and packed rows have none"
        if packing == "pack" and obstacle is not None:
            raise ValueError(f"packing is 'pack', {obstacle}; use packing 'none'")

    def longest(self, config: PreTrainedConfig) -> int | None:
        return config.max_position_embeddings if config.position_embedding == "learned" else None

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # Only exact masking keeps padding out of scan and convolution; plain attention pooling gives it weight.
        weighed = pooled and config.pooling == "attention"
        return len(set(lengths)) > 1 and (config.padding_safe_masking != "exact" or weighed)
