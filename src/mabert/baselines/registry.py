"""The table of families: each says where it differs from BERT. A new baseline needs a class here and its place in
`FAMILIES`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family, first_position
from mabert.model import MaBertConfig, register
from mabert.model.config import make_config


class Bert(Family):
    """BERT (Devlin et al., 2019): the original encoder, with full attention and learned positions."""

    name, title, model_type, hub = "bert", "BERT", "bert", "google-bert/bert-base-uncased"


class Albert(Family):
    """ALBERT (Lan et al., 2020): BERT with weights shared by all layers and a narrow token embedding."""

    name, title, model_type, hub = "albert", "ALBERT", "albert", "albert/albert-base-v2"
    head = "predictions"
    base: ClassVar = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    of_classifier = ("classifier_dropout_prob",)

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        return {**super().sizes(common), "embedding_size": min(128, common.hidden_size)}  # 128 at all of its sizes


class Longformer(Family):
    """Longformer (Beltagy et al., 2020): attention in a window of 512; in classifiers the first token is global. Inputs
    are padded to a multiple of the window."""

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


class BigBird(Family):
    """BigBird (Zaheer et al., 2020): window, random and global blocks of 64 tokens; full attention for inputs too short
    for them."""

    name, title, model_type, hub = "bigbird", "BigBird", "big_bird", "google/bigbird-roberta-base"
    keeps_state = True
    unreached = ("pooler.",)
    repeats = True

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        config.update(self.longer(config, config.max_position_embeddings))
        return config

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # The padded row is divided into blocks, and the last one is global.
        return len(set(lengths)) > 1 and max(lengths) > fully(config)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        """Without full attention, transformers pads inputs to whole blocks."""
        blocks = -(-length // config.block_size) * config.block_size
        return {"max_position_embeddings": length if length <= fully(config) else blocks}

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        # transformers switches to full attention at the first short input and stays there, so the output for a long
        # input would depend on earlier inputs.
        if model.config.attention_type == "block_sparse":
            model.base_model.register_forward_pre_hook(choose_attention, with_kwargs=True)
        return model


def choose_attention(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Sets BigBird's attention type for the input's length, by transformers' own rule."""
    given = arguments[0] if arguments else named.get("input_ids")
    length = (named["inputs_embeds"] if given is None else given).shape[1]
    config: Any = model.config
    model.set_attention_type("original_full" if length <= fully(config) else "block_sparse")  # type: ignore[operator]


def fully(config: Any) -> int:
    """Returns the length of the longest input that BigBird reads with full attention."""
    return (5 + 2 * config.num_random_blocks) * config.block_size


class Deberta(Family):
    """DeBERTa-v3 (He et al., 2021 and 2023): disentangled attention to content and relative position; 256 distance
    buckets instead of a position table."""

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


class ModernBert(Family):
    """ModernBERT (Warner et al., 2024): rotary positions, GeGLU, pre-norm; two of three layers attend within 128
    tokens."""

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


class MaBert(Family):
    """This package's hybrid encoder, so that every command treats it like its baselines; a recipe's model section is
    its configuration."""

    name, title, model_type, hub = "mabert", "MaBERT", MaBertConfig.model_type, "google-bert/bert-base-uncased"
    head = "predictions"
    fast_attention = "sdpa"  # its layers replace SDPA by the kernel themselves

    def base_config(self, **changes: Any) -> PreTrainedConfig:
        register()
        return make_config(**changes)

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        return make_config(**{**fields, **of_run})

    def longest(self, config: PreTrainedConfig) -> int | None:
        return config.max_position_embeddings if config.position_embedding == "learned" else None

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # Only exact masking keeps padding out of scan and convolution; plain attention pooling gives it weight.
        weighed = pooled and config.pooling == "attention"
        return len(set(lengths)) > 1 and (config.padding_safe_masking != "exact" or weighed)


FAMILIES: dict[str, Family] = {
    family.name: family for family in (Bert(), Albert(), Longformer(), BigBird(), Deberta(), ModernBert(), MaBert())
}
"""Families by name, in the order of the paper's tables."""

_BY_TYPE = {family.model_type: family for family in FAMILIES.values()}


def family_named(name: str) -> Family:
    """Returns a family by its name; raises a ValueError that names the known ones if there is none."""
    if name not in FAMILIES:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_of(config: PreTrainedConfig) -> Family:
    """Returns the family of a model's configuration; raises ValueError if it belongs to none."""
    if config.model_type not in _BY_TYPE:
        raise ValueError(f"a model of type {config.model_type!r}; there are {', '.join(_BY_TYPE)}")
    return _BY_TYPE[config.model_type]
