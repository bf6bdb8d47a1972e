"""Several sequences packed end to end in one row: a padded batch without its padding, or a row a caller packed.

Convolution and scan restart at every boundary, attention stays within its sequence, and positions count from each
start, so each token gets the same vector as in its sequence alone.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from mabert.ops.derivatives import is_mapped


def total_of(tokens: int) -> int:
    """Rounds a number of tokens up, so that packed rows have few lengths.

    oneDNN compiles a kernel for each number of rows that a product meets and keeps it, some 0.6 MiB a layer of another
    shape: a server that reads texts of every length would grow by gigabytes. With 19 lengths up to 512, `minilm` grows
    by 98 MiB.
    """
    steps = {16: 8, 128: 16, 384: 32}
    step = next((step for most, step in steps.items() if tokens <= most), max(64, 1 << (tokens - 1).bit_length() >> 5))
    return -(-tokens // step) * step


def is_tracing() -> bool:
    """Returns whether the code may not look at values, since it is being captured (compile, export, jit, CUDA graph) or
    runs for many inputs at once (`torch.vmap`)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True  # before CUDA is asked, which dynamo cannot capture
    if is_mapped():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Packing:
    """Where the sequences of one packed row begin and end."""

    cu_seqlens: Tensor  # int32 (sequences + 1,), rising from 0 to the row's length
    lengths: tuple[int, ...]  # tokens of each sequence
    longest: int = -1  # Tokens of the longest sequence; default, counted here. A captured graph need not fix it.
    spare: int = 0  # steps of the last sequence, if that is no text, see `total_of`
    _plans: "Plans" = field(default_factory=lambda: Plans(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.longest < 0:
            object.__setattr__(self, "longest", max(self.lengths, default=0))

    @classmethod
    def of_lengths(cls, lengths: Tensor, spare: int = 0) -> "Packing":
        """Packs sequences of these lengths, int64 (sequences,), in this order."""
        # No inference tensor: operators cannot see whether one has been written to, and would check it in each layer.
        with torch.inference_mode(False):
            ends = lengths.clone().cumsum(dim=0)
            return cls(torch.cat((ends.new_zeros(1), ends)).to(torch.int32), tuple(lengths.tolist()), spare=spare)

    @property
    def texts(self) -> int:
        """Number of sequences that are texts."""
        return len(self.lengths) - (self.spare > 0)

    def to(self, device: torch.device | str, **options: Any) -> "Packing":
        """Returns the packing on another device, or itself if it is there."""
        if self.cu_seqlens.device == torch.device(device):
            return self
        return replace(self, cu_seqlens=self.cu_seqlens.to(device, **options))

    def positions(self) -> Tensor:
        """Returns position ids, int64 (1, total): each token's index in its sequence."""
        lengths = self.cu_seqlens.diff().long()
        starts = self.cu_seqlens[:-1].long().repeat_interleave(lengths, output_size=sum(self.lengths))
        return (torch.arange(sum(self.lengths), device=starts.device) - starts).unsqueeze(0)

    @functools.cached_property
    def rows(self) -> "Unpadding":
        """The padded batch with one sequence per row, padded on the right."""
        lengths = self.cu_seqlens.diff()
        steps = torch.arange(self.longest, device=lengths.device)
        return Unpadding.of(steps < lengths.unsqueeze(1))

    def batches(self, extra: int | None = None) -> "Batches":
        """Plans the sequences as padded batches of similar lengths, once.

        For a sequence that joins longer ones, attention may compute `extra` scores (pairs of tokens). None joins
        sequences up to twice as long, so padding never exceeds the tokens, and there are at most 1 + log2(longest)
        batches with tokens.
        """
        planned, key = self._plans.batches, (self.cu_seqlens.device, extra)
        if key not in planned:
            planned[key] = Batches.of(self, extra)
        return planned[key]


class Plans:
    """The batches planned for a packing so far.

    Sharding (FSDP) copies a module's arguments, dataclasses and dicts included; all copies share this object.
    """

    def __init__(self) -> None:
        self.batches: dict[tuple[torch.device, int | None], Batches] = {}


@dataclass(frozen=True)
class Batches:
    """The sequences of a packed row as a few padded batches, so that one call handles several sequences."""

    # for each batch, bool (sequences, longest), True at tokens; None if the batch has no padding
    masks: tuple[Tensor | None, ...]
    shapes: tuple[tuple[int, int], ...]  # for each batch, its number of sequences and the longest of them
    # int64 (total,), index of each token of the row in the batches, flattened and concatenated; None if the batches
    # equal the row
    places: Tensor | None
    order: Tensor | None  # int64 (sequences,), index of each sequence among those of the batches; None likewise

    @classmethod
    def of(cls, packing: Packing, extra: int | None) -> "Batches":
        """Plans the batches, see `Packing.batches`. Empty sequences form a batch of their own."""
        lengths = packing.lengths
        groups: list[list[int]] = []
        for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
            longest = lengths[groups[-1][0]] if groups else 0
            length = lengths[index]
            joins = 2 * length >= longest if extra is None else longest**2 - length**2 <= extra
            if groups and joins and bool(length) == bool(longest):
                groups[-1].append(index)
            else:
                groups.append([index])
        # Keep the row's order as far as batches allow: equal lengths then need no moving.
        groups = sorted((sorted(group) for group in groups), key=lambda group: group[0]) or [[]]
        shapes = tuple((len(group), max((lengths[index] for index in group), default=0)) for group in groups)
        sequences = [index for group in groups for index in group]
        device = packing.cu_seqlens.device
        with torch.inference_mode(False):
            sizes = torch.tensor(lengths, dtype=torch.int64)
            valid = [torch.arange(shape[1]) < sizes[group, None] for group, shape in zip(groups, shapes, strict=True)]
            masks = tuple(None if bool(mask.all()) else mask.to(device, non_blocking=True) for mask in valid)
            even = all(mask is None for mask in masks)
            if even and sequences == sorted(sequences):
                return cls(masks, shapes, None, None)
            order = torch.tensor(sequences, dtype=torch.int64)
            rows = torch.tensor([longest for count, longest in shapes for _ in range(count)], dtype=torch.int64)
            starts = torch.empty_like(sizes)
            starts[order] = rows.cumsum(0) - rows
            steps = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
            places = starts.repeat_interleave(sizes) + steps
            places, back = (index.to(device, non_blocking=True) for index in (places, order.argsort()))
            return cls(masks, shapes, places, back)

    def cut(self, packed: Tensor) -> list[Tensor]:
        """Splits (1, total, ...) into batches, (sequences, longest, ...), zero at padding."""
        flat = packed.squeeze(0)
        sizes = [count * longest for count, longest in self.shapes]
        if self.places is not None:
            flat = flat.new_zeros(sum(sizes), *flat.shape[1:]).index_copy_(0, self.places.to(flat.device), flat)
        return [part.unflatten(0, shape) for part, shape in zip(flat.split(sizes), self.shapes, strict=True)]

    def each(self, packed: Tensor, function: Callable[[Tensor, Tensor | None], Tensor]) -> list[Tensor]:
        """Calls a function on each batch of (1, total, ...) and its mask."""
        return [function(part, valid) for part, valid in zip(self.cut(packed), self.masks, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Undoes `cut`: returns (1, total, ...), without the values at padding."""
        flat = _joined([part.flatten(0, 1) for part in parts])
        return (flat if self.places is None else flat.index_select(0, self.places.to(flat.device))).unsqueeze(0)

    def in_order(self, parts: Sequence[Tensor]) -> Tensor:
        """Takes one vector per sequence of each batch, (sequences, ...), and returns all in the row's order."""
        flat = _joined(parts)
        return flat if self.order is None else flat.index_select(0, self.order.to(flat.device))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@dataclass(frozen=True)
class Unpadding:
    """The map from a padded batch to its tokens in one row, and back."""

    valid: Tensor  # bool (batch, time), True at tokens
    places: Tensor  # int64 (tokens,), index of each token in the flattened batch
    packing: Packing  # the packed row, perhaps with spare steps

    @classmethod
    def of(cls, valid: Tensor, few_totals: bool = False) -> "Unpadding":
        """Plans the map for a mask, bool (batch, time); padding may be anywhere, and rows may be empty. With
        `few_totals` the row gets spare steps up to `total_of` its tokens."""
        places, lengths = valid.flatten().nonzero().squeeze(1), valid.sum(dim=1)
        spare = total_of(len(places)) - len(places) if few_totals else 0
        if spare:
            lengths = torch.cat((lengths, lengths.new_tensor([spare])))
        return cls(valid, places, Packing.of_lengths(lengths, spare))

    def flatten(self, padded: Tensor) -> Tensor:
        """Packs (batch or 1, time, ...) to (1, total, ...), without the values at padding. Spare steps repeat the last
        token's."""
        padded = padded.expand(*self.valid.shape, *padded.shape[2:])
        packed = padded.flatten(0, 1).index_select(0, self.places.to(padded.device)).unsqueeze(0)
        if not (spare := self.packing.spare):
            return packed
        return torch.cat((packed, packed[:, -1:].expand(-1, spare, *packed.shape[2:])), dim=1)

    def restore(self, packed: Tensor) -> Tensor:
        """Unpacks (1, total, ...) to (batch, time, ...), zero at padding."""
        flat = packed.new_zeros(self.valid.numel(), *packed.shape[2:])
        places = self.places.to(packed.device)
        return flat.index_copy_(0, places, packed[0, : len(places)]).unflatten(0, self.valid.shape)

    def restore_all(self, outputs: ModelOutput) -> Any:
        """Unpacks every tensor of a model's output in place, also those in tuples (of layers); returns the output."""
        for name, recorded in list(outputs.items()):
            if isinstance(recorded, Tensor):
                outputs[name] = self.restore(recorded)
            else:
                outputs[name] = tuple(None if x is None else self.restore(x) for x in recorded)
        return outputs
