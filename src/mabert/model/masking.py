"""Padding-safe masking: which steps are real tokens, and where a Mamba block applies the mask.

The paper masks the input of the SSM core (Eq. 2, "pre") and the output of the block (Eq. 3, "post"). Neither reaches
the step in between: a zero input still leaves SiLU(convolution bias) at a padded step, and that changes the state.
`exact` adds a mask there, inside the convolution and the scan, so that valid tokens get the values of the unpadded run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mabert.model.packing import Packing, is_tracing
from mabert.schema import Masking


def tokens_of(attention_mask: Tensor | None, device: torch.device) -> Tensor | None:
    """Returns a caller's mask as bool (batch, time), True at tokens, on a device; None if there is none."""
    return None if attention_mask is None else attention_mask.to(device) != 0


@dataclass(frozen=True)
class PaddingMask:
    """Which positions hold tokens, and which padding-safe masks are on. All masking of the encoder is done here."""

    valid: Tensor | None  # bool (batch, time), True at tokens; None if there is no padding
    # `none`: no mask; `pre`: Eq. 2; `post`: Eq. 3; `pre+post`: both, as in the paper; `exact`: both and the mask inside
    # convolution and scan.
    masking: Masking = "exact"
    # the sequences of a packed row, which has no padding; None where each row is one sequence
    packing: Packing | None = None

    @classmethod
    def from_attention_mask(
        cls, attention_mask: Tensor | None, given: Tensor, masking: Masking, packing: Packing | None = None
    ) -> "PaddingMask":
        """Checks a caller's mask and makes a `PaddingMask` of it: (batch, time), 1 or True at tokens, 0 or False at
        padding; None for no padding. `given` is the input that it belongs to.

        Raises:
            ValueError: If the mask has another shape (the Mamba layers need to know which *positions* are padding, so a
                4-D attention mask does not suffice) or other numbers, as masks that are additive or number sequences.
        """
        shape = given.shape[:2]
        if attention_mask is not None and attention_mask.shape != shape:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; it must be (batch, time) = {tuple(shape)}"
            )
        valid = tokens_of(attention_mask, given.device)
        if attention_mask is not None and valid is not None and not is_tracing():
            known = ~valid | (attention_mask.to(given.device) == 1)
            everywhere, binary = torch.stack((valid.all(), known.all())).tolist()
            if not binary:
                other = attention_mask[~known.to(attention_mask.device)][0].item()
                raise ValueError(
                    f"attention_mask has a {other:g} in it; it must be 1 at tokens and 0 at padding (texts packed into "
                    "one row are told apart by cu_seq_lens_q or seq_idx, without a mask)"
                )
            valid = None if everywhere else valid
        return cls(valid, masking, packing)

    def to(self, device: torch.device | str, **options: Any) -> "PaddingMask":
        """Moves the mask to another device, which accelerate asks for between layers on different devices."""
        if self.valid is not None and self.valid.device != torch.device(device):
            return replace(self, valid=self.valid.to(device, **options))
        packing = None if self.packing is None else self.packing.to(device, **options)
        return self if packing is self.packing else replace(self, packing=packing)

    @property
    def keys(self) -> Tensor | None:
        """Positions that attention may look at, bool (batch, time).

        In a row without tokens all positions are open: softmax over nothing is NaN, and the output is zeroed later.
        """
        if self.valid is None:
            return None
        return self.valid | ~self.valid.any(dim=1, keepdim=True)

    @property
    def inner(self) -> Tensor | None:
        """The mask inside convolution and scan, which makes padding exact; None unless the masking is `exact`."""
        return self.valid if self.masking == "exact" else None

    @property
    def cu_seqlens(self) -> Tensor | None:
        """The boundaries of a packed row for convolution and scan."""
        return None if self.packing is None else self.packing.cu_seqlens

    def before_core(self, hidden: Tensor) -> Tensor:
        """Returns m ⊙ H (Eq. 2), or H if that mask is off. hidden: (batch, time, D)."""
        return self.zero(hidden) if self.masking in ("pre", "pre+post", "exact") else hidden

    def after_block(self, hidden: Tensor) -> Tensor:
        """Returns m ⊙ H (Eq. 3), or H if that mask is off. hidden: (batch, time, D)."""
        return self.zero(hidden) if self.masking in ("post", "pre+post", "exact") else hidden

    def after_stack(self, hidden: Tensor) -> Tensor:
        """Zeros the encoder's output at padded positions under `exact`."""
        return self.zero(hidden) if self.masking == "exact" else hidden

    def zero(self, hidden: Tensor) -> Tensor:
        """Zeros padded positions by selection, which removes even a NaN. hidden: (batch, time, ...)."""
        if self.valid is None:
            return hidden
        padding = ~self.valid.to(hidden.device)
        return hidden.masked_fill(padding[(..., *[None] * (hidden.dim() - 2))], 0)

    def per_text(self, hidden: Tensor, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """Calls a function on batches in which each row is one text, whether the batch is padded or packed.

        Args:
            hidden: (batch, time, D); for a packed row, (1, total, D).
            function: Takes (texts, longest, D) and bool (texts, longest), True at tokens, or None if all are tokens;
                returns (texts, longest, E).

        Returns:
            The function's results, in the layout of `hidden`.
        """
        if self.packing is None:
            return function(hidden, self.valid)
        batches = self.packing.batches()
        return batches.join(batches.each(hidden, function))

    def positions(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Position ids, int64 (batch or 1, time): the index of each token among the tokens of its row.

        Counting tokens instead of places gives a left-padded text the positions of the unpadded one.
        """
        if self.packing is not None:
            return self.packing.positions()
        if self.valid is None:
            return torch.arange(shape[1], device=device).unsqueeze(0)
        return (self.valid.cumsum(dim=1) - 1).clamp(min=0)
