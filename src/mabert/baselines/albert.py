"""ALBERT (Lan et al., 2020)."""

from typing import Any, ClassVar

from mabert.baselines.family import Family
from mabert.model.config import MaBertConfig

EMBEDDING = 128
"""Width of ALBERT's token embedding at all of its sizes."""


class Albert(Family):
    """BERT with weights shared by all layers and a narrow token embedding."""

    name, title, model_type, hub = "albert", "ALBERT", "albert", "albert/albert-base-v2"
    head = "predictions"
    base: ClassVar = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        return {**super().sizes(common), "embedding_size": min(EMBEDDING, common.hidden_size)}

    def classifier_dropout(self, rate: float) -> dict[str, Any]:
        return {**self.dropout(rate, rate), "classifier_dropout_prob": rate}
