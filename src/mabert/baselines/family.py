"""What every command needs to know of a kind of encoder: its sizes, its positions, its heads, its tokenizer."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mabert.baselines import attention
from mabert.machine.memory import check_fits
from mabert.model.config import MaBertConfig, in_words, make_config
from mabert.model.embeddings import stretch
from mabert.model.load import parameters_of

COMMON = (
    "hidden_size",
    "layer_pattern",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
"""Fields of a recipe's model that every family understands; of the schedule, its depth."""

DROPOUTS = {"hidden_dropout_prob": "hidden_dropout", "attention_probs_dropout_prob": "attention_dropout"}
"""Those of them that give dropout, and the field of `Shape` that each of them is."""

NO_DROPOUT: dict[str, Any] = dict.fromkeys(DROPOUTS.values(), 0.0)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of an encoder in MaBERT's terms; the defaults are base size.

    Attributes:
        hidden_size: Width D.
        layers: Depth.
        heads: Attention heads.
        intermediate_size: Inner width of the feed-forward networks.
        positions: Longest input where positions are learned.
        hidden_dropout: Rate on embeddings and sub-layers.
        attention_dropout: Rate on attention weights.
    """

    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    intermediate_size: int = 3072
    positions: int = 512
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Shape":
        """The shape that the common fields of a recipe's model give a MaBERT.

        Raises:
            ValueError: If they make no model, naming the field.
        """
        config = make_config(**fields)
        return cls(
            config.hidden_size,
            len(config.layer_pattern),
            config.num_attention_heads,
            config.intermediate_size,
            config.max_position_embeddings,
            config.hidden_dropout_prob,
            config.attention_probs_dropout_prob,
        )


class Family:
    """A kind of encoder. What is said here is BERT's way; others say where they differ.

    Attributes:
        name: What a person calls it, as in `--model bert`.
        title: How tables call it.
        model_type: transformers' name of it.
        hub: The published model of base size, whose tokenizer is the family's.
        base: Fields in which the published model differs from the configuration's defaults.
        tokenizer: Name of the recipe by which its tokenizer is trained, see `mabert.data.train_tokenizer`.
        head: The first module of the masked language model's head.
        unreached: Parts of names of weights that masked language modelling does not reach.
        fast_attention: Name of the fastest exact attention for it where transformers has SDPA for it.
        keeps_state: Whether a forward changes the model, so that two may not run at once.
        compiles: Dtypes in which `torch.compile` makes its forward on a CPU faster, as transformers has it, each with
            the tokens of the inputs of which that was seen.
        compiles_at_best: The same of it with this package's attention, beside prepacked weights.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    model_type: ClassVar[str]
    hub: ClassVar[str]
    base: ClassVar[Mapping[str, Any]] = {}
    tokenizer: ClassVar[str] = "wordpiece"
    head: ClassVar[str] = "cls"
    unreached: ClassVar[tuple[str, ...]] = ()
    fast_attention: ClassVar[str] = attention.NAME
    keeps_state: ClassVar[bool] = False
    compiles: ClassVar[Mapping[str, range]] = {}
    compiles_at_best: ClassVar[Mapping[str, range]] = {}

    def base_config(self, **changes: Any) -> PreTrainedConfig:
        """The configuration of the published model of base size, with some fields changed."""
        try:
            return AutoConfig.for_model(self.model_type, **{**self.base, **changes})
        except (StrictDataclassError, TypeError) as error:
            raise ValueError(f"model: {in_words(error)}") from error

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        """Whether what texts of these lengths give depends, by more than rounding, on those beside them.

        Args:
            config: The model's.
            lengths: Tokens of each text.
            pooled: Whether the model pools, as a classifier does; an encoder and a masked language model do not.
        """
        return False

    def known_fields(self) -> set[str]:
        """Names that a recipe's model section may use for this family."""
        return set(self.declared()) | set(self.base) | set(COMMON)

    def declared(self) -> dict[str, Any]:
        """The types of the fields of the family's configuration, and of the common ones, by name."""
        common = {field.name: field.type for field in dataclasses.fields(MaBertConfig) if field.name in COMMON}
        return {field.name: field.type for field in dataclasses.fields(CONFIG_MAPPING[self.model_type])} | common

    def own_dropout(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a recipe's model section, those for dropout that every family understands by the family's names."""
        own = {name: value for name, value in fields.items() if name not in DROPOUTS}
        for name, field in DROPOUTS.items():
            if name in fields:
                without, with_it = self.dropout(Shape(**NO_DROPOUT)), self.dropout(Shape(**{**NO_DROPOUT, field: 1.0}))
                own |= {each: fields[name] for each in with_it if with_it[each] != without[each]}
        return own

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        """The configuration for a recipe's model section.

        Args:
            fields: The section: common sizes, and fields of the family's own, which win.
            of_run: What the run decides: vocabulary, ids of special tokens.

        Raises:
            ValueError: If they make no model.
        """
        shape = Shape.of({name: value for name, value in fields.items() if name in COMMON})
        own = {name: value for name, value in fields.items() if name not in COMMON}
        return self.base_config(**{**self.sizes(shape), **self.dropout(shape), **own, **of_run})

    def special_ids(self, pad: int, cls: int, sep: int) -> dict[str, int]:
        """Fields for the special tokens of a vocabulary, as many as the family's configuration has."""
        roles = {"pad": pad, "bos": cls, "cls": cls, "eos": sep, "sep": sep}
        published = self.base_config()
        fields = {f"{role}_token_id": token for role, token in roles.items()}
        return {name: token for name, token in fields.items() if getattr(published, name, None) is not None}

    def sizes(self, shape: Shape) -> dict[str, Any]:
        """Fields that give a model of a shape; the published model's where the shape is that of base size."""
        return {
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.intermediate_size,
            "max_position_embeddings": shape.positions,
        }

    def dropout(self, shape: Shape) -> dict[str, Any]:
        """Fields that give the dropout of a shape."""
        return {
            "hidden_dropout_prob": shape.hidden_dropout,
            "attention_probs_dropout_prob": shape.attention_dropout,
        }

    def classifier_dropout(self, rate: float) -> dict[str, Any]:
        """Fields that give every dropout, that of a classifier included, one rate."""
        both = Shape(hidden_dropout=rate, attention_dropout=rate)
        return {**self.dropout(both), "classifier_dropout": rate}

    def longest(self, config: PreTrainedConfig) -> int | None:
        """Tokens of the longest input, or None where any length can be run."""
        return config.max_position_embeddings

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        """The masked language model's scores of every vocabulary entry, (..., D) to (..., vocabulary)."""
        return getattr(model, self.head)(hidden)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        """Fields to change so that inputs of `length` tokens can be run (Table A3)."""
        return {"max_position_embeddings": length}

    def lengthen(self, table: Tensor, rows: int, config: PreTrainedConfig) -> Tensor:
        """The learned positions (old rows, D) as (rows, D)."""
        return stretch(table, rows)

    def finish_pretraining(self, model: PreTrainedModel) -> None:
        """Sets the weights that masked language modelling does not reach, where others say what they should be."""

    def is_finished(self, model: PreTrainedModel) -> bool:
        """Whether those weights are as `finish_pretraining` would set them."""
        return True

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Makes a model that was built or loaded say the same whatever it ran before; returns it."""
        return model

    def hasten(self, model: PreTrainedModel) -> PreTrainedModel:
        """Makes a model faster, and leaves what it gives as it is; returns it."""
        if model.config._attn_implementation == "sdpa" and self.fast_attention != "sdpa":
            model.set_attn_implementation(self.fast_attention)
        return model

    @torch.no_grad()
    def extend(self, model: PreTrainedModel, length: int) -> PreTrainedModel:
        """The same model for longer inputs, in the way Table A3 has it for the family.

        Args:
            model: Any model of the family; it is left as it is.
            length: Tokens of the longest input from now on.

        Returns:
            A model of the same class.

        Raises:
            ValueError: If it takes that length already.
        """
        now = self.longest(model.config)
        if length <= (model.config.max_position_embeddings if now is None else now):
            raise ValueError(f"length is {length}; this model takes {now or model.config.max_position_embeddings}")
        config = copy.deepcopy(model.config)
        for name, value in self.longer(config, length).items():
            setattr(config, name, value)
        check_fits("the longer model", parameters_of(type(model), config), model.dtype.itemsize)
        longer = type(model)(config).to(model.device, model.dtype)
        weights = model.state_dict()
        for name, table in longer.state_dict().items():
            if name in weights and weights[name].shape != table.shape:
                weights[name] = self.lengthen(weights[name], len(table), model.config)
        longer.load_state_dict(weights)
        return self.hasten(self.prepare(longer)).train(model.training)


def input_length(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Tokens of each text in what a forward of transformers' encoders is given, padding included."""
    given = arguments[0] if arguments else named.get("input_ids")
    return (named["inputs_embeds"] if given is None else given).shape[1]
