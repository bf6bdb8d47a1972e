"""The configuration of a MaBERT, and the module by which transformers opens a saved folder without an import of mabert.

`AutoModel.from_pretrained(folder, trust_remote_code=True)` reads the class's name from the field `auto_map` and imports
it from a module in the folder. That module only imports the class from `mabert`; if the package is missing,
transformers asks to install it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from mabert.files.reading import shown
from mabert.schema import Masking, Pooling
from mabert.schema.check import check_configuration
from mabert.schema.ranges import DEEPEST

Config = TypeVar("Config", bound=PreTrainedConfig)

MODULE = "open_with_mabert"
"""Name of the module in the folder."""

CLASSES = {
    "AutoConfig": "MaBertConfig",
    "AutoModel": "MaBertModel",
    "AutoModelForTextEncoding": "MaBertModel",
    "AutoModelForPreTraining": "MaBertForMaskedLM",
    "AutoModelForMaskedLM": "MaBertForMaskedLM",
    "AutoModelForSequenceClassification": "MaBertForSequenceClassification",
    "AutoModelForTokenClassification": "MaBertForTokenClassification",
    "AutoModelForQuestionAnswering": "MaBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "MaBertForMultipleChoice",
}
"""transformers' Auto classes and the class of this package that each one opens a folder with."""

AUTO_MAP = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
"""The configuration's field `auto_map`."""

CODE = '"""Opens this folder by the classes of the package mabert: pip install mabert."""\n\nfrom mabert import (\n'
CODE += "".join(f"    {name},  # noqa: F401\n" for name in sorted(set(CLASSES.values()))) + ")\n"


class OpensAnywhere:
    """A configuration or model whose folder refers to this package instead of holding a copy of its code."""

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Does nothing; transformers would save a copy of the file that defines the class."""


SCHEDULES: dict[str, str] = {
    "m": "M" * 12,
    "t": "T" * 12,
    "mtt": "MTT" * 4,
    "tm": "TM" * 6,
    "mt": "MT" * 6,
    "tmm": "TMM" * 4,
    "mmt": "MMT" * 4,
    "ttm": "TTM" * 4,
}
"""The eight 12-layer schedules of the pattern table (label tab:pattern_glue), by name."""

LAYER_TYPES: dict[str, str] = {"M": "linear_attention", "T": "full_attention"}
"""transformers' name for the kind of layer that each letter of the schedule stands for."""


def expand_schedule(pattern: str) -> str:
    """Writes a schedule out in full.

    Args:
        pattern: Letters M (Mamba) and T (Transformer), first layer first (`"MMT"` is three layers); the same with a
            repeat count (`"MMT*4"`); or a name in `SCHEDULES`, in lower case (`"mmt"`).

    Returns:
        One letter per layer.

    Raises:
        ValueError: If the pattern is none of these.
    """
    if isinstance(pattern, str) and pattern in SCHEDULES:
        return SCHEDULES[pattern]
    letters = rf"([{''.join(LAYER_TYPES)}]+)(?:\*([1-9]\d*))?"
    match = re.fullmatch(letters, pattern) if isinstance(pattern, str) else None
    if match is None:
        known = " and ".join(", ".join(LAYER_TYPES).rsplit(", ", 1))
        foreign = ", ".join(sorted(set(re.findall("[A-Z]", str(pattern))) - LAYER_TYPES.keys()))
        own = f"; {foreign} must first be added by mabert.register_mixer (for commands: MABERT_MIXERS=FILE.py)"
        raise ValueError(
            f"layer_pattern is {shown(pattern)}; it must be letters {known} ('MMTMMT', 'MMT*4') "
            f"or one of {sorted(SCHEDULES)}{own if foreign else ''}"
        )
    times = match[2] or "1"
    if len(times) > len(str(DEEPEST)) or len(match[1]) * int(times) > DEEPEST:
        raise ValueError(f"layer_pattern is {shown(pattern)}; it must have at most {DEEPEST} layers")
    return match[1] * int(times)


