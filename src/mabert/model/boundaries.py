"""Reads the boundaries of sequences that a caller packed into one row, and refuses those that contradict themselves."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mabert.model.packing import Packing, is_tracing
from mabert.ops.layout import offsets_of, remember
from mabert.schema import ON_HOST

BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", ON_HOST)
"""The keyword arguments for sequences in a row in transformers' padding-free training, named as by its collator, and
`ON_HOST`."""


def read_boundaries(
    given: Mapping[str, Any], input: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None
) -> Packing | None:
    """Reads the boundaries among a forward's keyword arguments, see `BOUNDARIES`, for an input (batch, time, ...).

    Returns:
        The packing; None if the caller gave no boundaries and none are needed.

    Raises:
        ValueError: If boundaries are missing although positions restart inside a row; if they fall, do not cover the
            row, or contradict each other or the positions (which restart elsewhere, or count on across a boundary); if
            they come with a mask or more than one row; or while a graph is captured, which cannot depend on their
            values.
    """
    named = {name: given[name] for name in BOUNDARIES if given.get(name) is not None}
    if not named:
        if not is_tracing() and _restarts(position_ids, attention_mask):
            raise ValueError(
                "position_ids start anew inside a row, which are packed sequences, but cu_seq_lens_q, which tells "
                "them apart, is missing (DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives it)"
            )
        return None
    _check_company(named, input.shape[0], attention_mask)
    trusted = ON_HOST in named and input.device.type != "cpu"  # a GPU's offsets would have to be waited for
    forms = (ON_HOST,) if trusted else ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", ON_HOST)
    found = {name: _read_offsets(name, named[name], input.shape[1]) for name in forms if name in named}
    (first, offsets), *others = found.items()
    for name, other in others:
        if other != offsets:
            raise ValueError(f"{name} and {first} disagree about where sequences start: {other} and {offsets}")
    if position_ids is not None and not trusted:
        _check_positions(position_ids, first, offsets)
    lengths = tuple(end - start for start, end in itertools.pairwise(offsets))
    longest = max(lengths, default=0)
    for bound in ("max_length_q", "max_length_k"):
        if bound in named and int(named[bound]) < longest:
            raise ValueError(f"{bound} is {int(named[bound])}, and a sequence is {longest} tokens long")
    cuts: Any = named.get("cu_seq_lens_q")
    on_gpu = isinstance(cuts, Tensor) and cuts.device == input.device and input.device.type != "cpu"
    fits = on_gpu and cuts.dtype == torch.int32 and cuts.dim() == 1 and cuts.is_contiguous()
    if not fits or cuts.is_inference():
        with torch.inference_mode(False):  # as in `Packing.of_lengths`
            cuts = torch.tensor(offsets, dtype=torch.int32).to(input.device, non_blocking=True)
    remember(cuts, offsets)
    return Packing(cuts, lengths)


def _check_company(named: Mapping[str, Any], rows: int, attention_mask: Tensor | None) -> None:
    """Refuses boundaries that come in a captured graph, beside a mask or several rows, or without sequences."""
    one = next(iter(named))
    if is_tracing():
        raise ValueError(
            f"{one} is given while a graph is captured (torch.compile, torch.export); "
            "run packed rows without, or capture a padded batch"
        )
    if attention_mask is not None:
        raise ValueError(f"attention_mask and {one} are both given; a packed row has no padding, leave the mask out")
    if rows != 1:
        raise ValueError(f"{one} is given beside {rows} rows; packed input is one row, (1, total)")
    if "cu_seq_lens_q" not in named and "seq_idx" not in named:
        raise ValueError(f"{one} is given without cu_seq_lens_q: where the sequences begin is missing")


def _check_positions(position_ids: Tensor, first: str, offsets: Sequence[int]) -> None:
    """Refuses positions that start anew where there is no boundary, or count on where there is one."""
    known = set(offsets)
    within = [place for place in _restarts(position_ids, None) if place not in known]
    if within:
        raise ValueError(f"position_ids start anew at token {within[0]}, where {first} has no boundary")
    positions = position_ids.reshape(-1)
    inside = [place for place in offsets if 0 < place < len(positions)]
    starts = torch.tensor(inside, dtype=torch.int64, device=positions.device)
    over = starts[positions[starts] == positions[starts - 1] + 1].tolist()
    if over:
        raise ValueError(
            f"position_ids count on over token {over[0]}, where {first} has a boundary: each sequence has "
            "positions of its own (leave position_ids out to have them made)"
        )


def _read_offsets(name: str, given: Any, total: int) -> list[int]:
    """Converts a form of boundaries to offsets, which must rise from 0 to the row's tokens; `seq_idx` numbers each
    token's sequence."""
    if name == ON_HOST:
        offsets = list(given)
    elif not isinstance(given, Tensor) or given.is_floating_point() or given.is_complex():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{name} is a {kind}; it must be a tensor of integers")
    elif name == "seq_idx":
        if given.numel() != total:
            raise ValueError(f"seq_idx has {given.numel()} numbers for {total} tokens")
        number = given.flatten()
        if number[1:].lt(number[:-1]).any():
            raise ValueError("seq_idx falls inside the row; sequences must be numbered in order")
        offsets = [0, *((number[1:] != number[:-1]).nonzero().flatten() + 1).tolist(), total]
    else:
        offsets = offsets_of(given) if given.dim() == 1 else given.flatten().tolist()
    if not offsets or offsets[0] != 0 or offsets[-1] != total:
        ends = f"{offsets[0]} to {offsets[-1]}" if offsets else "nothing"
        raise ValueError(f"{name} covers {ends}; it must run from 0 to the row's {total} tokens")
    for start, end in itertools.pairwise(offsets):
        if end < start:
            raise ValueError(f"{name} falls from {start} to {end}; offsets must rise")
    return offsets


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
    known = valid & (before >= 0)
    last = positions.gather(-1, before.clamp_min(0))
    first = positions.gather(-1, valid.int().argmax(dim=-1, keepdim=True))
    back, rises = known & (positions <= last), known & (positions > last)
    counts_on = (~known | (positions == last + 1) | back).all(dim=-1, keepdim=True)
    begins = back & ((positions == first) | (positions == 0) | counts_on)
    return (begins & rises.any(dim=-1, keepdim=True)).any(dim=0).nonzero().flatten().tolist()
