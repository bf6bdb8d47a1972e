"""Collators: pad examples to one length, or pack them into a single row."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from mabert.data.mlm import MlmMasking
from mabert.schema import IGNORED, ON_HOST, SCORED

Examples = Sequence[Mapping[str, Any]]
"""Mappings with the same keys. `input_ids` `(time,)` is required; `token_type_ids` and `labels` may have one value per
token; `labels` (or `label`, or `label_ids`) may also be one number per example, or several; `start_positions` and
`end_positions` are one number per example."""

# Columns with one value per token, and their padding value; `input_ids` get the tokenizer's padding token instead.
_FILL = {"input_ids": 0, "labels": IGNORED, "token_type_ids": 0}
_PLACES = ("start_positions", "end_positions")
# Columns that tokenizers add and no batch keeps; `attention_mask` is read only to refuse padded examples.
_LEFT_OUT = ("attention_mask", "special_tokens_mask")
_LABELS = {"label": "labels", "label_ids": "labels"}  # as transformers' collators rename them


@dataclass(frozen=True)
class Collator:
    """Pads examples at the end to the longest length in the batch."""

    pad_id: int  # the padding token of `input_ids`

    def __call__(self, examples: Examples) -> dict[str, torch.Tensor]:
        """Makes one batch.

        Returns `input_ids` `(batch, time)` int64, `attention_mask` likewise, 1 on tokens and 0 on padding,
        `token_type_ids` where given, `labels` `(batch, time)` int64 with -100 on padding, or `(batch,)` or `(batch,
        labels)`, int64 for classes and float32 for scores, and `start_positions` and `end_positions` `(batch,)` int64.
        Raises the ValueErrors of `_columns`.
        """
        fills = _FILL | {"input_ids": self.pad_id, "attention_mask": 0}
        columns = _columns(examples)
        columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
        return {
            key: values if isinstance(values, torch.Tensor) else pad_sequence(values, True, fills[key])
            for key, values in columns.items()
        }


@dataclass(frozen=True)
class FlatteningCollator:
    """Packs examples into one row without padding: for MaBERT's models under any Trainer.

    MLM masks depend on the seed and on all tokens of the batch alone. So a text gets new masks when the other texts of
    its batch change, and the same masks after a restart, whatever was prefetched. A text that is alone in its batch
    keeps its mask in every epoch.

    Attributes:
        masking: hides tokens and makes the labels; None if the examples have labels.
        seed: seed of the masks; non-negative.
    """

    masking: MlmMasking | None = None
    seed: int = 0

    def __call__(self, examples: Examples) -> dict[str, Any]:
        """Makes one row.

        Returns:
            `input_ids` and `position_ids` `(1, total)` int64, the boundaries `cu_seq_lens_q` and `cu_seq_lens_k`
            `(examples + 1,)` int32, and as a tuple of int `cu_seq_lens_host`; `max_length_q` and `max_length_k`;
            `token_type_ids` and `labels` `(1, total)` where given, or `labels` `(examples,)` or `(examples, labels)`,
            int64 for classes and float32 for scores, and `start_positions` and `end_positions` `(examples,)` int64,
            counted from the start of the example; with `masking`, `scored_positions` `(labels,)` int64, the places in
            the row that have a label.

        Raises:
            ValueError: there are no examples, or one is padded, has an unknown column or other columns than the rest,
                has two columns of labels, has labels although `masking` makes them, or has a column whose length
                differs from that of `input_ids`.
        """
        if not examples:
            raise ValueError("there are no examples to make a row of")
        if self.masking is not None:
            for name in ("labels", *_LABELS):
                if any(name in example for example in examples):
                    raise ValueError(f"the examples bring {name}, and the collator was to make labels: leave one out")
            examples = self._masked(examples, self.masking)
        columns = _columns(examples)
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        bounds = pad(lengths.cumsum(0), (1, 0))
        row: dict[str, Any] = {
            "position_ids": torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0),
            "cu_seq_lens_q": bounds.int(),
            "cu_seq_lens_k": bounds.int(),
            ON_HOST: tuple(bounds.tolist()),
            "max_length_q": int(lengths.max()),
            "max_length_k": int(lengths.max()),
        }
        for key, values in columns.items():
            row[key] = values if isinstance(values, torch.Tensor) else torch.cat(values).unsqueeze(0)
        if self.masking is not None:
            row[SCORED] = places_of(row["labels"])
        return row

    def _masked(self, examples: Examples, masking: MlmMasking) -> list[dict[str, Any]]:
        texts = [np.asarray(example["input_ids"], dtype=np.int64) for example in examples]
        draw = int.from_bytes(hashlib.sha256(np.concatenate(texts).tobytes()).digest()[:8])
        masked = []
        for place, (example, ids) in enumerate(zip(examples, texts, strict=True)):
            inputs, labels = masking(ids, self.seed, draw, place)
            masked.append({**example, "input_ids": inputs, "labels": labels})
        return masked


def places_of(labels: torch.Tensor) -> torch.Tensor:
    """Returns the places of labels, (batch, time), -100 where a position is not scored, in the flattened batch."""
    return (labels.flatten() != IGNORED).nonzero().squeeze(1)


def _columns(examples: Examples) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Returns the columns that the model takes: a list of int64 `(time,)` for one value per token, else one tensor
    `(examples, ...)`, int64 or float32.

    Raises ValueError if an example is padded, has an unknown column or other columns than the rest, has two columns of
    labels, or has a column whose length differs from that of `input_ids`.
    """
    columns: dict[str, torch.Tensor | list[torch.Tensor]] = {}
    for name in _checked_names(examples):
        key = _LABELS.get(name, name)
        if key in columns:
            raise ValueError(f"the examples have {name!r} and another column of labels: leave one out")
        values = [torch.as_tensor(example[name]) for example in examples]
        lengths = [len(example["input_ids"]) for example in examples]
        if key in _PLACES or (key == "labels" and not _run_along(values, lengths)):
            stacked = torch.stack(values)
            columns[key] = stacked.float() if stacked.is_floating_point() else stacked.long()
            continue
        for place, (value, length) in enumerate(zip(values, lengths, strict=True)):
            if value.shape != (length,):
                shape = " x ".join(map(str, value.shape)) or "one"
                raise ValueError(f"{name} of example {place} are {shape} for {length} tokens")
        columns[key] = [value.long() for value in values]
    return columns


def _checked_names(examples: Examples) -> list[str]:
    """Returns the names of the columns; raises ValueError if they differ, one is unknown, or an example is padded."""
    for place, example in enumerate(examples):
        if not torch.as_tensor(example.get("attention_mask", 1)).all():
            raise ValueError(f"example {place} is padded; tokenize with padding=False")
        here, there = (sorted(set(each) - set(_LEFT_OUT)) for each in (example, examples[0]))
        if here != there:
            message = f"example {place} has {', '.join(here)}, and the first {', '.join(there)}: make them alike"
            raise ValueError(message)
    names = [name for name in examples[0] if name not in _LEFT_OUT]
    for name in names:
        if name not in (*_FILL, *_PLACES, *_LABELS):
            raise ValueError(
                f"the examples have {name!r}, which is not for the model (that takes {', '.join((*_FILL, *_PLACES))}): "
                f"leave it out, as with a data set's remove_columns({name!r})"
            )
    return names


def _run_along(labels: list[torch.Tensor], lengths: list[int]) -> bool:
    """Checks whether labels are per token; otherwise each text has the same number of labels, one or more."""
    if any(label.dim() != 1 or label.is_floating_point() for label in labels):
        return False
    counts = [len(label) for label in labels]
    return counts == lengths or len(set(counts)) > 1
