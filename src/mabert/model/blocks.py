"""The two residual blocks: Transformer (Eq. 1) and Mamba with padding-safe masking (Eqs. 2-3)."""

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

    def before(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        """Returns the input of a sub-layer: LN(H), or H under `norm_position="post"`."""
        return norm(hidden) if self.norm_before else hidden

    def after(self, norm: nn.Module, hidden: Tensor, change: Tensor) -> Tensor:
        """Adds a sub-layer's output to H, and normalises the sum under `norm_position="post"`."""
        hidden = hidden + self.dropout(change)
        return hidden if self.norm_before else norm(hidden)

    def feed(self, hidden: Tensor) -> Tensor:
        """Returns H + FFN(LN(H)), or LN(H + FFN(H)), (batch, time, D)."""
        norm = self.feed_forward_norm
        return self.after(norm, hidden, self.feed_forward(self.before(norm, hidden)))


class TransformerBlock(ResidualBlock):
    """H + MHSA(LN(H)), then + FFN(LN(·)) (Eq. 1); with post-norm, LN(H + MHSA(H)), then LN(· + FFN(·))."""

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.attention = SelfAttention(config, layer)

    def forward(self, hidden: Tensor, mask: PaddingMask, **kwargs: Any) -> Tensor:
        """Maps H^L to H^{L+1}, both (batch, time, D); `kwargs` are for `SelfAttention.forward`."""
        norm = self.mixer_norm
        hidden = self.after(norm, hidden, self.attention(self.before(norm, hidden), mask=mask, **kwargs)[0])
        return self.feed(hidden)


class MixerBlock(ResidualBlock):
    """H + f(m ⊙ LN(H)), then m ⊙ (· + FFN(LN(·))); with post-norm, LN(H + f(m ⊙ H)), then m ⊙ LN(· + FFN(·))."""

    MIXER: ClassVar[type[nn.Module]]
    """The class of f, see `mabert.model.mixers`."""

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.mixer = type(self).MIXER(config)

    def forward(self, hidden: Tensor, mask: PaddingMask, output_attentions: bool = False, **kwargs: Any) -> Tensor:
        """Maps H^L to H^{L+1}, both (batch, time, D); `kwargs` are for Transformer blocks."""
        norm = self.mixer_norm
        # What enters the mixer has no name here, so it is freed before the feed-forward network runs.
        hidden = self.after(
            norm, hidden, self.mixer(mask.before_core(self.before(norm, hidden)), mask, output_attentions)[0]
        )
        return mask.after_block(self.feed(hidden))


class MambaBlock(MixerBlock):
    """The Mamba block: f is SSM (Eqs. 2 and 3)."""

    MIXER = MambaMixer


BLOCKS: dict[str, type[ResidualBlock]] = {"M": MambaBlock, "T": TransformerBlock}
"""The block for each letter of the schedule; `mabert.register_mixer` adds one."""
