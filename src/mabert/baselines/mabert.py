"""MaBERT beside its baselines, so that every command treats it as one more family."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family
from mabert.model import MaBertConfig, register
from mabert.model.config import make_config


class MaBert(Family):
    """The hybrid of this package; a recipe's model section is its configuration as it stands."""

    name, title, model_type, hub = "mabert", "MaBERT", MaBertConfig.model_type, "google-bert/bert-base-uncased"
    head = "transform"
    fast_attention = "sdpa"  # in whose place its layers take the kernel by themselves

    def base_config(self, **changes: Any) -> PreTrainedConfig:
        register()
        return make_config(**changes)

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        return make_config(**{**fields, **of_run})

    def longest(self, config: PreTrainedConfig) -> int | None:
        return config.max_position_embeddings if config.position_embedding == "learned" else None

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # Only exact masking keeps padding out of scan and convolution, and plain attention pooling weighs it.
        weighed = pooled and config.pooling == "attention"
        return len(set(lengths)) > 1 and (config.padding_safe_masking != "exact" or weighed)

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        return model.decoder(model.transform(hidden))
