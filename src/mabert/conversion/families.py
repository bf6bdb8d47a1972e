"""Each family of teachers: the names of its modules and the MaBERT configuration of its kind, one table entry each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from mabert.baselines.family import DROPOUTS, first_position

COPIED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "problem_type",
    "id2label",
    "label2id",
)
"""Fields that have the same name and meaning in MaBERT and every teacher."""

Names = Mapping[str, str | tuple[str, ...]]
"""A teacher's module names mapped to MaBERT's, with * for a layer's number; to several if its rows are split."""


@dataclass(frozen=True)
class TeacherFamily:
    """A kind of encoder that can be converted: what its configuration is as a MaBERT's, beside the fields in `COPIED`,
    and the names of its modules, those of the heads apart."""

    fields: Callable[[Any], dict[str, Any]]
    encoder: Names
    masked_lm: Names
    classifier: Names
    pooler_act: Callable[[Any], str] = lambda config: "tanh"  # of the dense layer in a classifier's head
    skipped_positions: Callable[[Any], int] = lambda config: 0  # rows before the first token's, see `from_roberta`


OF_BERT = ("intermediate_size", "hidden_act", "type_vocab_size", "layer_norm_eps", *DROPOUTS)
"""Further fields that have the same name and meaning in MaBERT and every BERT."""

POST_NORM = {"norm_position": "post", "final_norm": False}
"""Norms after the sub-layers, and none at the end."""


def from_bert(config: PreTrainedConfig) -> dict[str, Any]:
    """BERT (Devlin et al. 2019): norms after the sub-layers, no last norm, learned positions."""
    some_lack = {name: getattr(config, name, None) for name in ("embedding_size", "classifier_dropout")}
    return POST_NORM | {name: getattr(config, name) for name in OF_BERT} | some_lack


def from_distilbert(config: Any) -> dict[str, Any]:
    """DistilBERT (Sanh et al. 2019): BERT without segments."""
    return POST_NORM | {
        "intermediate_size": config.hidden_dim,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "classifier_dropout": config.seq_classif_dropout,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
    }


def from_roberta(config: Any) -> dict[str, Any]:
    """RoBERTa (Liu et al. 2019): BERT with positions counted from the padding's id plus one. The table's rows before
    that stand for no token and are dropped here."""
    return from_bert(config) | {"max_position_embeddings": config.max_position_embeddings - first_position(config)}


def from_modernbert(config: Any) -> dict[str, Any]:
    """ModernBERT (Warner et al. 2024): norms before all sub-layers but the first, gated feed-forward networks, rotary
    positions, whose frequencies must not be scaled, and attention windows in the local layers."""
    scaled = {kind: rope for kind, rope in config.rope_parameters.items() if rope.get("rope_type") != "default"}
    if scaled:
        raise ValueError(f"rope_parameters are {scaled}; rotary frequencies that are scaled cannot be converted")
    local = [kind == "sliding_attention" for kind in config.layer_types]
    return {
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_activation,
        "feed_forward": "glu",
        "hidden_dropout_prob": config.mlp_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "classifier_dropout": config.classifier_dropout,
        "position_embedding": "rotary",
        "rotary_base": [float(config.rope_parameters[kind]["rope_theta"]) for kind in config.layer_types],
        "attention_window": [config.local_attention // 2 if here else None for here in local],
        "type_vocab_size": 1,
        "layer_norm_eps": config.norm_eps,
        "norm_bias": config.norm_bias,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "first_norm": False,
        "pooler_norm": True,
    }


BERT_ENCODER: Names = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.*.attention.self.query": "layers.*.attention.query",
    "encoder.layer.*.attention.self.key": "layers.*.attention.key",
    "encoder.layer.*.attention.self.value": "layers.*.attention.value",
    "encoder.layer.*.attention.output.dense": "layers.*.attention.output",
    "encoder.layer.*.attention.output.LayerNorm": "layers.*.mixer_norm",
    "encoder.layer.*.intermediate.dense": "layers.*.feed_forward.up",
    "encoder.layer.*.output.dense": "layers.*.feed_forward.down",
    "encoder.layer.*.output.LayerNorm": "layers.*.feed_forward_norm",
}

DISTILBERT_ENCODER: Names = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.norm",
    "transformer.layer.*.attention.q_lin": "layers.*.attention.query",
    "transformer.layer.*.attention.k_lin": "layers.*.attention.key",
    "transformer.layer.*.attention.v_lin": "layers.*.attention.value",
    "transformer.layer.*.attention.out_lin": "layers.*.attention.output",
    "transformer.layer.*.sa_layer_norm": "layers.*.mixer_norm",
    "transformer.layer.*.ffn.lin1": "layers.*.feed_forward.up",
    "transformer.layer.*.ffn.lin2": "layers.*.feed_forward.down",
    "transformer.layer.*.output_layer_norm": "layers.*.feed_forward_norm",
}

MODERNBERT_ENCODER: Names = {
    "embeddings.tok_embeddings": "embeddings.word_embeddings",
    "embeddings.norm": "embeddings.norm",
    "layers.*.attn.Wqkv": tuple(f"layers.*.attention.{part}" for part in ("query", "key", "value")),
    "layers.*.attn.Wo": "layers.*.attention.output",
    "layers.*.attn_norm": "layers.*.mixer_norm",
    "layers.*.mlp.Wi": "layers.*.feed_forward.up",
    "layers.*.mlp.Wo": "layers.*.feed_forward.down",
    "layers.*.mlp_norm": "layers.*.feed_forward_norm",
    "final_norm": "norm",
}


def predictions(dense: str, norm: str, decoder: str) -> Names:
    """Maps the three modules of a masked language model's head, by a teacher's names, to MaBERT's."""
    return {dense: "predictions.transform.dense", norm: "predictions.transform.norm", decoder: "predictions.decoder"}


ROBERTA = TeacherFamily(
    from_roberta,
    BERT_ENCODER,
    predictions("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
    {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"},
    skipped_positions=first_position,
)

TEACHERS: dict[str, TeacherFamily] = {
    "bert": TeacherFamily(
        from_bert,
        BERT_ENCODER,
        predictions(
            "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"
        ),
        {"bert.pooler.dense": "pooler.dense", "classifier": "classifier"},
    ),
    "distilbert": TeacherFamily(
        from_distilbert,
        DISTILBERT_ENCODER,
        predictions("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        {"pre_classifier": "pooler.dense", "classifier": "classifier"},
        pooler_act=lambda config: "relu",
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": TeacherFamily(
        from_bert,
        {**BERT_ENCODER, "embeddings_project": "embeddings.projection"},
        predictions("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
        {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"},
        pooler_act=lambda config: "gelu",
    ),
    "modernbert": TeacherFamily(
        from_modernbert,
        MODERNBERT_ENCODER,
        predictions("head.dense", "head.norm", "decoder"),
        {"head.dense": "pooler.dense", "head.norm": "pooler.norm", "classifier": "classifier"},
        pooler_act=lambda config: config.classifier_activation,
    ),
}
"""Converters by transformers' name of the model type; another family is one more entry here."""
