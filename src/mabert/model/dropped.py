"""Attention with dropout on its weights, on a CPU, by blocks of queries.

With dropout, torch's SDPA lays out all scores on a CPU and keeps them for the backward pass, and draws slowly. Here a
block of queries stays in the cache, draws are of 16 bits, and the backward pass makes scores and draws once more.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mabert.model.packing import is_tracing
from mabert.ops.derivatives import is_transformed

ROWS = 128
"""Queries of a block."""

PAYS = 512
"""Tokens from which blocks are faster than SDPA (benchmarks/LOG.md)."""

LEVELS = 1 << 16
"""Values of a draw."""


def takes(query: Tensor, key: Tensor, attention_mask: Tensor | None, dropout: float) -> bool:
    """Returns whether `attention` can replace SDPA and is faster: with dropout, on a CPU, in long texts."""
    long = dropout > 0 and query.device.type == "cpu" and query.shape[2] >= PAYS
    plain = attention_mask is None or (attention_mask.dtype is torch.bool and attention_mask.shape[1] == 1)
    fits = query.shape == key.shape and query.dtype is not torch.float64 and plain
    return long and fits and not is_tracing() and not is_transformed()


def attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None, scaling: float, dropout: float) -> Tensor:
    """Computes attention with dropout on its weights, without a matrix of all scores.

    Query, key, value and result are (batch, heads, time, head_size). The mask `keys` is bool, (batch or 1, 1, time or
    1, time), True keeps; a query that sees nothing gets zeros, as in SDPA. The share of weights to drop is rounded to a
    multiple of 2^-16, and the others are scaled up for it. Computes in float32, also under autocast.
    """
    with torch.autocast("cpu", enabled=False):
        given = (x.float() for x in (query, key, value))
        mixed: Tensor = _Attention.apply(*given, keys, scaling, min(round(dropout * LEVELS), LEVELS - 1))
    return mixed.to(value.dtype)


class _Attention(torch.autograd.Function):
    """O = (softmax(s Q Kᵀ) ∘ Z / r) V with Z drawn as 1 with probability r, else 0."""

    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, keys: Tensor | None, scaling: float, dropped: int
    ) -> Tensor:
        seed = int(torch.randint(1 << 62, ()))
        context.how = keys, scaling, dropped, seed
        output = torch.empty_like(value)
        for (text, head, rows), weights, stay in _blocks(query, key, *context.how):
            torch.mm(weights.mul_(stay), value[text, head], out=output[text, head, rows])
        output.mul_(LEVELS / (LEVELS - dropped))
        context.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output = context.saved_tensors
        _, scaling, dropped, _ = context.how
        d_query = torch.empty_like(query)
        # (batch, heads, head_size, time), in which torch adds up products faster.
        d_key, d_value = (torch.zeros(x.mT.shape) for x in (key, value))
        # A row's sum of weights times their gradients, which softmax's gradient subtracts.
        mean = (grad * output).sum(-1, keepdim=True)
        grad = grad * (LEVELS / (LEVELS - dropped))
        with torch.autocast("cpu", enabled=False):
            for (text, head, rows), weights, stay in _blocks(query, key, *context.how):
                of_rows = grad[text, head, rows]
                scores = torch.mm(of_rows, value[text, head].t()).mul_(stay).sub_(mean[text, head, rows]).mul_(weights)
                torch.mm(scores, key[text, head], out=d_query[text, head, rows])
                d_key[text, head].addmm_(query[text, head, rows].t(), scores)
                d_value[text, head].addmm_(of_rows.t(), weights.mul_(stay))
        return d_query.mul_(scaling), d_key.mul_(scaling).mT, d_value.mT, None, None, None


def _blocks(
    query: Tensor, key: Tensor, keys: Tensor | None, scaling: float, dropped: int, seed: int
) -> Iterator[tuple[tuple[int, int, slice], Tensor, Tensor]]:
    """Yields each block of queries: its place, its weights, and 1 where a weight stays, else 0. Both are float32
    (rows, time).

    The same seed gives the same draws again. The next block reuses the memory of what stays.
    """
    batch, heads, time, _ = query.shape
    generator = torch.Generator().manual_seed(seed)
    words = torch.empty(-(-ROWS * time // 4), dtype=torch.int64)  # of four draws each
    kept = torch.empty(min(ROWS, time), time)
    for text in range(batch):
        seen = None if keys is None else keys[text if len(keys) > 1 else 0, 0]
        hidden = None if seen is None else torch.where(seen, 0.0, torch.finfo(query.dtype).min)
        for head in range(heads):
            across = key[text, head].t()
            for begin in range(0, time, ROWS):
                rows = slice(begin, min(begin + ROWS, time))
                stay = kept[: rows.stop - begin]
                draws = words.random_(-(1 << 63), None, generator=generator).view(torch.int16)
                # As float32 at once, since torch is slow to convert a mask.
                torch.ge(draws[: stay.numel()].view_as(stay), dropped - LEVELS // 2, out=stay)
                scores = torch.mm(query[text, head, rows] * scaling, across)
                if seen is not None and hidden is not None:
                    here = rows if len(seen) > 1 else slice(None)
                    scores += hidden[here]
                    stay *= seen[here]
                yield (text, head, rows), scores.softmax(-1), stay
