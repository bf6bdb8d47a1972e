"""ModernBERT (Warner et al., 2024)."""

from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from mabert.baselines.family import Family
from mabert.model import MaBertConfig


class ModernBert(Family):
    """Rotary positions, GeGLU, pre-norm; two of three layers attend within 128 tokens."""

    name, title, model_type, hub = "modernbert", "ModernBERT", "modernbert", "answerdotai/ModernBERT-base"
    head = "head"
    compiles: ClassVar = {"bfloat16": range(1, 1024)}
    compiles_at_best: ClassVar = {"bfloat16": range(1, 256)}  # else the uncompiled kernel gains more
    unlimited = True
    dropouts: ClassVar = {
        "hidden_dropout_prob": ("embedding_dropout", "mlp_dropout"),
        "attention_probs_dropout_prob": ("attention_dropout",),
    }

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        """Scales the sizes as ModernBERT-base relates to BERT-base: deeper, with narrower feed-forward networks."""
        sizes = super().sizes(common)
        deeper = {"num_hidden_layers": round(22 / 12 * sizes["num_hidden_layers"])}
        return {**sizes, **deeper, "intermediate_size": round(1152 / 3072 * sizes["intermediate_size"])}

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        return model.decoder(model.head(hidden))
