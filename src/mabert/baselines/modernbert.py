"""ModernBERT (Warner et al., 2024)."""

from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family
from mabert.model.config import MaBertConfig

LAYERS, INTERMEDIATE = 22 / 12, 1152 / 3072
"""Depth and inner width of ModernBERT-base, relative to BERT-base."""


class ModernBert(Family):
    """Rotary positions, GeGLU, pre-norm; two of three layers attend within 128 tokens."""

    name, title, model_type, hub = "modernbert", "ModernBERT", "modernbert", "answerdotai/ModernBERT-base"
    head = "head"
    compiles: ClassVar = {"bfloat16": range(1, 1024)}
    compiles_at_best: ClassVar = {"bfloat16": range(1, 256)}  # else the uncompiled kernel gains more

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        """Scales the sizes as ModernBERT-base relates to BERT-base: deeper, with narrower feed-forward networks."""
        sizes = super().sizes(common)
        deeper = {"num_hidden_layers": round(LAYERS * sizes["num_hidden_layers"])}
        return {**sizes, **deeper, "intermediate_size": round(INTERMEDIATE * sizes["intermediate_size"])}

    def dropout(self, hidden: float, attention: float) -> dict[str, Any]:
        return {"embedding_dropout": hidden, "mlp_dropout": hidden, "attention_dropout": attention}

    def longest(self, config: PreTrainedConfig) -> int | None:
        return None

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        return model.decoder(model.head(hidden))
