"""Longer tables of learned positions."""

import torch
from torch import Tensor


def repeat(table: Tensor, rows: int, kept: int = 0) -> Tensor:
    """Repeats a table of positions until it is long enough, as Longformer was initialised from RoBERTa (Beltagy et al.,
    2020, section 5).

    The old positions stay, so the outputs for short inputs do not change.

    Args:
        table: (old rows, D).
        rows: Rows of the new table.
        kept: Rows at the start that are not positions and are not repeated.

    Returns:
        (rows, D).
    """
    positions = table[kept:]
    copies = -(-(rows - kept) // len(positions))
    return torch.cat([table[:kept], positions.repeat(copies, 1)])[:rows]
