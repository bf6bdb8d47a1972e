"""How a teacher reads texts that are longer than its positions: in windows that overlap by half. For each token the
window speaks in which it stands most in the middle.

With 512 positions, windows begin every 256 tokens. The first speaks for the tokens up to position 383, each further one
for those at its positions 128 to 383, and the last one for all that are left. The student's table of positions goes on
in the same way, so that its embeddings are those of the windows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mabert.conversion.watch import Row, packing_of
from mabert.data.collate import FlatteningCollator
from mabert.data.mlm import IGNORE


@dataclass(frozen=True)
class TeacherWindows:
    """The texts of a packed row in windows, and the way back from the windows to the texts.

    Attributes:
        row: The windows as a packed row.
        index: int64 (total,), where in that row the token stands that speaks for each token of the texts.
        text: int64 (windows,), of which text each window is.
        share: float32 (windows,), for what share of its text's tokens each window speaks.
        starts: int64 (texts,), where each text begins in its own row.
        window_starts: int64 (windows,), where each window begins in theirs.
    """

    row: Row
    index: Tensor
    text: Tensor
    share: Tensor
    starts: Tensor
    window_starts: Tensor

    def of_tokens(self, values: Tensor) -> Tensor:
        """What windows say at their tokens, (1, tokens of windows, ...), for the tokens of the texts, (1, total, ...).

        The first token, [CLS], stands for its whole text: it gets the mean over the windows, see `of_texts`.
        """
        whole = values.index_select(1, self.index)
        whole[0, self.starts] = self.of_texts(values[0, self.window_starts])
        return whole

    def of_texts(self, values: Tensor) -> Tensor:
        """What each window says as a whole, (windows, ...), for the texts, (texts, ...): the mean, weighted by the
        number of tokens that a window speaks for."""
        share = self.share.view(-1, *[1] * (values.dim() - 1))
        means = values.new_zeros(len(self.starts), *values.shape[1:], dtype=torch.float32)
        return means.index_add_(0, self.text, values.float() * share).to(values.dtype)


def windows_of(row: Row, limit: int) -> TeacherWindows:
    """Cuts the texts of a packed row into windows; a text that fits is its own window.

    A window is a slice of its text whose first and last token are the text's own, [CLS] and [SEP].

    Args:
        row: As `FlatteningCollator` makes it, with `input_ids` and perhaps `labels`. Each label goes to the token that
            speaks, so that the tokens which have one follow one another as in the row.
        limit: Tokens of a window, at least 3.
    """
    step, before = steps(limit)
    packing, device = packing_of(row), row["input_ids"].device
    windows, index, text, share = [], [], [], []
    start = window_start = 0
    for number, length in enumerate(packing.lengths):
        count = 1 + max(0, -(-(length - limit) // step))
        places = torch.arange(length)
        speaker = ((places - before) // step).clamp(0, count - 1)
        index.append(window_start + places + speaker * (limit - step))  # all windows but the last have `limit` tokens
        share.append(speaker.bincount(minlength=count) / length)
        text += [number] * count
        for window in range(count):
            taken = torch.arange(window * step, min(window * step + limit, length))
            taken[0], taken[-1] = 0, length - 1
            windows.append(row["input_ids"][0, (start + taken).to(device)])
            window_start += len(taken)
        start += length
    packed: Row = FlatteningCollator()([{"input_ids": window} for window in windows])
    packed = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in packed.items()}
    found = torch.cat(index).to(device)
    if "labels" in row:
        packed["labels"] = torch.full_like(packed["input_ids"], IGNORE)
        packed["labels"][0, found] = row["labels"][0]
    return TeacherWindows(
        row=packed,
        index=found,
        text=torch.tensor(text, device=device),
        share=torch.cat(share).to(device),
        starts=packing.cu_seqlens[:-1].long(),
        window_starts=packed["cu_seq_lens_q"][:-1].long(),
    )


def lengthened(table: Tensor, rows: int) -> Tensor:
    """A longer table of positions, whose further rows are those that the windows have where they speak.

    The rows that are there stay, so that texts up to the teacher's length keep its positions.

    Args:
        table: (positions, D).
        rows: Of the new table, at least as many.

    Returns:
        (rows, D).
    """
    step, before = steps(len(table))
    further = before + (torch.arange(len(table), rows, device=table.device) - before) % step
    return torch.cat((table, table[further]))


def steps(limit: int) -> tuple[int, int]:
    """After how many tokens the next window begins, and the position from which on a window speaks, but for the
    first, which speaks from its beginning."""
    step = limit // 2
    return step, (limit - step) // 2
