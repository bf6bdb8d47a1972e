"""Faster attention for transformers' encoders, with the same results.

Select it by `from_pretrained(..., attn_implementation="mabert")` after `import mabert`. Inference uses
`mabert.ops.softmax_attention` where that is faster than SDPA; training on a CPU with dropout attends by blocks of
queries; everything else uses SDPA. With a sliding window, transformers gives SDPA a mask of time x time, and SDPA
computes every score. Here neither path computes scores far outside the window: SDPA gets blocks of queries, each with
the keys that its window reaches, in one call. Padding is a mask of keys, never a matrix.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mabert.model.attention import sdpa_attention
from mabert.model.packing import is_tracing
from mabert.ops import HEAD_SIZE_STEP, attention_pays, softmax_attention

NAME = "mabert"
"""The value of `attn_implementation` that selects it."""

BLOCK = 128
"""Queries per block."""

OF_SDPA = ("softcap", "position_bias", "cache")
"""Options that transformers' SDPA handles or refuses itself."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes bidirectional attention, within a sliding window if the layer has one.

    `query` is (batch, heads, time, head_size), `key` and `value` are (batch, heads, keys, head_size); `keys` differs
    from `time` in cross-attention. `attention_mask` is bool (batch, keys), True at tokens, as `mask` makes it; or any
    mask for SDPA, which then includes the window. None is no padding. `sliding_window` is one more than the distance
    that a query reaches, as in flash kernels. `is_causal` is by default the layer's attribute. Further options are
    those of transformers' SDPA.

    Returns (batch, time, heads, head_size), and None for the weights. Raises ValueError if the layer is causal.
    """
    if getattr(module, "is_causal", True) if is_causal is None else is_causal:
        raise ValueError(
            f"attn_implementation is {NAME!r}, which is for encoders, and {type(module).__name__} is causal: use 'sdpa'"
        )
    options["is_causal"] = False
    if attention_mask is not None and attention_mask.dim() > 2:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    reach = None if sliding_window is None or query.shape[2] <= sliding_window else sliding_window - 1
    if _kernel_serves(query, key, reach is not None, options):
        heads, size = query.shape[1], query.shape[3]
        q, k, v = (x.transpose(1, 2).flatten(2) for x in (query, key, value))
        mixed = softmax_attention(q, k, v, heads, scale=options.get("scaling"), mask=attention_mask, window=reach)
        return mixed.unflatten(2, (heads, size)), None
    if reach is not None:
        return _windowed(module, query, key, value, attention_mask, reach, **options)
    shown = None if attention_mask is None else attention_mask[:, None, None]
    plain = all(options.get(name) is None for name in OF_SDPA)
    attend = sdpa_attention if plain else sdpa_attention_forward
    return attend(module, query, key, value, shown, **options)


def mask(*arguments: Any, **named: Any) -> Tensor | None:
    """Returns the padding mask for `attention`: bool (batch, keys), None without padding.

    If a model has a mask of its own besides padding, this is transformers' mask for SDPA. A traced graph always gets a
    mask, because it cannot check for padding.
    """
    if named.get("use_vmap"):
        return sdpa_mask(*arguments, **named)
    padding = named.get("attention_mask")
    return None if padding is None or (not is_tracing() and bool(padding.all())) else padding.bool()


def _kernel_serves(query: Tensor, key: Tensor, windowed: bool, options: dict[str, Any]) -> bool:
    """Checks whether `softmax_attention` supports a call and is faster."""
    if torch.is_grad_enabled() or is_tracing() or query.shape != key.shape or query.shape[3] % HEAD_SIZE_STEP:
        return False
    if options.get("dropout") or any(options.get(name) is not None for name in OF_SDPA):
        return False
    return attention_pays(query[:, 0], query.shape[0], windowed)


def _windowed(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None, reach: int, **options: Any
) -> tuple[Tensor, None]:
    """Computes windowed attention by SDPA; returns what `attention` does."""
    batch, heads, time, size = query.shape
    valid = torch.ones(1, time, dtype=torch.bool, device=query.device) if keys is None else keys
    if time <= 2 * BLOCK:
        steps = torch.arange(time, device=query.device)
        seen = ((steps[:, None] - steps).abs() <= reach) & valid[:, None]
        return sdpa_attention_forward(module, query, key, value, seen[:, None], **options)
    width = BLOCK + 2 * reach
    blocks = -(-time // BLOCK)
    beyond = blocks * BLOCK - time
    # (batch x blocks, heads, queries or keys of a block, head_size)
    queries = pad(query, (0, 0, 0, beyond)).unflatten(2, (blocks, BLOCK)).transpose(1, 2).flatten(0, 1)
    chosen = (
        pad(x, (0, 0, reach, beyond + reach)).unfold(2, width, BLOCK).permute(0, 2, 1, 4, 3).flatten(0, 1)
        for x in (key, value)
    )
    there = pad(valid, (reach, beyond + reach)).unfold(1, width, BLOCK)
    place = torch.arange(width, device=query.device) - reach
    near = (torch.arange(BLOCK, device=query.device)[:, None] - place).abs() <= reach
    # Queries past the end, and some at padding, see no key; SDPA returns zeros for them.
    seen = (near & there[:, :, None]).expand(batch, -1, -1, -1).flatten(0, 1)
    mixed, _ = sdpa_attention_forward(module, queries, *chosen, seen[:, None], **options)
    return mixed.reshape(batch, blocks * BLOCK, heads, size)[:, :time], None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
