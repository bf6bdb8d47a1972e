"""BigBird (Zaheer et al., 2020)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.blocks import blockwise, random_blocks
from mabert.baselines.family import Family, input_length
from mabert.baselines.positions import repeat

SPARSE = "bigbird_block_sparse_attention"
BLOCKWISE = "sdpa_blockwise"
"""Names of the sparse attention: of transformers' method, and of ours."""


class BigBird(Family):
    """Window, random and global blocks of 64 tokens; full attention where an input is too short for them."""

    name, title, model_type, hub = "bigbird", "BigBird", "big_bird", "google/bigbird-roberta-base"
    tokenizer = "bigbird"
    keeps_state = True
    unreached = ("pooler.",)

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        config.max_position_embeddings = in_blocks(config.max_position_embeddings, config)
        return config

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # Blocks are those of the padded row, the last of which is global.
        return len(set(lengths)) > 1 and max(lengths) > fully(config)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        return {"max_position_embeddings": in_blocks(length, config)}

    def lengthen(self, table: Tensor, rows: int, config: PreTrainedConfig) -> Tensor:
        return repeat(table, rows)

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        # transformers goes over to full attention at the first short input and stays there, so that what a long input
        # gives would depend on what came before it.
        if model.config.attention_type == "block_sparse":
            model.base_model.register_forward_pre_hook(choose_attention, with_kwargs=True)
        return model

    def hastened_attention(self, config: PreTrainedConfig, length: int) -> str | None:
        return BLOCKWISE if config.attention_type == "block_sparse" and length > fully(config) else None

    def hasten(self, model: PreTrainedModel) -> PreTrainedModel:
        if model.config.attention_type == "block_sparse":
            model.base_model.register_forward_pre_hook(choose_blocks, with_kwargs=True)
        return model


def choose_attention(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Sets the attention that the input's length calls for, by transformers' own rule."""
    length = input_length(arguments, named)
    config: Any = model.config
    model.set_attention_type("original_full" if length <= fully(config) else "block_sparse")  # type: ignore[operator]
    for layer in model.encoder.layer if length > fully(config) else ():  # type: ignore[union-attr]
        attention: Any = layer.attention.self
        if SPARSE not in vars(attention):
            setattr(attention, SPARSE, Sparse(attention))


def choose_blocks(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Has the sparse layers attend by `blockwise`, unless somebody wants the weights, which that does not have."""
    config: Any = model.config
    if input_length(arguments, named) > fully(config):
        wanted = bool(named.get("output_attentions") or config.output_attentions)
        for layer in model.encoder.layer:  # type: ignore[union-attr]
            getattr(layer.attention.self, SPARSE).keeps_weights = wanted


class Sparse:
    """What stands in a layer for transformers' method of the same name, whose arguments it takes.

    Attributes:
        attention: The layer. Its method is looked up when it is called, so that copies call their own.
        keeps_weights: Whether it is transformers' own computation, which lays all weights out, or `blockwise`.
        drawn: What `random_blocks` gave, by length and whether in training: the same each time, and slow to draw.
    """

    def __init__(self, attention: Any) -> None:
        self.attention = attention
        self.keeps_weights = True
        self.drawn: dict[tuple[int, bool], Tensor] = {}

    def __call__(self, *tensors: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        """Attention of query, key and value under masks; the weights where they are kept."""
        if self.keeps_weights:
            return outside_autocast(getattr(type(self.attention), SPARSE))(self.attention, *tensors, **named)
        query, key, value, _, from_mask, to_mask = tensors[:6]
        heads, time = query.shape[1:3]
        case = (time, self.attention.training)
        if case not in self.drawn:
            self.drawn[case] = random_blocks(self.attention, heads, time)
        return blockwise(query, key, value, from_mask, to_mask, self.drawn[case].to(query.device)), None


def outside_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function of a layer, query, key, value and masks all of these in the dtype of autocast, where that is on.

    transformers gathers the attention's weights in a tensor of the result's dtype, which the masks, of the embeddings'
    dtype, make another one than theirs: it stops with an error there.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **named: Any) -> Any:
        device = next(given.device.type for given in tensors if isinstance(given, Tensor))
        if not torch.is_autocast_enabled(device):
            return function(*tensors, **named)
        dtype = torch.get_autocast_dtype(device)

        def cast(given: Any) -> Any:
            return given.to(dtype) if isinstance(given, Tensor) and given.is_floating_point() else given

        with torch.autocast(device, enabled=False):
            return function(*map(cast, tensors), **{name: cast(value) for name, value in named.items()})

    return call


def fully(config: Any) -> int:
    """Tokens of the longest input with full attention."""
    return (5 + 2 * config.num_random_blocks) * config.block_size


def in_blocks(length: int, config: Any) -> int:
    """Positions for inputs of a length: transformers fills those without full attention up to whole blocks."""
    return length if length <= fully(config) else -(-length // config.block_size) * config.block_size
