"""ModernBERT (Warner et al., 2024)."""

from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family, Shape

BASE = Shape()
LAYERS, INTERMEDIATE = 22, 1152


class ModernBert(Family):
    """Rotary positions, GeGLU, pre-norm; two of three layers attend within 128 tokens."""

    name, title, model_type, hub = "modernbert", "ModernBERT", "modernbert", "answerdotai/ModernBERT-base"
    head = "head"
    compiles: ClassVar = {"bfloat16": range(1, 1024)}
    compiles_at_best: ClassVar = {"bfloat16": range(1, 256)}  # else the uncompiled kernel gains more

    def sizes(self, shape: Shape) -> dict[str, Any]:
        """Scales a shape as ModernBERT-base relates to BERT-base: deeper, with narrower feed-forward networks."""
        return {
            **super().sizes(shape),
            "num_hidden_layers": round(LAYERS * shape.layers / BASE.layers),
            "intermediate_size": round(INTERMEDIATE * shape.intermediate_size / BASE.intermediate_size),
        }

    def dropout(self, hidden: float, attention: float) -> dict[str, Any]:
        return {"embedding_dropout": hidden, "mlp_dropout": hidden, "attention_dropout": attention}

    def longest(self, config: PreTrainedConfig) -> int | None:
        return None

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        return model.decoder(model.head(hidden))
