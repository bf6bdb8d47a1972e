"""One vector per text from its token vectors: mask-aware attention pooling (Eqs. 11-13) and its alternatives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mabert.files.reading import read_json
from mabert.model.config import MaBertConfig
from mabert.model.embeddings import layer_norm
from mabert.model.packing import Packing

FIELDS = ("hidden_size", "pooler_act", "pooler_norm", "layer_norm_eps", "norm_bias")
"""The configuration's fields that a `map` pooling needs."""

POOLER_FILE = "model.safetensors"
"""File of a pooling's weights in its own folder."""


def attention_weights(scores: Tensor, valid: Tensor | None) -> Tensor:
    """Returns α of Eq. 12: softmax over the row's tokens. scores: (batch, time); valid: bool (batch, time) or None.

    Padded positions get exactly zero, and a row without tokens gets zeros rather than the NaN of an empty softmax.
    """
    if valid is not None:
        scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    return weights if valid is None else weights.masked_fill(~valid, 0)


def weighted_sum(weights: Tensor, hidden: Tensor) -> Tensor:
    """Returns h_pool = Σ_t α_t H_t (Eq. 13), (batch, D). weights: (batch, time); hidden: (batch, time, D)."""
    return (weights.unsqueeze(1) @ hidden).squeeze(1)


def mean_of_tokens(hidden: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the mean over each row's tokens, (batch, D), zero for a row without any. hidden: (batch, time, D)."""
    # The sum of thousands of tokens exceeds float16's range, and bfloat16 cannot count that many exactly.
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if valid is None:
        return (hidden.sum(dim=1, dtype=wide) / max(hidden.shape[1], 1)).to(hidden.dtype)
    total = hidden.masked_fill(~valid.unsqueeze(-1), 0).sum(dim=1, dtype=wide)
    return (total / valid.sum(dim=1, keepdim=True).clamp(min=1)).to(hidden.dtype)


def first_token(hidden: Tensor, valid: Tensor | None) -> Tensor:
    """Returns each row's first token, [CLS], wherever padding put it, (batch, D); zero for a row without any."""
    if hidden.shape[1] == 0:
        return hidden.sum(dim=1)
    if valid is None:
        return hidden[:, 0]
    first = valid.to(torch.uint8).argmax(dim=1)
    row = torch.arange(hidden.shape[0], device=hidden.device)
    return hidden[row, first].masked_fill(~valid.any(dim=1, keepdim=True), 0)


class Pooler(nn.Module):
    """Sentence vector of a classifier.

    `map` and `attention` score tokens by a learned projection, the others have no weights. If the configuration says
    so, a dense layer follows, as in BERT.
    """

    FIXED: ClassVar[dict[str, Callable[[Tensor, Tensor | None], Tensor]]] = {"mean": mean_of_tokens, "cls": first_token}

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        self.kind = config.pooling
        self.score = None if self.kind in self.FIXED else nn.Linear(config.hidden_size, 1, bias=False)
        act = config.pooler_act
        self.dense = None if act is None else nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = None if act is None else ACT2FN[act]
        self.norm = layer_norm(config) if config.pooler_norm else None

    def forward(self, hidden: Tensor, valid: Tensor | None, packing: Packing | None = None) -> Tensor:
        """Pools H (batch, time, D) to (batch, D), or a packed row (1, total, D) to (sequences, D).

        Tokens are where `valid`, bool (batch, time), is True; None means everywhere, and `attention` ignores it. The
        sequences of a packed row are pooled in batches of similar lengths.
        """
        if packing is None:
            return self._transform(self._pooled(hidden, None if self.kind == "attention" else valid))
        batches = packing.batches()
        return self._transform(batches.in_order(batches.each(hidden, self._pooled)))

    def _transform(self, pooled: Tensor) -> Tensor:
        if self.dense is not None and self.activation is not None:
            pooled = self.activation(self.dense(pooled))
        return pooled if self.norm is None else self.norm(pooled)

    def _pooled(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        if self.score is None:
            return self.FIXED[self.kind](hidden, valid)
        return weighted_sum(attention_weights(self.score(hidden).squeeze(-1), valid), hidden)


def map_pooler(settings: dict[str, Any]) -> Pooler:
    """Makes a `map` pooling from `FIELDS`, with random weights."""
    return Pooler(MaBertConfig(pooling="map", num_attention_heads=1, **settings))


def pooler_in(folder: Path) -> Pooler | None:
    """Reads the `map` pooling that sentence-transformers wrote into a folder; None if there is none.

    Raises:
        ValueError: If its settings are not `FIELDS`.
    """
    if not (folder / POOLER_FILE).is_file():
        return None
    said = read_json(folder / "config.json")
    if set(said) != set(FIELDS):
        raise ValueError(f"{folder / 'config.json'} has {', '.join(said)}; it must have {', '.join(FIELDS)}")
    pooler = map_pooler(said)
    pooler.load_state_dict(load_file(folder / POOLER_FILE))
    return pooler.eval().requires_grad_(False)
