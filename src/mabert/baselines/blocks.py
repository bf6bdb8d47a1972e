"""BigBird's sparse attention that computes the scores it needs and keeps none of them, in three calls of SDPA.

transformers computes these in float matrices of their own, and lays all weights out in a matrix of time x time that
nobody reads unless asked for. Here the keys that a block of queries attends to are gathered, and SDPA does the rest.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

PENALTY = -10000.0
"""What transformers adds to the score of a padded key."""

ONE_PLAN = (1024, 3072, 4096)
"""Lengths whose random blocks are drawn among the first 1,024 tokens, as the published models were trained."""


def blockwise(query: Tensor, key: Tensor, value: Tensor, from_mask: Tensor, to_mask: Tensor, drawn: Tensor) -> Tensor:
    """What `BigBirdBlockSparseAttention` computes.

    The first and the last block see all keys. Any other sees the first, the last, itself, its two neighbours and some
    at random, each as often as it is named; but the second's left neighbour is the first, and likewise at the end.

    Args:
        query: (batch, heads, time, head_size), of 7 whole blocks of time at least.
        key: Likewise.
        value: Likewise.
        from_mask: (batch, 1, time, 1), 0 at padding, whose result is zero.
        to_mask: (batch, 1, 1, time), 0 at padding.
        drawn: The blocks of keys at random, (heads, blocks - 2, some), see `random_blocks`.

    Returns:
        (batch, time, heads, head_size).
    """
    last = drawn.shape[1] + 1
    bias = None if bool(to_mask.all()) else ((1.0 - to_mask) * PENALTY).to(query.dtype)
    blocked = [x.unflatten(2, (last + 1, -1)) for x in (query, key, value)]
    beside_ends = torch.tensor([[0, 1, 2, last], [0, last - 2, last - 1, last]], device=query.device)
    middle = torch.arange(2, last - 1, device=query.device)[:, None]
    first = torch.zeros_like(middle)
    within = torch.cat([first, middle - 1, middle, middle + 1, first + last], dim=1)
    ends = _seeing_all(blocked[0][:, :, [0, last]], key, value, bias)
    second = _seeing(blocked, [1, last - 1], beside_ends, drawn[:, [0, -1]], bias)
    mixed = _seeing(blocked, slice(2, last - 1), within, drawn[:, 1:-1], bias)
    parts = [ends[:, :, :1], second[:, :, :1], mixed, second[:, :, 1:], ends[:, :, 1:]]
    return (torch.cat(parts, dim=2).flatten(2, 3) * from_mask.to(query.dtype)).transpose(1, 2)


def _seeing_all(queries: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Blocks of queries (batch, heads, blocks, block, head_size) that attend to every key."""
    return scaled_dot_product_attention(queries.flatten(2, 3), key, value, bias).unflatten(2, queries.shape[2:4])


def _seeing(blocked: list[Tensor], rows: Any, near: Tensor, drawn: Tensor, bias: Tensor | None) -> Tensor:
    """Blocks of queries that attend to some blocks of keys.

    Args:
        blocked: Query, key and value, (batch, heads, blocks, block, head_size).
        rows: Which blocks of queries.
        near: The blocks of keys that each of them sees in every head, (rows, some).
        drawn: Those at random, (heads, rows, some).
        bias: On the scores of all keys, (batch, 1, 1, time).

    Returns:
        (batch, heads, rows, block, head_size).
    """
    queries, keys, values = blocked[0][:, :, rows], *blocked[1:]
    batch, heads, count, block, size = queries.shape
    seen = torch.cat([near.expand(heads, *near.shape), drawn], dim=-1)
    # (heads x blocks of keys) is one dimension, by which whole blocks are copied, and in the backward added, at once.
    whole = (seen + keys.shape[2] * torch.arange(heads, device=seen.device)[:, None, None]).flatten()
    # (heads x blocks of queries) stand as heads: a GPU takes no more than 65,535 texts at once.
    chosen = [x.flatten(1, 2).index_select(1, whole).view(batch, heads * count, -1, size) for x in (keys, values)]
    if bias is not None:
        of_blocks = bias.view(batch, -1, block).index_select(1, seen.flatten())
        bias = of_blocks.view(batch, heads * count, 1, -1).expand(-1, -1, block, -1)
    mixed = scaled_dot_product_attention(queries.reshape(batch, heads * count, block, size), *chosen, bias)
    return mixed.view(batch, heads, count, block, size)


def random_blocks(attention: Any, heads: int, time: int) -> Tensor:
    """The blocks of keys at random, (heads, blocks - 2, random blocks), drawn as transformers draws them.

    In training they are those of the layer's seed; in evaluation each is the first block, once more. NumPy's own
    generator, which transformers seeds for it, is left as it was.

    Args:
        attention: The layer, a `BigBirdBlockSparseAttention`.
        heads: Its heads.
        time: Tokens, a multiple of its `block_size`.
    """
    before = np.random.get_state()
    try:
        np.random.seed(attention.seed)
        return torch.from_numpy(np.stack(_plans(attention, heads, time)).astype(np.int64))
    finally:
        np.random.set_state(before)


def _plans(attention: Any, heads: int, time: int) -> Any:
    """One (blocks - 2, random blocks) a head."""
    size, number = attention.block_size, attention.num_random_blocks
    if time in ONE_PLAN:
        longest = (attention.max_seqlen,) * 2
        among = {"last_idx": ONE_PLAN[0]}
        drawn = [attention._bigbird_block_rand_mask(*longest, size, size, number, **among) for _ in range(heads)]
        return [plan[: time // size - 2] for plan in drawn]
    ends, numbers = attention._get_rand_attn_plan(time, size, number)
    return attention._bigbird_block_rand_mask_with_head(
        from_seq_length=time,
        to_seq_length=time,
        from_block_size=size,
        to_block_size=size,
        num_heads=heads,
        plan_from_length=ends,
        plan_num_rand_blocks=numbers,
    )
