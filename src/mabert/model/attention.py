"""Multi-head self-attention of the Transformer blocks (MHSA of Eq. 1)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mabert.model import dropped
from mabert.model.config import MaBertConfig
from mabert.model.embeddings import rotate
from mabert.model.kept import KeepsValues, in_inference, kept
from mabert.model.masking import PaddingMask
from mabert.model.packing import Packing, is_tracing
from mabert.ops import HEAD_SIZE_STEP, attention_pays, softmax_attention

CALL_WORTH = 500_000
"""Cost of one more SDPA call, forward and backward, on one CPU thread, in scores times channels; on two it is more."""


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Computes attention step by step and also returns its weights.

    Query, key and value are (batch, heads, time, head_size). The mask is broadcastable to (batch, heads, time, time): a
    float mask is added; in a bool one, True keeps. Of the attention layer only its training flag is read. `kwargs` are
    for other implementations.

    Returns:
        (batch, time, heads, head_size) and the weights (batch, heads, time, time).
    """
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes what `eager_attention` does, without the weights: by SDPA, or by blocks where that is faster."""
    if dropped.takes(query, key, attention_mask, dropout):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return dropped.attention(query, key, value, attention_mask, scale, dropout).transpose(1, 2), None
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)


def can_fuse(config: MaBertConfig, hidden: Tensor, sequences: int, *, training: bool, output_attentions: bool) -> bool:
    """Returns whether `mabert.ops.softmax_attention` can replace SDPA and is faster: in inference only, for `hidden`
    (batch, time, D) of so many sequences, padded or packed."""
    wanted = config._attn_implementation == "sdpa" and not output_attentions and not torch.is_grad_enabled()
    dropout = training and config.attention_probs_dropout_prob > 0
    fits = config.head_size % HEAD_SIZE_STEP == 0
    return wanted and fits and not dropout and not is_tracing() and attention_pays(hidden, sequences)


def attend_packed(
    module: "SelfAttention",
    implementation: Callable[..., tuple[Tensor, Tensor | None]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    window: int | None = None,
    **options: Any,
) -> Tensor:
    """Attends within each sequence of a packed row, without a matrix over the whole row.

    SDPA is replaced by torch's variable-length attention on a GPU in half precision, without dropout or window.
    Otherwise SDPA gets padded batches of sequences of similar length: on a CPU, sequences are joined as long as a saved
    call is worth more than the added padding (`CALL_WORTH`); on a GPU, padding never exceeds the tokens. Every other
    implementation gets one sequence at a time.

    Query, key and value are (1, heads, total, head_size); `implementation` is one of transformers', and `options` are
    its further arguments; `window` is how many tokens a token sees on each side, None for its whole sequence.

    Returns:
        (1, total, heads, head_size).
    """
    if not query.shape[2]:
        return value.transpose(1, 2)
    name = module.config._attn_implementation
    fits = has_variable_length(query.device, query.dtype, query.shape[-1])
    if name == "sdpa" and fits and not options["dropout"] and window is None:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        cuts = packing.cu_seqlens
        mixed = varlen_attn(q, k, v, cuts, cuts, packing.longest, packing.longest)  # by the default scale
        assert isinstance(mixed, Tensor)
        return mixed.unsqueeze(0)
    if name == "sdpa":
        batches = packing.batches(None if query.is_cuda else CALL_WORTH // (query.shape[1] * query.shape[3]))
        cut = [batches.cut(x.transpose(1, 2)) for x in (query, key, value)]
        attended = []
        for q, k, v, valid in zip(*cut, batches.masks, strict=True):
            if not q.numel():
                attended.append(q)
                continue
            keys = None if valid is None else valid.to(query.device)[:, None, None, :]
            if window is not None:
                keys = near(q.shape[1], window, query.device, keys)
            by_head = (x.transpose(1, 2) for x in (q, k, v))
            attended.append(implementation(module, *by_head, keys, **options)[0])
        return batches.join(attended)
    lengths = [length for length in packing.lengths if length]
    attended = []
    for q, k, v in zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True):
        seen = None if window is None else near(q.shape[2], window, q.device)
        attended.append(implementation(module, q, k, v, seen, **options)[0])
    return torch.cat(attended, dim=1)


def near(time: int, window: int, device: torch.device, keys: Tensor | None = None) -> Tensor:
    """Returns the mask of attention to `window` tokens on each side, bool (batch or 1, 1, time, time); `keys` are the
    tokens visible without the window, bool (batch, 1, 1, time), None for all."""
    band = torch.ones(1, 1, time, time, dtype=torch.bool, device=device).tril(window).triu(-window)
    # Within its window, a padded position may see only padding; softmax over nothing is NaN, so it sees itself.
    return band if keys is None else band & (keys | torch.eye(time, dtype=torch.bool, device=device))


def has_variable_length(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Returns whether torch's variable-length attention, a flash kernel, takes such queries.

    It needs half precision, a GPU from Ampere on, a head size that is a multiple of 8 and at most 256, and flash
    kernels that are not turned off.
    """
    half = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    if not half or head_size % 8 or head_size > 256:
        return False
    return flash_is_on() and torch.cuda.get_device_capability(device) >= (8, 0)


