"""Opens a model of any family for everyone who uses one, and gives it more positions."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mabert.baselines.family import Family
from mabert.baselines.registry import FAMILIES, family_of
from mabert.data.encode import EncodingSettings
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import CONFIG, Place, expanded, find
from mabert.files.sentences import SentenceFolder, copy_settings, is_cross_encoder
from mabert.files.writing import check_new, filling
from mabert.model.config import make_config_of
from mabert.opening.uses import Use, build, class_for, ready, saved_class, saved_use
from mabert.opening.weights import load_model

POOLER_PREFIX = "pooler."
"""BERT's pooler for next-sentence prediction: masked language models lack it, but every encoder expects it."""


@dataclass(frozen=True)
class Opened:
    """A model that was found and understood; its tokenizer and weights are read when asked for."""

    place: Place
    config: PreTrainedConfig  # may have been changed

    @property
    def family(self) -> Family:
        """The model's family; raises ValueError if it belongs to none."""
        return family_of(self.config)

    @property
    def longest(self) -> int | None:
        """Tokens that the model has positions for; None if unlimited."""
        return self.family.longest(self.config)

    @property
    def use(self) -> Use:
        """The use that the model was saved for."""
        return saved_use(self.config)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The model's tokenizer; raises ValueError if it has ids beyond the model's vocabulary."""
        tokenizer = load_tokenizer(self.place.path)
        if len(tokenizer) > self.config.vocab_size:
            raise ValueError(
                f"the tokenizer in {self.place} has {len(tokenizer)} entries, the model's vocabulary "
                f"{self.config.vocab_size}"
            )
        return tokenizer

    @cached_property
    def sentences(self) -> SentenceFolder | None:
        """What the folder's files of sentence-transformers say."""
        return SentenceFolder.at(self.place.path)

    @cached_property
    def encoding(self) -> EncodingSettings | None:
        """How texts were encoded in fine-tuning, if the folder says so."""
        return EncodingSettings.beside(self.place.path)

    def changed(self, **fields: Any) -> "Opened":
        """Returns the model with other fields of its configuration; raises ValueError if one has a wrong value."""
        return Opened(self.place, config_of(self.place, fields))

    def with_config(self, config: PreTrainedConfig) -> "Opened":
        """Returns the model with another configuration, which must have its shape."""
        return dataclasses.replace(self, config=config)

    def model(self, use: Use | None = None, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """Loads the model in evaluation mode, ready for use in its family's fastest exact way.

        Args:
            use: What it is for; default, as it was saved.
            dtype: Dtype of the weights; default, as saved.

        Raises:
            FileNotFoundError: If there are no weights.
            ValueError: If the weights are damaged, or lack what the use needs.
        """
        return ready(self.plain(use, dtype))

    def plain(self, use: Use | None = None, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """Loads the model as transformers runs it; arguments and errors are those of `model`."""
        kind = saved_class(self.config) if use is None else class_for(use, self.config)
        drawn = (POOLER_PREFIX,) if kind is class_for("encoder", self.config) else ()
        return load_model(kind, self.place, self.config, dtype=dtype, drawn=drawn)

    def save_beside(
        self, folder: Path, length: int | None = None, encoding: EncodingSettings | None = None, *, modules: bool = True
    ) -> None:
        """Writes what a folder has beside weights and configuration: the tokenizer, the files of sentence-transformers,
        which then cut texts at `length` tokens, and how texts were encoded in fine-tuning. The defaults are this
        folder's own. Without `modules`, those that make vectors are left out."""
        self.tokenizer.save_pretrained(folder)
        if modules and self.sentences is not None:
            self.sentences.copy_to(folder, length)
        elif is_cross_encoder(self.place.path):
            copy_settings(self.place.path, folder)
        if (said := encoding or self.encoding) is not None:
            said.save(folder)

    def with_new_head(self, use: Use = "classifier") -> PreTrainedModel:
        """Loads the encoder in float32 with a new random head, whatever head it was saved with; raises what `model`
        does, and ValueError if the weights are quantized."""
        self.refuse_quantized()
        encoder = self.model("encoder", torch.float32)
        model = build(use, self.config)
        missing, unexpected = model.base_model.load_state_dict(encoder.state_dict(), strict=False)
        odd = [name for name in (*missing, *unexpected) if not name.startswith(POOLER_PREFIX)]
        if odd:
            raise ValueError(f"{self.place}: {type(encoder).__name__} and {type(model).__name__} differ in {odd[0]}")
        return model

    def refuse_quantized(self) -> None:
        """Raises ValueError if the weights are quantized: such a model can be used as it is, and no more."""
        if self.place.fields.get("quantization_config") is not None:
            raise ValueError(
                f"{self.place} holds quantized weights, which can be neither trained, extended, converted nor "
                "exported; give the model they were made of"
            )


Model = str | Path | Place | Opened
"""How a model is named: a folder, a name, what was found, or what was opened."""


def open_model(model: Model, kinds: Collection[str] | None = None) -> Opened:
    """Opens a model; `mabert.files.places.find` says how one is named.

    Args:
        model: Folder, name, what was found, or what was opened, which is returned.
        kinds: transformers' model types to accept; default, those of the known families.

    Raises:
        FileNotFoundError: If there is no folder or no `config.json`.
        ValueError: If it is of another type, or a field has a wrong value.
    """
    if isinstance(model, Opened):
        return model
    place = find(model)
    known = [family.model_type for family in FAMILIES.values()] if kinds is None else kinds
    kind = place.fields.get("model_type")
    if kind is None:
        raise ValueError(f"{place.path / CONFIG} has no model_type; those known are {', '.join(known)}")
    if kind not in known:
        more = "; `mabert convert` reads other types" if kinds is None else ""
        raise ValueError(f"{place} holds a model of type {kind!r}; it must be {' or '.join(known)}{more}")
    return Opened(place, config_of(place, {}))


def config_of(place: Place, changes: dict[str, Any]) -> PreTrainedConfig:
    """Makes the configuration in a folder, with changes; raises ValueError that names the file."""
    fields = {**place.fields, **changes}
    kind = fields.pop("model_type")
    fields.pop("return_dict", None)  # outputs are read by name
    try:
        return make_config_of(CONFIG_MAPPING[kind], fields)
    except ValueError as error:
        raise ValueError(f"{place.path / CONFIG}: {error}") from error


def extend(model: Model, length: int, output: str | Path) -> int:
    """Saves a copy of a model for longer inputs, with its tokenizer, by its family's method in Table A3.

    A fine-tuned model's `encoding.json` is copied unchanged, so `predict` keeps any maximum length that fine-tuning
    set. sentence-transformers cuts texts at the new length.

    Args:
        model: Model folder or hub name, of any family.
        length: New maximum input length in tokens.
        output: A new folder.

    Returns:
        The old maximum input length.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If the model already takes that length, the folder is not empty, the model's `encoding.json` is
            damaged, its vectors are made in a way that is not known here, or its weights are quantized.
    """
    output = expanded(output)
    check_new(output)
    opened = open_model(model)
    opened.refuse_quantized()
    _ = opened.encoding, opened.sentences  # damaged ones are refused before anything is written
    longer = opened.family.extend(opened.model(), length)
    opened.tokenizer.model_max_length = length
    with filling(output) as staging:
        longer.save_pretrained(staging)
        opened.save_beside(staging, length)
    return opened.family.finite_limit(opened.config)
