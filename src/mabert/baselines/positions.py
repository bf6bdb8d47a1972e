"""Longer tables of learned positions."""

import torch
from torch import Tensor


def repeat(table: Tensor, rows: int, kept: int = 0) -> Tensor:
    """Repeats a table of positions until it is long enough, as Longformer was begun from RoBERTa (Beltagy et al.,
    2020, section 5).

    Positions that were there stay, so the longer model says the same on short inputs.

    Args:
        table: (old rows, D).
        rows: Of the new table.
        kept: Rows at the start that are no positions and are not repeated.

    Returns:
        (rows, D).
    """
    positions = table[kept:]
    copies = -(-(rows - kept) // len(positions))
    return torch.cat([table[:kept], positions.repeat(copies, 1)])[:rows]
