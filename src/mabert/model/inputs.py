"""Checks a forward's inputs, and decides how the batch runs: padded, or as one row without its padding."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from mabert.model.boundaries import BOUNDARIES, read_boundaries
from mabert.model.config import MaBertConfig
from mabert.model.masking import PaddingMask
from mabert.model.packing import Unpadding, is_tracing, total_of

logger = logging.get_logger(__name__)

Tensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Token ids, segments, positions (batch or 1, time) and embeddings; None for what was not given."""


class Inputs(NamedTuple):
    """A batch that was checked, and how it runs."""

    tensors: tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]  # what was given, and positions in any case
    own_positions: bool  # whether the encoder made the positions
    unmasked: bool  # whether the batch came without a mask and without boundaries
    mask: PaddingMask  # the padding or the sequences of what the layers run on
    unpadding: Unpadding | None  # the map to the one row that they run on; None if they run on the batch

    def packed(self, hidden: Tensor) -> Tensor:
        """Returns (batch, time, ...) as the layers run on it."""
        return hidden if self.unpadding is None else self.unpadding.flatten(hidden)


def read_inputs(
    config: MaBertConfig, tensors: Tensors, attention_mask: Tensor | None, options: dict[str, Any], few_totals: bool
) -> Inputs:
    """Checks the arguments of `MaBertModel.forward`, whose docstring lists the errors, and decides how the batch runs.

    Of `options`, the forward's further arguments, boundaries are taken out, and `output_attentions` is filled in.
    `few_totals` tells whether packed rows should have few lengths, see `total_of`.
    """
    *_, position_ids, _ = tensors
    given = _check_shapes(config, tensors)
    asked = options.get("output_attentions")
    options["output_attentions"] = bool(config.output_attentions if asked is None else asked)
    packing = read_boundaries(options, given, attention_mask, position_ids)
    if packing is not None and options["output_attentions"]:
        raise ValueError("output_attentions is not there for packed rows: give the texts as a padded batch")
    for name in BOUNDARIES:
        options.pop(name, None)
    mask = PaddingMask.from_attention_mask(attention_mask, given, config.padding_safe_masking, packing)
    if position_ids is None:
        _check_length(config, given.shape[1], mask)

    unpadding = _unpadding(config, mask, given, options, few_totals)
    if unpadding is not None:
        # Values at padding must have no effect, be it an id outside its table or a NaN that would reach a gradient.
        tensors = tuple(None if x is None else mask.zero(x) for x in tensors)  # type: ignore[assignment]
    ids, segments, positions, embeds = tensors
    if positions is None:
        positions = mask.positions(given.shape[:2], given.device)
    if unpadding is not None:
        mask = PaddingMask(None, mask.masking, unpadding.packing)
    if mask.valid is not None and mask.masking == "exact" and not is_tracing() and _has_holes(mask.valid):
        logger.warning_once(  # a convolution's window spans the hole
            "a row of attention_mask has padding between tokens; masked execution is exact for left and right "
            "padding only"
        )
    unmasked = attention_mask is None and packing is None
    return Inputs((ids, segments, positions, embeds), position_ids is None, unmasked, mask, unpadding)


def _check_shapes(config: MaBertConfig, tensors: Tensors) -> Tensor:
    """Refuses inputs of wrong shapes; returns the ids or the embeddings, whichever is given."""
    input_ids, _, position_ids, inputs_embeds = tensors
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    given = input_ids if inputs_embeds is None else inputs_embeds
    assert given is not None
    width = config.embedding_width
    if inputs_embeds is None and given.dim() != 2:
        raise ValueError(f"input_ids has shape {tuple(given.shape)}; it must be (batch, time)")
    if inputs_embeds is not None and (given.dim() != 3 or given.shape[2] != width):
        raise ValueError(f"inputs_embeds has shape {tuple(given.shape)}; it must be (batch, time, {width})")
    shape = given.shape[:2]
    if position_ids is not None and position_ids.shape not in (shape, (1, shape[1])):
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)}; it must be (batch or 1, time) = {tuple(shape)}"
        )
    return given


def _unpadding(
    config: MaBertConfig, mask: PaddingMask, given: Tensor, options: dict[str, Any], few_totals: bool
) -> Unpadding | None:
    """Plans how this batch runs as one row without its padding; None if it runs as it is.

    It runs padded and masked if attention weights are asked for, which are those of the padded batch; if a graph is
    captured, whose shapes may not depend on the mask's values; and if gradients through hidden states may be asked
    for, because those of an unpadded run are restored copies. The last holds only where masked execution is exact.
    A batch without padding runs as one row too where `few_totals` asks for another number of tokens.
    """
    valid, shape = mask.valid, given.shape[:2]
    if few_totals and valid is None and mask.packing is None and total_of(shape.numel()) != shape.numel():
        valid = torch.ones(shape, dtype=torch.bool, device=given.device)
    as_it_is = config.unpad == "never" or mask.masking != "exact" or is_tracing() or options["output_attentions"]
    if valid is None or as_it_is or not bool(valid.any()):
        return None
    asked = options.get("output_hidden_states")
    recorded = torch.is_grad_enabled() and (config.output_hidden_states if asked is None else asked)
    return None if recorded and not _has_holes(valid) else Unpadding.of(valid, few_totals)


def _check_length(config: MaBertConfig, time: int, mask: PaddingMask) -> None:
    limit = config.max_position_embeddings
    if config.position_embedding != "learned" or time <= limit:
        return
    if mask.packing is not None:
        time = mask.packing.longest
    elif mask.valid is not None:
        if is_tracing():
            return
        time = int(mask.valid.sum(dim=1).max())
    if time > limit:
        raise ValueError(
            f"the input is {time} tokens long, max_position_embeddings is {limit}: truncate it, "
            f"or stretch the positions with model.resize_position_embeddings({time})"
        )


def _has_holes(valid: Tensor) -> bool:
    """Returns whether any row of a mask, bool (batch, time), has padding between tokens."""
    starts = (valid[:, 1:] & ~valid[:, :-1]).sum(dim=1) + valid[:, 0]
    return bool((starts > 1).any())
