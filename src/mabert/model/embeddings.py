"""Token, position and segment embeddings (BERT's), and rotary positions for the attention layers."""

import torch
from torch import Tensor, nn
from transformers.utils import logging

from mabert.model.config import MaBertConfig
from mabert.model.packing import is_tracing

logger = logging.get_logger(__name__)


def layer_norm(config: MaBertConfig, width: int | None = None) -> nn.LayerNorm:
    """Makes a LayerNorm with the configuration's epsilon and bias; default, over D features."""
    return nn.LayerNorm(width or config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class MaBertEmbeddings(nn.Module):
    """Token + position + segment, LayerNorm, dropout, and a projection if they are narrower than the stack."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        learned = config.position_embedding == "learned"
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width) if learned else None
        self.norm = layer_norm(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = None if width == config.hidden_size else nn.Linear(width, config.hidden_size)
        self.config = config

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor,
        inputs_embeds: Tensor | None,
        *,
        own_positions: bool = False,
        unmasked: bool = False,
    ) -> Tensor:
        """Embeds a batch to (batch, time, D). Takes `MaBertModel.forward`'s inputs, with positions always given.

        Positions that are the encoder's own are not checked. Where rows came without a mask, it warns once if they
        begin or end with padding.

        Raises:
            ValueError: If a token id, segment or position is outside its table.
        """
        looked_up = input_ids if inputs_embeds is None else None
        self.check(looked_up, token_type_ids, None if own_positions else position_ids, unmasked)
        hidden = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = position_ids.new_zeros(1, 1)
        hidden = hidden + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            hidden = hidden + self.position_embeddings(position_ids)
        hidden = self.dropout(self.norm(hidden))
        return hidden if self.projection is None else self.projection(hidden)

    def check(
        self, input_ids: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None, unmasked: bool
    ) -> None:
        """Refuses ids outside their embedding; on a GPU they would fail an assertion that ends the process. Warns of
        padding in `unmasked` rows, see `forward`."""
        tables = (
            ("input_ids", input_ids, self.word_embeddings, "vocab_size"),
            ("token_type_ids", token_type_ids, self.token_type_embeddings, "type_vocab_size"),
            ("position_ids", position_ids, self.position_embeddings, "max_position_embeddings"),
        )
        looked_up = [
            (name, ids, table, size_name)
            for name, ids, table, size_name in tables
            if ids is not None and table is not None and ids.numel()
        ]
        if is_tracing() or not looked_up:
            return
        # All in one tensor: a GPU is waited for once.
        read = [bound.long() for _, ids, *_ in looked_up for bound in ids.aminmax()]
        pad = self.config.pad_token_id if unmasked and looked_up[0][0] == "input_ids" else None
        if pad is not None:
            ids = looked_up[0][1]
            first_and_last = ids[:, :: max(1, ids.shape[1] - 1)]
            read.append(first_and_last.eq(pad).any().long())
        bounds = torch.stack(read).tolist()
        if pad is not None and bounds.pop():
            logger.warning_once(
                f"input_ids begin or end with pad_token_id ({pad}) and there is no attention_mask: padding is "
                "read as text; give the mask that the tokenizer makes"
            )
        for (name, _, table, size_name), low, high in zip(looked_up, bounds[::2], bounds[1::2], strict=True):
            size = getattr(table, "num_embeddings", getattr(self.config, size_name))  # an adapter has no number
            if low < 0 or high >= size:
                worst = low if low < 0 else high
                raise ValueError(f"{name} holds {worst}; {size_name} is {size}, so ids run from 0 to {size - 1}")


def stretch(table: Tensor, rows: int) -> Tensor:
    """Stretches a table of positions by 1-D linear interpolation, keeping the first and last row (Table A3).

    Every position moves, so the longer model's output changes on short inputs too. (old rows, D) becomes (rows, D), of
    the same dtype.
    """
    wide = table.T.unsqueeze(0).float()
    longer = torch.nn.functional.interpolate(wide, size=rows, mode="linear", align_corners=True)
    return longer.squeeze(0).T.to(table.dtype)


class RotaryPositions(nn.Module):
    """Rotary position angles (Su et al., 2021), computed once a forward for all attention layers."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        attentive = (layer for layer, letter in enumerate(config.layer_pattern) if letter == "T")
        self.bases = sorted({config.of_layer("rotary_base", layer) for layer in attentive})
        self.head_size = config.head_size

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> dict[float, tuple[Tensor, Tensor]]:
        """Returns cosines and sines, each (batch or 1, 1, time, head_size), for each base of a Transformer layer, from
        positions, int64 (batch or 1, time)."""
        wide = torch.promote_types(dtype, torch.float32)
        shares = torch.arange(0, self.head_size, 2, device=position_ids.device, dtype=wide) / self.head_size
        places, found = position_ids.unsqueeze(-1).to(wide), {}
        for base in self.bases:
            angles = places * base**-shares
            angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
            found[base] = angles.cos().to(dtype), angles.sin().to(dtype)
        return found


def rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each pair of a head's features by its position's angle. heads: (batch, heads, time, head_size)."""
    cosine, sine = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine
