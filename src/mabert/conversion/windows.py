"""Windows by which a teacher reads texts beyond its positions.

Windows overlap by half, and each token takes its output from the window in which it is nearest the middle. With 512
positions, windows begin every 256 tokens. The first covers the tokens up to position 383, each later one those at its
positions 128 to 383, and the last one all that remain. The student's table of positions continues in the same way, so
its embeddings equal those of the windows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mabert.conversion.watch import Item, PackedRow, packed, packing_of
from mabert.schema import IGNORED


@dataclass(frozen=True)
class TeacherWindows:
    """The texts of a packed row in windows, and the way back from the windows to the texts."""

    row: PackedRow  # the windows as a packed row
    index: Tensor  # int64 (total,), the token in `row` that each token of the texts takes its output from
    text: Tensor  # int64 (windows,), the text of each window
    share: Tensor  # float32 (windows,), share of its text's tokens that each window covers
    starts: Tensor  # int64 (texts,), start of each text in the texts' row
    window_starts: Tensor  # int64 (windows,), start of each window in `row`

    def of_tokens(self, values: Tensor) -> Tensor:
        """Maps the windows' outputs at tokens, (1, tokens of windows, ...), to the tokens of the texts, (1, total,
        ...).

        The first token, [CLS], represents its whole text: it gets the mean over the windows, see `of_texts`.
        """
        whole = values.index_select(1, self.index)
        whole[0, self.starts] = self.of_texts(values[0, self.window_starts])
        return whole

    def of_texts(self, values: Tensor) -> Tensor:
        """Maps one output per window, (windows, ...), to one per text, (texts, ...): the mean, weighted by the tokens
        that each window covers."""
        share = self.share.view(-1, *[1] * (values.dim() - 1))
        means = values.new_zeros(len(self.starts), *values.shape[1:], dtype=torch.float32)
        return means.index_add_(0, self.text, values.float() * share).to(values.dtype)


def windows_of(row: PackedRow, limit: int) -> TeacherWindows:
    """Cuts the texts of a packed row into windows of at most `limit` tokens, at least 3; a text that fits is its own
    window.

    A window is a slice of its text whose first and last token are the text's own, [CLS] and [SEP]. Each label of the
    row goes to the token that its output is taken from, so labelled tokens keep the row's order.
    """
    step, before = steps(limit)
    packing, device = packing_of(row), row["input_ids"].device
    names = [name for name in ("input_ids", "token_type_ids") if name in row]
    windows: list[Item] = []
    index, text, share = [], [], []
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
            windows.append({name: row[name][0, (start + taken).to(device)] for name in names})
            window_start += len(taken)
        start += length
    cut = packed(windows, device)
    found = torch.cat(index).to(device)
    if "labels" in row:
        cut["labels"] = torch.full_like(cut["input_ids"], IGNORED)
        cut["labels"][0, found] = row["labels"][0]
    return TeacherWindows(
        row=cut,
        index=found,
        text=torch.tensor(text, device=device),
        share=torch.cat(share).to(device),
        starts=packing.cu_seqlens[:-1].long(),
        window_starts=cut["cu_seq_lens_q"][:-1].long(),
    )


def lengthened(table: Tensor, rows: int) -> Tensor:
    """Lengthens a table of positions, (positions, D), to (rows, D): each new row equals the one at which a window
    covers that token. The old rows stay, so texts up to the teacher's length keep its positions."""
    step, before = steps(len(table))
    further = before + (torch.arange(len(table), rows, device=table.device) - before) % step
    return torch.cat((table, table[further]))


def steps(limit: int) -> tuple[int, int]:
    """Returns the tokens between the starts of two windows, and the position from which a window covers tokens (0 for
    the first window)."""
    step = limit // 2
    return step, (limit - step) // 2
