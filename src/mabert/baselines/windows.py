"""Attention within a window that computes no scores far outside of it, among transformers' attention implementations.

transformers gives SDPA a mask of time x time for layers that attend within a window, and SDPA computes every score of
it. Here queries go block by block, each with the keys that its window reaches, in one call of SDPA. Batches with
padding get transformers' own way.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

WINDOWED = "sdpa_windowed"
"""Its name."""

BLOCK = 128
"""Queries of a block."""


def windowed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """SDPA, within a window where a layer has one and nothing is padded.

    Args:
        module: The attention layer.
        query: (batch, heads, time, head_size).
        key: Likewise.
        value: Likewise.
        attention_mask: As SDPA takes it; None for no padding.
        sliding_window: One more than the distance that a query reaches, as flash kernels are told; None for any.
        options: `dropout`, `scaling` and what else transformers' SDPA takes.

    Returns:
        (batch, time, heads, head_size), and None for the weights.
    """
    time = query.shape[2]
    if sliding_window is None or attention_mask is not None or time <= sliding_window:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    reach = sliding_window - 1
    if time <= 2 * BLOCK:
        steps = torch.arange(time, device=query.device)
        near = (steps[:, None] - steps).abs() <= reach
        return sdpa_attention_forward(module, query, key, value, near[None, None], **options)
    batch, heads, _, size = query.shape
    blocks = -(-time // BLOCK)
    beyond = blocks * BLOCK - time
    # (batch x blocks, heads, queries or keys of a block, head_size)
    queries = pad(query, (0, 0, 0, beyond)).unflatten(2, (blocks, BLOCK)).transpose(1, 2).flatten(0, 1)
    keys, values = (
        pad(x, (0, 0, reach, beyond + reach)).unfold(2, BLOCK + 2 * reach, BLOCK).permute(0, 2, 1, 4, 3).flatten(0, 1)
        for x in (key, value)
    )
    place = torch.arange(BLOCK + 2 * reach, device=query.device) - reach
    near = (torch.arange(BLOCK, device=query.device)[:, None] - place).abs() <= reach
    there = place + BLOCK * torch.arange(blocks, device=query.device)[:, None]
    seen = near & ((there >= 0) & (there < time))[:, None]
    # Queries behind the end would see nothing, and softmax over nothing is NaN; what they see is cut off.
    seen |= (there[:, reach : reach + BLOCK] >= time)[:, :, None]
    mask = seen[:, None].repeat(batch, 1, 1, 1)
    mixed, _ = sdpa_attention_forward(module, queries, keys, values, mask, **options)
    return mixed.reshape(batch, blocks * BLOCK, heads, size)[:, :time], None


def window_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """transformers' mask for SDPA; none for a window without padding, which `windowed_attention` sees to itself."""
    padding = named.get("attention_mask")
    if named.get("local_size") is not None and (padding is None or bool(padding.all())):
        return None
    return sdpa_mask(*arguments, **named)


AttentionInterface.register(WINDOWED, windowed_attention)
AttentionMaskInterface.register(WINDOWED, window_mask)
