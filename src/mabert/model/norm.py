"""The LayerNorm used in every part of the model."""

from torch import nn

from mabert.model.config import MaBertConfig


def layer_norm(config: MaBertConfig, width: int | None = None) -> nn.LayerNorm:
    """Makes a LayerNorm with the configuration's epsilon and bias; default, over D features."""
    return nn.LayerNorm(width or config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)