def flash_is_on() -> bool:
    """Returns whether this torch was built with flash kernels for SDPA on a GPU, and they are not turned off."""
    return torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled()


def can_join(layer: nn.Module) -> bool:
    """Returns whether a layer's rows may be joined with others': it is a linear one of torch's, without hooks, and its
    weight no other library's kind of tensor."""
    if type(layer) is not nn.Linear or hasattr(layer.weight, "__tensor_flatten__"):
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))


def joined_rows(*weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Joins the weights of three layers, followed by their biases, None for layers without, to those of one layer."""
    present = [weight for weight in weights if weight is not None]
    return torch.cat(present[:3]), torch.cat(present[3:]) if present[3:] else None


class SelfAttention(KeepsValues):
    """MHSA: BERT's projections with any of transformers' attention implementations, never causal."""

    def __init__(self, config: MaBertConfig, layer: int = 0) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False
        self.head_size = config.head_size
        self.dropout = config.attention_probs_dropout_prob
        self.rotary_base: float = config.of_layer("rotary_base", layer)
        self.window: int | None = config.of_layer("attention_window", layer)
        width = config.hidden_size
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=config.attention_bias) for _ in range(4)
        )

    def forward(
        self,
        hidden: Tensor,
        mask: PaddingMask,
        attention_mask: Tensor | None = None,
        rotary: Mapping[float, tuple[Tensor, Tensor]] | None = None,
        output_attentions: bool = False,
        fused: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends over the whole row.

        Args:
            hidden: (batch, time, D).
            mask: The batch's padding, or the sequences of a packed row, each of which attends to itself.
            attention_mask: The padding in the implementation's own format, from `create_bidirectional_mask`; None if
                there is no padding or it is not read (a packed row, or `fused`).
            rotary: Output of `RotaryPositions`, or None.
            output_attentions: Whether to return the weights; SDPA cannot, so eager attention replaces it.
            fused: Result of `can_fuse`.
            kwargs: Passed on to the implementation.

        Returns:
            (batch, time, D) and the weights (batch, heads, time, time), None if the implementation returns none.
        """
        batch, time, width = hidden.shape
        heads = (batch, time, self.config.num_attention_heads, self.head_size)
        query, key, value = (projected.view(heads).transpose(1, 2) for projected in self._projected(hidden))
        if rotary is not None:
            angles = rotary[self.rotary_base]
            # Under autocast, rotating by the float32 table turns query and key into float32.
            query, key = rotate(query, angles).to(value.dtype), rotate(key, angles).to(value.dtype)
        if fused and self.window is None:
            count = self.config.num_attention_heads
            query, key, value = (x.transpose(1, 2).reshape(batch, time, width) for x in (query, key, value))
            mixed = softmax_attention(query, key, value, count, mask=mask.keys, cu_seqlens=mask.cu_seqlens)
            return self.output(mixed), None
        options = {"dropout": self.dropout if self.training else 0.0, "scaling": self.head_size**-0.5, **kwargs}
        implementation = self._implementation(output_attentions)
        if mask.packing is not None:
            mixed = attend_packed(self, implementation, query, key, value, mask.packing, self.window, **options)
            return self.output(mixed.reshape(batch, time, width)), None
        if self.window is not None:
            keys = None if mask.keys is None else mask.keys[:, None, None]
            attention_mask = near(time, self.window, hidden.device, keys)
        mixed, weights = implementation(self, query, key, value, attention_mask, **options)
        return self.output(mixed.reshape(batch, time, width)), weights

    def _projected(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Returns query, key and value, (batch, time, D) each; in inference on a GPU, by one product."""
        projections = (self.query, self.key, self.value)
        if hidden.device.type == "cpu" or not in_inference() or not all(map(can_join, projections)):
            return tuple(projection(hidden) for projection in projections)
        weights, biases = ([getattr(each, name) for each in projections] for name in ("weight", "bias"))
        joined = kept(self, joined_rows, *weights, *biases)
        return nn.functional.linear(hidden, *joined).chunk(3, dim=-1)

    def _implementation(self, output_attentions: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
        name = self.config._attn_implementation
        if output_attentions and name == "sdpa":
            name = "eager"
        return sdpa_attention if name == "sdpa" else ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention)
