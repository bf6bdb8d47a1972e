"""DeBERTa-v3 (He et al., 2021 and 2023)."""

import sys
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from mabert.baselines.family import Family


class Deberta(Family):
    """Disentangled attention to content and relative position; 256 distance buckets instead of a position table."""

    name, title, model_type, hub = "deberta", "DeBERTa", "deberta-v2", "microsoft/deberta-v3-base"
    # Without compilation, scores, biases and gathers take a dozen passes over time x time matrices.
    compiles: ClassVar = dict.fromkeys(("bfloat16", "float32"), range(1024, sys.maxsize))
    compiles_at_best: ClassVar = compiles
    unlimited = True
    of_classifier = ("cls_dropout", "pooler_dropout")
    base: ClassVar = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "max_relative_positions": -1,
    }

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        # Distances below half the buckets have a bucket each; larger ones share the rest, stretched to the new length.
        return {"max_position_embeddings": length, "max_relative_positions": length}
