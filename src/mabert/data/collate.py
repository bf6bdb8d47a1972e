"""Batches: examples of different lengths padded to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


def _pad(values: list[torch.Tensor], width: int, fill: int) -> torch.Tensor:
    padded = torch.full((len(values), width), fill, dtype=torch.int64)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded
