"""Several sequences packed end to end in one row: a padded batch without its padding, or a row a caller packed.

Convolution and scan restart at every boundary, attention stays within its sequence, and positions count from each
start, so each token gets the same vector as in its sequence alone.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mabert.ops.transforms import is_mapped


def is_tracing() -> bool:
    """Returns whether the code may not look at values, since it is being captured (compile, export, jit, CUDA graph) or
    runs for many inputs at once (`torch.vmap`)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True  # before CUDA is asked, which dynamo cannot capture
    if is_mapped():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""The keyword arguments for sequences in a row in transformers' padding-free training, named as by its collator."""

_LIKE_BOUNDARIES = (
    *("cuseq", "culen", "cumulativeseq", "seq", "lengths", "maxlen", "maxseq"),
    *("document", "docid", "segmentid", "sampleid"),
)
"""Prefixes, without underscores, of names that others use for boundaries. A forward accepts any name and would silently
ignore these."""


@dataclass(frozen=True)
class Packing:
    """Where the sequences of one packed row begin and end.

    Attributes:
        cu_seqlens: int32 (sequences + 1,), rising from 0 to the row's length.
        lengths: Tokens of each sequence.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    _plans: "Plans" = field(default_factory=lambda: Plans(), repr=False, compare=False)

    # Neither constructor makes inference tensors: operators cannot see whether those have been written to, and would
    # check them again in each layer.

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> "Packing":
        """Packs sequences of these lengths, int64 (sequences,), in this order."""
        with torch.inference_mode(False):
            ends = lengths.clone().cumsum(dim=0)
            return cls(torch.cat((ends.new_zeros(1), ends)).to(torch.int32), tuple(lengths.tolist()))

    @classmethod
    def from_caller(
        cls, given: Mapping[str, Any], input: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> "Packing | None":
        """Reads the boundaries that a caller gave, see `BOUNDARIES`.

        Args:
            given: The keyword arguments of a forward.
            input: The input that they belong to, (batch, time, ...).
            attention_mask: The caller's mask.
            position_ids: The caller's positions.

        Returns:
            The packing; None if the caller gave no boundaries and none are needed.

        Raises:
            ValueError: If boundaries are missing although positions restart inside a row; if they fall, do not cover
                the row, or contradict each other or the positions (which restart elsewhere, or count on across a
                boundary); if they come with a mask or more than one row, or have an unknown name; or while a graph is
                captured, which cannot depend on their values.
        """
        shape = input.shape[:2]
        named = {name: given[name] for name in BOUNDARIES if given.get(name) is not None}
        for name in given:
            if (
                name.replace("_", "").startswith(_LIKE_BOUNDARIES)
                and name not in BOUNDARIES
                and given[name] is not None
            ):
                raise ValueError(f"{name} is given; boundaries of packed sequences go by {', '.join(BOUNDARIES)}")
        if is_tracing():
            if named:
                raise ValueError(
                    f"{next(iter(named))} is given while a graph is captured (torch.compile, torch.export); "
                    "run packed rows without, or capture a padded batch"
                )
            return None
        if not named:
            if _restarts(position_ids, attention_mask):
                raise ValueError(
                    "position_ids start anew inside a row, which are packed sequences, but cu_seq_lens_q, which tells "
                    "them apart, is missing (DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives it)"
                )
            return None
        if attention_mask is not None:
            raise ValueError(
                f"attention_mask and {next(iter(named))} are both given; "
                "a packed row has no padding, leave the mask out"
            )
        if shape[0] != 1:
            raise ValueError(
                f"{next(iter(named))} is given beside {shape[0]} rows; packed input is one row, (1, total)"
            )
        if "cu_seq_lens_q" not in named and "seq_idx" not in named:
            raise ValueError(
                f"{next(iter(named))} is given without cu_seq_lens_q: where the sequences begin is missing"
            )
        told: dict[str, list[int]] = {
            name: _offsets_of(name, named[name], shape[1])
            for name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
            if name in named
        }
        (first, offsets), *others = told.items()
        for name, other in others:
            if other != offsets:
                raise ValueError(f"{name} and {first} do not tell the same sequences: {other} and {offsets}")
        known = set(offsets)
        within = [place for place in _restarts(position_ids, None) if place not in known]
        if within:
            raise ValueError(f"position_ids start anew at token {within[0]}, where {first} has no boundary")
        over = _counting_on(position_ids, offsets)
        if over:
            raise ValueError(
                f"position_ids count on over token {over[0]}, where {first} has a boundary: each sequence has "
                "positions of its own (leave position_ids out to have them made)"
            )
        lengths = tuple(end - start for start, end in itertools.pairwise(offsets))
        longest = max(lengths, default=0)
        for bound in ("max_length_q", "max_length_k"):
            if bound in named and int(named[bound]) < longest:
                raise ValueError(f"{bound} is {int(named[bound])}, and a sequence is {longest} tokens long")
        with torch.inference_mode(False):
            return cls(torch.tensor(offsets, dtype=torch.int32, device=input.device), lengths)

    def to(self, device: torch.device | str, **options: Any) -> "Packing":
        """Returns the packing on another device, or itself if it is there."""
        if self.cu_seqlens.device == torch.device(device):
            return self
        return Packing(self.cu_seqlens.to(device, **options), self.lengths)

    def positions(self) -> Tensor:
        """Returns position ids, int64 (1, total): each token's index in its sequence."""
        lengths = self.cu_seqlens.diff().long()
        starts = self.cu_seqlens[:-1].long().repeat_interleave(lengths, output_size=sum(self.lengths))
        return (torch.arange(sum(self.lengths), device=starts.device) - starts).unsqueeze(0)

    @functools.cached_property
    def rows(self) -> "Unpadding":
        """The padded batch with one sequence per row, padded on the right."""
        lengths = self.cu_seqlens.diff()
        steps = torch.arange(max(self.lengths, default=0), device=lengths.device)
        return Unpadding.of(steps < lengths.unsqueeze(1))

    def batches(self, spare: int | None = None) -> "Batches":
        """Plans the sequences as padded batches of similar lengths, once.

        Args:
            spare: How many extra scores (pairs of tokens) attention may compute for a sequence because it joins longer
                ones. None joins sequences up to twice as long, so padding never exceeds the tokens, and there are at
                most 1 + log2(longest) batches with tokens.
        """
        planned, key = self._plans.batches, (self.cu_seqlens.device, spare)
        if key not in planned:
            planned[key] = Batches.of(self, spare)
        return planned[key]


class Plans:
    """The batches planned for a packing so far.

    Sharding (FSDP) copies a module's arguments, dataclasses and dicts included; all copies share this object.
    """

    def __init__(self) -> None:
        self.batches: dict[tuple[torch.device, int | None], Batches] = {}


@dataclass(frozen=True)
class Batches:
    """The sequences of a packed row as a few padded batches, so that one call handles several sequences.

    Attributes:
        masks: For each batch, bool (sequences, longest), True at tokens; None if the batch has no padding.
        shapes: For each batch, its number of sequences and the longest of them.
        places: int64 (total,), index of each token of the row in the batches, flattened and concatenated; None if the
            batches equal the row.
        order: int64 (sequences,), index of each sequence among those of the batches; None likewise.
    """

    masks: tuple[Tensor | None, ...]
    shapes: tuple[tuple[int, int], ...]
    places: Tensor | None
    order: Tensor | None

    @classmethod
    def of(cls, packing: Packing, spare: int | None) -> "Batches":
        """Plans the batches, see `Packing.batches`. Empty sequences form a batch of their own."""
        lengths = packing.lengths
        groups: list[list[int]] = []
        for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
            longest = lengths[groups[-1][0]] if groups else 0
            length = lengths[index]
            joins = 2 * length >= longest if spare is None else longest**2 - length**2 <= spare
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
            masks = tuple(None if bool(mask.all()) else mask.to(device) for mask in valid)
            even = all(mask is None for mask in masks)
            if even and sequences == sorted(sequences):
                return cls(masks, shapes, None, None)
            order = torch.tensor(sequences, dtype=torch.int64)
            rows = torch.tensor([longest for count, longest in shapes for _ in range(count)], dtype=torch.int64)
            starts = torch.empty_like(sizes)
            starts[order] = rows.cumsum(0) - rows
            steps = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
            places = starts.repeat_interleave(sizes) + steps
            return cls(masks, shapes, places.to(device), order.argsort().to(device))

    def cut(self, packed: Tensor) -> list[Tensor]:
        """Splits (1, total, ...) into batches, (sequences, longest, ...), zero at padding."""
        flat = packed.squeeze(0)
        sizes = [count * longest for count, longest in self.shapes]
        if self.places is not None:
            flat = flat.new_zeros(sum(sizes), *flat.shape[1:]).index_copy_(0, self.places.to(flat.device), flat)
        return [part.unflatten(0, shape) for part, shape in zip(flat.split(sizes), self.shapes, strict=True)]

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
    """The map from a padded batch to its tokens in one row, and back.

    Attributes:
        valid: bool (batch, time), True at tokens.
        places: int64 (total,), index of each token in the flattened batch.
        packing: The packed row.
    """

    valid: Tensor
    places: Tensor
    packing: Packing

    @classmethod
    def of(cls, valid: Tensor) -> "Unpadding":
        """Plans the map for a mask, bool (batch, time); padding may be anywhere, and rows may be empty."""
        return cls(valid, valid.flatten().nonzero().squeeze(1), Packing.of_lengths(valid.sum(dim=1)))

    def flatten(self, padded: Tensor) -> Tensor:
        """Packs (batch or 1, time, ...) to (1, total, ...), without the values at padding."""
        padded = padded.expand(*self.valid.shape, *padded.shape[2:])
        return padded.flatten(0, 1).index_select(0, self.places.to(padded.device)).unsqueeze(0)

    def restore(self, packed: Tensor) -> Tensor:
        """Unpacks (1, total, ...) to (batch, time, ...), zero at padding."""
        flat = packed.new_zeros(self.valid.numel(), *packed.shape[2:])
        places = self.places.to(packed.device)
        return flat.index_copy_(0, places, packed.squeeze(0)).unflatten(0, self.valid.shape)


def _offsets_of(name: str, told: Any, total: int) -> list[int]:
    """Converts one of the three forms of boundaries to offsets; `seq_idx` numbers the sequence of each token."""
    if not isinstance(told, Tensor) or told.is_floating_point() or told.is_complex():
        kind = told.dtype if isinstance(told, Tensor) else type(told).__name__
        raise ValueError(f"{name} is a {kind}; it must be a tensor of integers")
    if name == "seq_idx":
        if told.numel() != total:
            raise ValueError(f"seq_idx has {told.numel()} numbers for {total} tokens")
        number = told.flatten()
        changes = (number[1:] != number[:-1]).nonzero().flatten() + 1
        if number[1:].lt(number[:-1]).any():
            raise ValueError("seq_idx falls inside the row; sequences must be numbered in order")
        return [0, *changes.tolist(), total]
    offsets = [int(offset) for offset in told.flatten().tolist()]
    if not offsets or offsets[0] != 0 or offsets[-1] != total:
        ends = f"{offsets[0]} to {offsets[-1]}" if offsets else "nothing"
        raise ValueError(f"{name} covers {ends}; it must run from 0 to the row's {total} tokens")
    for start, end in itertools.pairwise(offsets):
        if end < start:
            raise ValueError(f"{name} falls from {start} to {end}; offsets must rise")
    return offsets


def _counting_on(position_ids: Tensor | None, offsets: Sequence[int]) -> list[int]:
    """Returns the boundaries inside a packed row across which positions count on."""
    if position_ids is None:
        return []
    told = position_ids.reshape(-1)
    inside = torch.tensor([place for place in offsets if 0 < place < len(told)], dtype=torch.int64, device=told.device)
    return inside[told[inside] == told[inside - 1] + 1].tolist()


def _restarts(position_ids: Tensor | None, attention_mask: Tensor | None) -> list[int]:
    """Returns the places in rows where a packed text begins.

    There positions fall back to the row's first position or to zero, or fall at all in a row that otherwise counts up
    by one. A row whose positions never rise holds no packed texts. Positions at padding are ignored.
    """
    if position_ids is None or position_ids.shape[-1] < 2:
        return []
    if attention_mask is not None and attention_mask.shape[-1] != position_ids.shape[-1]:
        raise ValueError(
            f"attention_mask is {tuple(attention_mask.shape)} and position_ids {tuple(position_ids.shape)}; both are "
            "(batch, time), position_ids also (1, time)"
        )
    valid = torch.ones_like(position_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
    valid, positions = torch.broadcast_tensors(valid.to(position_ids.device), position_ids)
    places = torch.arange(positions.shape[-1], device=positions.device)
    # For each place, the last token before it (-1 if none), and the first token of the row.
    before = places.where(valid, -1).cummax(dim=-1).values.roll(1, dims=-1)
    before[..., 0] = -1
    told = valid & (before >= 0)
    last = positions.gather(-1, before.clamp_min(0))
    first = positions.gather(-1, valid.int().argmax(dim=-1, keepdim=True))
    back, rises = told & (positions <= last), told & (positions > last)
    counts_on = (~told | (positions == last + 1) | back).all(dim=-1, keepdim=True)
    begins = back & ((positions == first) | (positions == 0) | counts_on)
    return (begins & rises.any(dim=-1, keepdim=True)).any(dim=0).nonzero().flatten().tolist()
