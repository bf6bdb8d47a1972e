"""Longformer (Beltagy et al., 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines import attention
from mabert.baselines.family import Family, input_length
from mabert.baselines.positions import repeat

STEP = 64
"""Windows are rounded up to a multiple of this."""

UNFILLED = 2
"""The window for which hardly an input is filled up: transformers wants an even one."""

GLOBAL_PLACE = 2
"""Where the mask of global tokens stands among the arguments of the encoder."""

MOST_UNUSED = 100
"""Rows of positions that may lie unused before the first; the published model has two."""


class Longformer(Family):
    """Attention in a window of 512; in classifiers the first token is global, and inputs are filled up to a multiple of
    the window."""

    name, title, model_type, hub = "longformer", "Longformer", "longformer", "allenai/longformer-base-4096"
    tokenizer = "longformer"
    head = "lm_head"
    keeps_state = True
    unreached = ("_global.",)
    base: ClassVar = {
        "vocab_size": 50265,
        "max_position_embeddings": 4098,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        first = first_position(config)
        if first > MOST_UNUSED:
            raise ValueError(
                f"pad_token_id is {config.pad_token_id}; Longformer's table of positions begins behind that row, so "
                f"the tokenizer must have padding among its first {MOST_UNUSED} tokens"
            )
        config.max_position_embeddings += first
        return config

    def longest(self, config: PreTrainedConfig) -> int | None:
        return config.max_position_embeddings - first_position(config)

    @torch.no_grad()
    def finish_pretraining(self, model: PreTrainedModel) -> None:
        """The projections of global tokens begin as copies of the local ones, as the published model's did."""
        weights = dict(model.named_parameters())
        for name, weight in weights.items():
            if "_global." in name:
                weight.copy_(weights[name.replace("_global.", ".")])

    def is_finished(self, model: PreTrainedModel) -> bool:
        weights = dict(model.named_parameters())
        distant = (name for name in weights if "_global." in name)
        return all(torch.equal(weights[name], weights[name.replace("_global.", ".")]) for name in distant)

    def hasten(self, model: PreTrainedModel) -> PreTrainedModel:
        own = windows(model.config)
        for layer in model.base_model.encoder.layer:
            layer.attention.self.forward = Banded(layer.attention.self)

        def narrow(encoder: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if named.get("output_attentions") or encoder.config.output_attentions:
                set_windows(encoder, own)  # by the shapes of their weights callers know them
            elif named.get("global_attention_mask") is None and len(arguments) <= GLOBAL_PLACE:
                set_windows(encoder, own)
                encoder.config.attention_window = [UNFILLED] * len(own)
            else:
                set_windows(encoder, [min(window, enough(input_length(arguments, named))) for window in own])

        def restore(encoder: nn.Module, *_: Any) -> None:
            # Layers stay as they are: a backward that runs them again must find the windows of its forward.
            encoder.config.attention_window = own

        model.base_model.register_forward_pre_hook(narrow, with_kwargs=True)
        model.base_model.register_forward_hook(restore, always_call=True)
        return model

    def hastened_attention(self, config: PreTrainedConfig, length: int) -> str | None:
        return attention.NAME

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        return {"max_position_embeddings": length + first_position(config)}

    def lengthen(self, table: Tensor, rows: int, config: PreTrainedConfig) -> Tensor:
        return repeat(table, rows, kept=first_position(config))


class Banded:
    """What stands in a layer for its forward: without global tokens, and where nobody wants the weights, attention in a
    window by `attention`; the layer's own otherwise.

    Attributes:
        attention: The layer, a `LongformerSelfAttention`. Its forward is looked up when it is called, so that copies
            call their own.
    """

    def __init__(self, attention: Any) -> None:
        self.attention = attention

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        """hidden_states: (batch, time, D); is_index_masked: bool (batch, time), True at padding; the rest as the
        layer's forward takes it. Returns (batch, time, D), and the weights if they are wanted."""
        own = self.attention
        if is_global_attn or output_attentions or is_index_masked is None:
            told = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn, output_attentions)
            return type(own).forward(own, hidden_states, *told)
        heads = (*hidden_states.shape[:2], own.num_heads, own.head_dim)
        query, key, value = (x(hidden_states).view(heads).transpose(1, 2) for x in (own.query, own.key, own.value))
        mixed, _ = attention.attention(
            own,
            query,
            key,
            value,
            ~is_index_masked if bool(is_index_masked.any()) else None,
            sliding_window=own.one_sided_attn_window_size + 1,
            is_causal=False,
            dropout=own.dropout if own.training else 0.0,
            scaling=own.head_dim**-0.5,
        )
        return (mixed.flatten(2),)


def windows(config: PreTrainedConfig) -> list[int]:
    """The window of each layer."""
    given = config.attention_window
    return [given] * config.num_hidden_layers if isinstance(given, int) else list(given)


def enough(length: int) -> int:
    """A window that sees all of an input. Inputs are filled up to whole windows, so that a wider one costs more."""
    return -(-max(1, 2 * (length - 1)) // STEP) * STEP


def set_windows(encoder: nn.Module, sizes: list[int]) -> None:
    """Has each layer of a Longformer attend within its window."""
    encoder.config.attention_window = sizes
    for layer, size in zip(encoder.encoder.layer, sizes, strict=True):
        layer.attention.self.one_sided_attn_window_size = size // 2


def first_position(config: PreTrainedConfig) -> int:
    """The row of the first token: rows up to that of padding are no positions, as in RoBERTa."""
    return config.pad_token_id + 1
