"""The two residual blocks: Transformer (Eq. 1) and Mamba with padding-safe masking (Eqs. 2-3)."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from mabert.model.attention import SelfAttention
from mabert.model.config import MaBertConfig
from mabert.model.embeddings import layer_norm
from mabert.model.mamba import MambaMixer
from mabert.model.masking import PaddingMask


class FeedForward(nn.Module):
    """Position-wise network of both blocks; gated where the configuration says so."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        self.gated = config.feed_forward == "glu"
        inner = config.intermediate_size * (2 if self.gated else 1)
        self.up = nn.Linear(config.hidden_size, inner, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, time, D) to (batch, time, D)."""
        if self.gated:
            gate, value = self.up(hidden).chunk(2, dim=-1)
            return self.down(self.activation(gate) * value)
        return self.down(self.activation(self.up(hidden)))


class ResidualBlock(GradientCheckpointingLayer):
    """The common part of both blocks: two LayerNorms, the feed-forward network, dropout on each sub-layer's output.

    The paper's norms come before the sub-layers, H + f(LN(H)); BERT's (`norm_position="post"`) after, LN(H + f(H)).
    """

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__()
        self.norm_before = config.norm_position == "pre"
        self.mixer_norm = layer_norm(config) if layer or config.first_norm else nn.Identity()
        self.feed_forward_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def residual(self, norm: nn.Module, f: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Returns H + f(LN(H)), or LN(H + f(H)), (batch, time, D)."""
        if self.norm_before:
            return hidden + self.dropout(f(norm(hidden)))
        return norm(hidden + self.dropout(f(hidden)))


class TransformerBlock(ResidualBlock):
    """H + MHSA(LN(H)), then + FFN(LN(·)) (Eq. 1); with post-norm, LN(H + MHSA(H)), then LN(· + FFN(·))."""

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.attention = SelfAttention(config, layer)

    def forward(self, hidden: Tensor, mask: PaddingMask, **kwargs: Any) -> Tensor:
        """Maps H^L to H^{L+1}, both (batch, time, D); `kwargs` are for `SelfAttention.forward`."""
        hidden = self.residual(self.mixer_norm, lambda hidden: self.attention(hidden, mask=mask, **kwargs)[0], hidden)
        return self.residual(self.feed_forward_norm, self.feed_forward, hidden)


class MixerBlock(ResidualBlock):
    """H + f(m ⊙ LN(H)), then m ⊙ (· + FFN(LN(·))); with post-norm, LN(H + f(m ⊙ H)), then m ⊙ LN(· + FFN(·))."""

    MIXER: ClassVar[type[nn.Module]]
    """The class of f, see `mabert.model.mixers`."""

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.mixer = type(self).MIXER(config)

    def forward(self, hidden: Tensor, mask: PaddingMask, output_attentions: bool = False, **kwargs: Any) -> Tensor:
        """Maps H^L to H^{L+1}, both (batch, time, D); `kwargs` are for Transformer blocks."""

        def mix(hidden: Tensor) -> Tensor:
            hidden = mask.before_core(hidden)  # by the same name, since a tensor that a name holds is not freed
            return self.mixer(hidden, mask, output_attentions)[0]

        hidden = self.residual(self.mixer_norm, mix, hidden)
        return mask.after_block(self.residual(self.feed_forward_norm, self.feed_forward, hidden))


class MambaBlock(MixerBlock):
    """The Mamba block: f is SSM (Eqs. 2 and 3)."""

    MIXER = MambaMixer


BLOCKS: dict[str, type[ResidualBlock]] = {"M": MambaBlock, "T": TransformerBlock}
"""The block for each letter of the schedule; `mabert.register_mixer` adds one."""
