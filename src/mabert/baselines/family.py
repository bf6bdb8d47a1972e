"""Model families: what commands need to know of an encoder's sizes, positions, heads and tokenizer."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mabert.baselines import attention
from mabert.machine.memory import check_fits, parameters_of
from mabert.model.config import MaBertConfig, make_config, make_config_of
from mabert.model.embeddings import stretch

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
"""Dropout of embeddings and sub-layers, and of attention weights."""

COMMON = ("layer_pattern", *SIZES, *DROPOUTS)
"""Fields of a recipe's model that every family supports; a baseline uses only the depth of `layer_pattern`."""


class Family:
    """A model family. The defaults are BERT's; subclasses override what differs.

    Attributes:
        name: Name on the command line, as in `--model bert`.
        title: Name in tables.
        model_type: Name in transformers.
        hub: The published model of base size; its tokenizer is the family's.
        base: Configuration fields of the published model that differ from the defaults.
        head: First module of the masked-language-model head.
        unreached: Substrings of the names of weights that masked language modelling does not train.
        fast_attention: The fastest exact `attn_implementation` if transformers supports SDPA for the family.
        keeps_state: Whether a forward pass changes the model, so that two must not run at once.
        unlimited: Whether inputs may have any length, whatever the configuration; `longest` tells of one.
        repeats: Whether longer positions repeat the old ones, see `repeat`, instead of stretching them.
        dropouts: The family's fields that each of `DROPOUTS` sets.
        of_classifier: Fields with a classifier's own dropout.
        compiles: Dtypes in which `torch.compile` was seen to speed up transformers' forward pass on a CPU, each with
            the range of input lengths.
        compiles_at_best: The same with this package's attention and prepacked weights.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    model_type: ClassVar[str]
    hub: ClassVar[str]
    base: ClassVar[Mapping[str, Any]] = {}
    head: ClassVar[str] = "cls"
    unreached: ClassVar[tuple[str, ...]] = ()
    fast_attention: ClassVar[str] = attention.NAME
    keeps_state: ClassVar[bool] = False
    unlimited: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    dropouts: ClassVar[Mapping[str, tuple[str, ...]]] = {name: (name,) for name in DROPOUTS}
    of_classifier: ClassVar[tuple[str, ...]] = ("classifier_dropout",)
    compiles: ClassVar[Mapping[str, range]] = {}
    compiles_at_best: ClassVar[Mapping[str, range]] = {}

    def base_config(self, **changes: Any) -> PreTrainedConfig:
        """Returns the configuration of the published model of base size with some fields changed."""
        return make_config_of(CONFIG_MAPPING[self.model_type], {**self.base, **changes})

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        """Checks whether outputs for texts of these lengths depend on the rest of the batch by more than rounding;
        `pooled` tells whether the model pools, as a classifier does and an encoder or masked language model does
        not."""
        return False

    def known_fields(self) -> set[str]:
        """Returns the valid fields of a recipe's model section for this family."""
        return set(self.declared()) | set(self.base) | set(COMMON)

    def declared(self) -> dict[str, Any]:
        """Returns the types of the family's configuration fields and of the common ones, by name."""
        common = {field.name: field.type for field in dataclasses.fields(MaBertConfig) if field.name in COMMON}
        return {field.name: field.type for field in dataclasses.fields(CONFIG_MAPPING[self.model_type])} | common

    def own_dropout(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a recipe's model fields with the common dropout fields renamed to the family's."""
        own = {name: value for name, value in fields.items() if name not in DROPOUTS}
        for name, its in self.dropouts.items():
            if name in fields:
                own |= dict.fromkeys(its, fields[name])
        return own

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        """Returns the configuration for a recipe's model section: common fields, and the family's own, which take
        precedence, and those `of_run`: vocabulary size, ids of special tokens. Raises ValueError if the fields make no
        model."""
        common = make_config(**{name: value for name, value in fields.items() if name in COMMON})
        dropout = self.dropout(common.hidden_dropout_prob, common.attention_probs_dropout_prob)
        own = {name: value for name, value in fields.items() if name not in COMMON}
        return self.base_config(**{**self.sizes(common), **dropout, **own, **of_run})

    def special_ids(self, pad: int, cls: int, sep: int) -> dict[str, int]:
        """Returns the fields for special tokens that the family's configuration has."""
        roles = {"pad": pad, "bos": cls, "cls": cls, "eos": sep, "sep": sep}
        published = self.base_config()
        fields = {f"{role}_token_id": token for role, token in roles.items()}
        return {name: token for name, token in fields.items() if getattr(published, name, None) is not None}

    def sizes(self, common: MaBertConfig) -> dict[str, Any]:
        """Returns the fields for the sizes of a MaBERT; for its base size, those of the published model."""
        return {name: getattr(common, name) for name in SIZES}

    def dropout(self, hidden: float, attention: float) -> dict[str, Any]:
        """Returns the fields for the dropout of embeddings and sub-layers (`hidden`) and of attention weights."""
        return self.own_dropout(dict(zip(DROPOUTS, (hidden, attention), strict=True)))

    def classifier_dropout(self, rate: float) -> dict[str, Any]:
        """Returns the fields that set every dropout, including a classifier's, to one probability."""
        return {**self.dropout(rate, rate), **dict.fromkeys(self.of_classifier, rate)}

    def set_packing(self, config: PreTrainedConfig, packing: str, pools: bool = False) -> None:
        """Sets how a model runs padded batches (`PackingChoice` of `mabert.train.recipe`); `pools` tells whether it
        pools its token vectors. Raises ValueError if rows are to be packed, and padding is meant to have an effect or
        the model takes no such rows."""
        if packing == "pack":
            raise ValueError(f"packing is 'pack', the model {self.model_type}: only MaBERT takes packed rows here")

    @staticmethod
    def unused(config: PreTrainedConfig) -> int:
        """Returns the rows of the table of positions before that of the first token."""
        return 0

    def longest(self, config: PreTrainedConfig) -> int | None:
        """Returns the maximum input length in tokens; None for no limit."""
        return None if self.unlimited else config.max_position_embeddings - self.unused(config)

    def limit(self, config: PreTrainedConfig, max_length: int | None) -> int | None:
        """Returns the most tokens that an input may have, at most `max_length`; None if unlimited. Raises ValueError if
        `max_length` is more than the model has positions for."""
        longest = self.longest(config)
        if longest is not None and max_length is not None and max_length > longest:
            raise ValueError(f"max_length is {max_length}, the model has positions for {longest} tokens")
        return longest if max_length is None else max_length

    def finite_limit(self, config: PreTrainedConfig, max_length: int | None = None) -> int:
        """Returns what `limit` does; if unlimited, `max_position_embeddings`, for which the model was made."""
        return self.limit(config, max_length) or config.max_position_embeddings

    def token_scores(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        """Computes the masked-language-model logits, (..., D) to (..., vocabulary)."""
        return getattr(model, self.head)(hidden)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        """Returns the fields to change for inputs of `length` tokens (Table A3)."""
        return {"max_position_embeddings": length + self.unused(config)}

    def lengthen(self, table: Tensor, rows: int, config: PreTrainedConfig) -> Tensor:
        """Lengthens learned positions from (old rows, D) to (rows, D)."""
        return repeat(table, rows, self.unused(config)) if self.repeats else stretch(table, rows)

    def freeze_unreached(self, model: PreTrainedModel) -> None:
        """Freezes the weights that masked language modelling does not train."""
        for name, weight in model.named_parameters():
            weight.requires_grad_(not any(part in name for part in self.unreached))

    def derived(self, model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
        """Returns the weights that masked language modelling does not train, each with the trained one it copies."""
        return []

    @torch.no_grad()
    def finish_pretraining(self, model: PreTrainedModel) -> None:
        """Sets the weights that follow from trained ones."""
        for weight, trained in self.derived(model):
            weight.copy_(trained)

    def is_finished(self, model: PreTrainedModel) -> bool:
        """Checks whether those weights are already as `finish_pretraining` would set them."""
        return all(torch.equal(weight, trained) for weight, trained in self.derived(model))

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Makes a model's outputs independent of what it ran before; returns the model."""
        return model

    def speed_up(self, model: PreTrainedModel) -> PreTrainedModel:
        """Makes a model faster without changing its outputs; returns the model."""
        if model.config._attn_implementation == "sdpa" and self.fast_attention != "sdpa":
            model.set_attn_implementation(self.fast_attention)
        return model

    @torch.no_grad()
    def extend(self, model: PreTrainedModel, length: int) -> PreTrainedModel:
        """Returns a copy of any model of the family, which stays unchanged, for inputs of up to `length` tokens, by the
        family's method in Table A3; raises ValueError if the model already takes them."""
        now = self.finite_limit(model.config)
        if length <= now:
            raise ValueError(f"length is {length}; this model takes {now}")
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
        return self.speed_up(self.prepare(longer)).train(model.training)


class Bert(Family):
    """BERT (Devlin et al., 2019): full attention, learned positions."""

    name, title, model_type, hub = "bert", "BERT", "bert", "google-bert/bert-base-uncased"


def first_position(config: PreTrainedConfig) -> int:
    """Returns the row of the first token's position in RoBERTa and its like: rows up to the padding id are unused."""
    return config.pad_token_id + 1


def repeat(table: Tensor, rows: int, kept: int = 0) -> Tensor:
    """Repeats a table of positions until it is long enough, as Longformer was initialised from RoBERTa (Beltagy et al.,
    2020, section 5).

    The old positions stay, so the outputs for short inputs do not change. Of the table, (old rows, D), the first `kept`
    rows are not positions and are not repeated. Returns (rows, D).
    """
    positions = table[kept:]
    copies = -(-(rows - kept) // len(positions))
    return torch.cat([table[:kept], positions.repeat(copies, 1)])[:rows]
