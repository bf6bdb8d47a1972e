"""Tests for users' additions to a model."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mabert.model.config import MaBertConfig
from mabert.model.masking import PaddingMask
from mabert.model.packing import Packing
from mabert.ops import use_backend

NEAR = 1e-12
"""Largest difference that rounding makes in float64, relative to the largest number."""

ROUNDED = 1e-6
"""Largest difference that rounding makes in float32, likewise; what leaks makes a larger one."""

SIZES = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50, "layer_pattern": "T"}


def check_mixer(mixer: type[nn.Module], **fields: Any) -> None:
    """Tests that a mixer works in a model; see `mabert.model.blocks` for its arguments.

    The mixer is made in float64 and called on random texts of 1 to 9 tokens. Each text must give the same result as
    alone: padded on the right, padded on the left, and packed into one row with others. The result must have the shape
    and dtype of the input, and every parameter must get a finite gradient.

    Results that differ by up to `ROUNDED` pass with a warning: the mixer computes in float32, and its rounding hides
    leaks that are as small.

    Args:
        mixer: The mixer's class.
        fields: Fields of its configuration that replace small defaults.

    Raises:
        AssertionError: Naming what does not hold, and by how much.
    """
    with use_backend("reference"):  # computes in float64
        _check(mixer, MaBertConfig(**{**SIZES, **fields}))


def _check(mixer: type[nn.Module], config: MaBertConfig) -> None:
    torch.manual_seed(0)
    made = mixer(config)
    for module in made.modules():
        own = getattr(module, "init_weights", None)
        if callable(own):
            own()
    made = made.double().eval()
    texts = [torch.randn(1, length, config.hidden_size, dtype=torch.float64) for length in (9, 4, 1, 6)]
    alone = [mixed(made, text, PaddingMask(None)) for text in texts]
    for text, result in zip(texts, alone, strict=True):
        assert result.shape == text.shape, f"{tuple(text.shape)} is mixed to {tuple(result.shape)}; they must be alike"
        assert result.dtype == text.dtype, f"{text.dtype} is mixed to {result.dtype}; they must be alike"
    check_padding(made, texts, alone)
    check_packing(made, texts, alone)
    check_gradients(made, texts)


def mixed(made: nn.Module, hidden: Tensor, mask: PaddingMask) -> Tensor:
    """Returns the first of a mixer's results."""
    result = made(hidden, mask, output_attentions=False)
    assert isinstance(result, tuple), f"a mixer returns (mixed, attention or None); this one a {type(result).__name__}"
    assert len(result) == 2, f"a mixer returns (mixed, attention or None); this one {len(result)} values"
    return result[0]


def check_padding(made: nn.Module, texts: list[Tensor], alone: list[Tensor]) -> None:
    """Checks that each text gives the same in a batch padded on the right or left as alone."""
    longest = max(text.shape[1] for text in texts) + 2
    right = torch.arange(longest) < torch.tensor([[text.shape[1]] for text in texts])
    for side, valid in (("right", right), ("left", right.flip(1))):
        hidden = torch.zeros(len(texts), longest, texts[0].shape[2], dtype=torch.float64)
        hidden[valid] = torch.cat([text[0] for text in texts])
        found = mixed(made, hidden, PaddingMask(valid))
        for row, expected in enumerate(alone):
            check_near(found[row][valid[row]], expected[0], f"a text padded on the {side}")


def check_packing(made: nn.Module, texts: list[Tensor], alone: list[Tensor]) -> None:
    """Checks that each text gives the same in a packed row as alone."""
    lengths = [text.shape[1] for text in texts]
    mask = PaddingMask(None, packing=Packing.of_lengths(torch.tensor(lengths)))
    found = mixed(made, torch.cat(texts, dim=1), mask)[0].split(lengths)
    for number, (one, expected) in enumerate(zip(found, alone, strict=True), 1):
        check_near(one, expected[0], f"text {number} of a packed row")


def check_gradients(made: nn.Module, texts: list[Tensor]) -> None:
    """Checks that every parameter and every token gets a gradient."""
    given = [text.clone().requires_grad_() for text in texts if text.shape[1] > 1]
    total = sum((mixed(made, text, PaddingMask(None)) * torch.randn_like(text)).sum() for text in given)
    assert isinstance(total, Tensor)
    total.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"
        assert parameter.grad.any(), f"{name} has a gradient of zero"
    for text in given:
        assert text.grad is not None, "the input has no gradient"
        assert text.grad.any(dim=-1).all(), "a token has no gradient"


def check_near(found: Tensor, expected: Tensor, what: str) -> None:
    """Raises AssertionError if two results differ by more than rounding; warns if the rounding is of float32."""
    apart = ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
    differs = f"{what} differs from the text alone by {apart:.1e} of its largest number"
    assert apart <= ROUNDED, differs
    if apart > NEAR:
        warnings.warn(f"{differs}, as rounding does where a mixer computes in float32", stacklevel=2)
