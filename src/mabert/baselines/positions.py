"""Longer tables of learned positions."""

import torch
from torch import Tensor


def stretch(table: Tensor, rows: int) -> Tensor:
    """Stretches a table of positions by 1-D linear interpolation, first and last row kept (Table A3).

    Every position moves, so the longer model says something else on short inputs as well.

    Args:
        table: (old rows, D).
        rows: Of the new table.

    Returns:
        (rows, D), of the same dtype.
    """
    wide = table.T.unsqueeze(0).float()
    longer = torch.nn.functional.interpolate(wide, size=rows, mode="linear", align_corners=True)
    return longer.squeeze(0).T.to(table.dtype)


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
