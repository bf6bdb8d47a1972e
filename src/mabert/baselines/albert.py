"""ALBERT (Lan et al., 2020)."""

from typing import Any, ClassVar

from mabert.baselines.family import Family
from mabert.model import MaBertConfig


class Albert(Family):
    """BERT with weights shared by all layers and a narrow token embedding."""

    name, title, model_type, hub = "albert", "ALBERT", "albert", "albert/albert-base-v2"
    head = "predictions"
    base: ClassVar = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    of_classifier = ("classifier_dropout_prob",)

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        return {**super().sizes(common), "embedding_size": min(128, common.hidden_size)}  # 128 at all of its sizes