@strict
class MaBertConfig(OpensAnywhere, PreTrainedConfig):
    """Configuration of a MaBERT encoder. The defaults are MaBERT-base: 12 layers, MMT four times.

    Names shared with BERT keep BERT's meaning. `docs/decisions.md` explains defaults that the paper leaves open.

    Args:
        vocab_size: Entries of the token embedding.
        hidden_size: Width D of the residual stream.
        embedding_size: Width of the embeddings, which a projection widens to D (as in ELECTRA); default, `hidden_size`.
        layer_pattern: The schedule, see `expand_schedule`. If `num_hidden_layers` is given, repeated or cut to it.
        num_hidden_layers: Depth; default, the length of `layer_pattern`.
        num_attention_heads: Heads of each Transformer layer.
        intermediate_size: Inner width of the feed-forward network in both kinds of layer.
        hidden_act: Activation of the feed-forward network.
        feed_forward: `mlp`, or `glu` for the gated form (GeGLU with the default activation; Shazeer, 2020).
        hidden_dropout_prob: Dropout after the embeddings and on the output of every sub-layer.
        attention_probs_dropout_prob: Dropout on the attention weights.
        classifier_dropout: Dropout before a classifier (Eq. 14); default, `hidden_dropout_prob`.
        norm_position: `pre`, a LayerNorm on each sub-layer's input (Eqs. 1-3), or `post`, on the sum after it (BERT).
        first_norm: Whether the first sub-layer has a LayerNorm; ModernBERT has none there, only that of the embeddings.
        final_norm: Whether a last LayerNorm follows the stack; with `post` blocks there usually is none.
        norm_bias: Whether LayerNorms have a bias.
        attention_bias: Whether the projections of attention have a bias.
        mlp_bias: Whether the feed-forward networks have a bias.
        ssm_bias: Whether the input and output projections of the Mamba core have a bias.
        max_position_embeddings: Positions of the learned table; the longest input with `position_embedding="learned"`.
        position_embedding: `learned` absolute positions, `rotary` on the attention layers, or `none`.
        rotary_base: Base of the rotary frequencies, or a list with one per layer.
        attention_window: List with one entry per layer: how many tokens attention sees on each side, None for all;
            default, all in every layer.
        type_vocab_size: Number of segments.
        initializer_range: Standard deviation of the normal initialisation of matrices and embeddings.
        layer_norm_eps: Epsilon of every LayerNorm.
        ssm_expand: Expansion ε: the Mamba core works on D_m = ε D channels.
        ssm_state_size: States N per channel.
        ssm_conv_kernel: Width of the depth-wise convolution.
        ssm_dt_rank: Rank r of the step size's projection; default, ceil(D / 16).
        ssm_direction: `forward`, `backward`, or `bidirectional` (two cores sharing W_in and W_out, their outputs
            added).
        ssm_conv_mode: `causal` (a window that ends at its token, in the core's direction) or `centered`.
        ssm_dt_min: Smallest initial step size (on the scale of Mamba-1's).
        ssm_dt_max: Largest initial step size.
        padding_safe_masking: `none | pre | post | pre+post | exact`, see `mabert.model.masking`.
        unpad: `auto` runs a padded batch as one packed row without padding, unless something prevents it (see
            `docs/padding.md`); `never` always runs it padded and masked. Only with `padding_safe_masking="exact"`.
        pooling: `map` (mask-aware attention pooling, Eqs. 11-13), `attention` (the same without masking padding),
            `cls`, `mean`.
        pooler_act: Activation of a dense layer after a classifier's pooling (BERT: `tanh`); default, no layer (Eq. 14).
        pooler_norm: Whether a LayerNorm follows that dense layer (ModernBERT).
        normalize: Whether `mabert.load(...).embed` scales vectors to length one unless told otherwise.
        sparse_prediction: Whether `MaBertForMaskedLM`, given labels, computes logits at the scored positions only; they
            are then (scored positions, vocab_size). The loss is the same.

    Raises:
        ValueError: For a value outside its range, naming the field, the value and what would be right.
    """

    model_type = "mabert"

    vocab_size: int = 30522
    hidden_size: int = 768
    embedding_size: int | None = None
    layer_pattern: str = "MMTMMTMMTMMT"
    num_hidden_layers: int | None = None
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    feed_forward: Literal["mlp", "glu"] = "mlp"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    norm_position: Literal["pre", "post"] = "pre"
    first_norm: bool = True
    final_norm: bool = True
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    ssm_bias: bool = False
    max_position_embeddings: int = 512
    position_embedding: Literal["learned", "rotary", "none"] = "learned"
    rotary_base: float | int | list[float | int] = 10_000.0
    attention_window: list[int | None] | None = None
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    layer_types: list[str] | None = None
    ssm_expand: float | int = 2
    ssm_state_size: int = 16
    ssm_conv_kernel: int = 4
    ssm_dt_rank: int | None = None
    ssm_direction: Literal["forward", "backward", "bidirectional"] = "forward"
    ssm_conv_mode: Literal["causal", "centered"] = "causal"
    ssm_dt_min: float = 1e-3
    ssm_dt_max: float = 1e-1
    padding_safe_masking: Masking = "exact"
    unpad: Literal["auto", "never"] = "auto"
    pooling: Pooling = "map"
    pooler_act: str | None = None
    pooler_norm: bool = False
    normalize: bool = False
    sparse_prediction: bool = False
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        declared = declared_of(type(self))
        check_configuration({**{name: getattr(self, name) for name in declared}, **kwargs}, declared)
        self._derive_schedule()
        if self.ssm_dt_rank is None:
            self.ssm_dt_rank = math.ceil(self.hidden_size / 16)
        self._check()
        super().__post_init__(**kwargs)

    @classmethod
    def fast(cls, **fields: Any) -> "MaBertConfig":
        """Returns the preset for speed: a Mamba core as wide as the model (`ssm_expand` 1), half of the paper's.

        A Mamba layer then takes 11 D² multiplications per token (the paper's takes 14 D²), a Transformer layer 12 D²
        plus a part that grows with the length.

        Args:
            fields: Any other fields.
        """
        return cls(**{"ssm_expand": 1, **fields})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Works as in transformers, but applies fields among `kwargs` before the other fields are derived and checked.

        A new `num_hidden_layers` repeats or cuts the schedule; a new `layer_pattern` alone sets its own depth.
        """
        given = {name: kwargs.pop(name) for name in MaBertConfig.__annotations__ if name in kwargs}
        fields = dict(config_dict)
        if "layer_pattern" in given or "num_hidden_layers" in given:
            fields.pop("layer_types", None)
        if "layer_pattern" in given:
            fields.pop("num_hidden_layers", None)
        return super().from_dict({**fields, **given}, **kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Works as in transformers, and adds the module that lets transformers open the folder."""
        self.auto_map = AUTO_MAP
        super().save_pretrained(save_directory, **kwargs)
        (Path(save_directory) / f"{MODULE}.py").write_text(CODE, encoding="utf-8")

    def check_schedule(self) -> None:
        """Refuses fields that were set one by one and no longer agree.

        Raises:
            ValueError: Unless `layer_pattern` is written out with one letter for each of `num_hidden_layers`, and lists
                with an entry per layer have that length.
        """
        letters = expand_schedule(self.layer_pattern)
        if letters != self.layer_pattern or len(letters) != self.num_hidden_layers:
            raise ValueError(
                f"layer_pattern {self.layer_pattern!r} and num_hidden_layers {self.num_hidden_layers} do not "
                "agree; give them to MaBertConfig(...) or from_pretrained(...), which derive one from the other"
            )
        for name in ("rotary_base", "attention_window"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != self.num_hidden_layers:
                raise ValueError(
                    f"{name} is a list of {len(value)}; it must have {self.num_hidden_layers} entries, one a layer"
                )

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings: `embedding_size`, or D."""
        return self.embedding_size or self.hidden_size

    @property
    def ssm_inner_size(self) -> int:
        """Channels D_m = ε D of the Mamba core."""
        return int(self.ssm_expand * self.hidden_size)

    @property
    def head_size(self) -> int:
        """Width of one attention head.

        Raises:
            ValueError: If the heads do not divide the width, or rotary positions would need half a feature pair.
        """
        size, rest = divmod(self.hidden_size, self.num_attention_heads)
        if rest:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.position_embedding == "rotary" and size % 2:
            raise ValueError(
                f"rotary positions need an even head size; hidden_size {self.hidden_size} over "
                f"num_attention_heads {self.num_attention_heads} is {size}"
            )
        return size

    def of_layer(self, name: str, layer: int) -> Any:
        """Returns the value that a field, `rotary_base` or `attention_window`, has in one layer."""
        value = getattr(self, name)
        return value[layer] if isinstance(value, list) else value

    def _derive_schedule(self) -> None:
        letters = expand_schedule(self.layer_pattern)
        depth = len(letters) if self.num_hidden_layers is None else self.num_hidden_layers
        self.layer_pattern = (letters * math.ceil(depth / len(letters)))[:depth]
        self.num_hidden_layers = depth
        types = [LAYER_TYPES[letter] for letter in self.layer_pattern]
        if self.layer_types is not None and list(self.layer_types) != types:
            raise ValueError(
                f"layer_types {shown(self.layer_types)} is not what layer_pattern {shown(self.layer_pattern)} means; "
                "give the pattern alone"
            )
        self.layer_types = types

    def _check(self) -> None:
        self.check_schedule()
        if self.type_vocab_size < 1:  # other families may have no segments
            raise ValueError(f"type_vocab_size is {self.type_vocab_size}; it must be at least 1")
        if self.ssm_inner_size < 1:
            raise ValueError(f"ssm_expand is {self.ssm_expand}; of hidden_size {self.hidden_size} it makes no channel")
        for name in ("hidden_act", "pooler_act"):
            value = getattr(self, name)
            if value is not None and value not in ACT2FN:
                raise ValueError(f"{name} is {shown(value)}; transformers knows {', '.join(sorted(ACT2FN))}")
        if self.pooler_norm and self.pooler_act is None:
            raise ValueError("pooler_norm is True, and pooler_act, the activation before that norm, is not given")
        if self.ssm_dt_min > self.ssm_dt_max:
            raise ValueError(
                f"ssm_dt_min {self.ssm_dt_min} and ssm_dt_max {self.ssm_dt_max} must be positive and in that order"
            )


def declared_of(kind: type[PreTrainedConfig]) -> dict[str, Any]:
    """Returns the types of the fields that a configuration's class adds to those of every configuration."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return {field.name: field.type for field in dataclasses.fields(kind) if field.name not in common}


def make_config(**fields: Any) -> MaBertConfig:
    """Makes a MaBERT's configuration; raises what `make_config_of` does."""
    return make_config_of(MaBertConfig, fields)


def make_config_of(kind: type[Config], fields: Mapping[str, Any]) -> Config:
    """Makes a configuration of any class and reports any error in one line.

    Raises:
        ValueError: Naming the field that has a wrong type or value.
    """
    checked = check_configuration(fields, declared_of(kind))
    names = checked.get("id2label")
    numbered = isinstance(names, Mapping) and {*map(str, names)} == {*map(str, range(len(names)))}
    if names is not None and not numbered:
        raise ValueError(f"id2label is {shown(names)}; it must name each class by its number, from 0")
    try:
        return kind(**checked)
    except (StrictDataclassError, AttributeError, TypeError) as error:  # fields that do not go together
        raise ValueError(" ".join(str(error).split())[:300]) from error
