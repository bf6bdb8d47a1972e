"""Batches: examples of different lengths padded to one, or one behind the other in a single row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mabert.data.mlm import MlmMasking

# What fills the end of a shorter example; `input_ids` get the tokenizer's padding token.
_FILL = {"labels": -100, "token_type_ids": 0}


@dataclass(frozen=True)
class Collator:
    """Pads examples at the end to the longest of the batch.

    Attributes:
        pad_id: the padding token of `input_ids`.
        multiple_of: round the length up to a multiple of this (8 suits tensor cores); 1 does not round.
        length: pad to this length whatever the batch holds; None pads to its longest example.
    """

    pad_id: int
    multiple_of: int = 1
    length: int | None = None

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Makes one batch.

        Args:
            examples: mappings with the same keys. `input_ids` `(time,)` is required; `token_type_ids` and `labels` may
                run along it; `labels` may also be one number an example.

        Returns:
            `input_ids` `(batch, time)` int64, `attention_mask` `(batch, time)` int64, 1 on tokens and 0 on padding
            (always there), `token_type_ids` likewise where given, `labels` `(batch, time)` int64 with -100 on padding,
            or `(batch,)`, int64 for classes and float32 for scores.

        Raises:
            ValueError: an example is longer than `length`.
        """
        sizes = [len(example["input_ids"]) for example in examples]
        width = max(sizes) if self.length is None else self.length
        width = -(-width // self.multiple_of) * self.multiple_of
        if max(sizes) > width:
            raise ValueError(f"an example of {max(sizes)} tokens does not fit the padded length {width}")
        batch = {"attention_mask": torch.zeros(len(examples), width, dtype=torch.int64)}
        for row, size in enumerate(sizes):
            batch["attention_mask"][row, :size] = 1
        for key in examples[0]:
            if key == "attention_mask":
                continue
            values = [torch.as_tensor(example[key]) for example in examples]
            if values[0].dim() == 0:
                stacked = torch.stack(values)
                batch[key] = stacked.float() if stacked.is_floating_point() else stacked.long()
            else:
                fill = self.pad_id if key == "input_ids" else _FILL[key]
                batch[key] = _pad(values, width, fill)
        return batch


@dataclass(frozen=True)
class FlatteningCollator:
    """Packs examples one behind the other into one row, without padding: for MaBERT's models under any Trainer.

    Its masks are a function of the seed and of all tokens of the batch: new ones whenever a text comes in other
    company, the same again after a restart, whatever was collated ahead of time. A text that is alone in its batch
    keeps its masks from epoch to epoch.

    Attributes:
        masking: hides tokens and makes the labels; None where the examples bring their own.
        seed: of the masks; non-negative.
    """

    masking: MlmMasking | None = None
    seed: int = 0

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor | int]:
        """Makes one row.

        Args:
            examples: mappings with the same keys. `input_ids` `(time,)` is required; `token_type_ids` and `labels` may
                run along it; `labels` may also be one number an example.

        Returns:
            `input_ids` and `position_ids` `(1, total)` int64, the boundaries `cu_seq_lens_q` and `cu_seq_lens_k`
            `(examples + 1,)` int32, `max_length_q` and `max_length_k`; `token_type_ids` and `labels` `(1, total)` where
            given, or `labels` `(examples,)`.

        Raises:
            ValueError: there are no examples, they have an `attention_mask` with padding, or labels beside `masking`.
        """
        if not examples:
            raise ValueError("there are no examples to make a row of")
        if self.masking is not None:
            if "labels" in examples[0]:
                raise ValueError("the examples bring labels, and the collator was to make them: leave one out")
            examples = self._masked(examples)
        for place, example in enumerate(examples):
            if not torch.as_tensor(example.get("attention_mask", 1)).all():
                raise ValueError(f"example {place} is padded; tokenize with padding=False")
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        ends = lengths.cumsum(0)
        starts = (ends - lengths).repeat_interleave(lengths)
        bounds = torch.cat((ends.new_zeros(1), ends)).int()
        longest = int(lengths.max())
        row: dict[str, torch.Tensor | int] = {
            "position_ids": (torch.arange(len(starts)) - starts).unsqueeze(0),
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }
        for key in examples[0]:
            if key == "attention_mask":
                continue
            values = [torch.as_tensor(example[key]) for example in examples]
            if values[0].dim() == 0:
                stacked = torch.stack(values)
                row[key] = stacked.float() if stacked.is_floating_point() else stacked.long()
            else:
                row[key] = torch.cat(values).long().unsqueeze(0)
        return row

    def _masked(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        assert self.masking is not None
        texts = [np.asarray(example["input_ids"], dtype=np.int64) for example in examples]
        draw = int.from_bytes(hashlib.sha256(np.concatenate(texts).tobytes()).digest()[:8])
        pairs = [self.masking(ids, self.seed, draw, place) for place, ids in enumerate(texts)]
        return [
            {**example, "input_ids": inputs, "labels": labels}
            for example, (inputs, labels) in zip(examples, pairs, strict=True)
        ]


def _pad(values: list[torch.Tensor], width: int, fill: int) -> torch.Tensor:
    padded = torch.full((len(values), width), fill, dtype=torch.int64)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded
