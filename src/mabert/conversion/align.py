"""Stage 1: each core learns to reproduce the attention it replaces, from the teacher's own hidden states."""

from typing import Any

import torch
from torch import Tensor, nn

from mabert.conversion.watch import attention_of, packing_of, unexplained
from mabert.conversion.windows import windows_of
from mabert.model.masking import PaddingMask


class Alignment(nn.Module):
    """The cores of a student as one module, whose forward returns their distance from the teacher's attention.

    Layers are independent here: no gradient goes through the stack, which makes a step cheap.

    Args:
        teacher: An encoder that keeps all its layers. It reads texts beyond its positions in windows.
        student: The encoder whose cores learn.
    """

    def __init__(self, teacher: Any, student: Any) -> None:
        super().__init__()
        self.mixers = nn.ModuleDict(
            {str(layer): block.mixer for layer, block in enumerate(student.layers) if hasattr(block, "mixer")}
        )
        self._teacher = [teacher.eval()]  # the list keeps it from being a submodule, which is trained and saved

    def forward(self, **row: Any) -> Tensor:
        """Returns the unexplained variance of the attention's output for each converted layer, (cores,).

        Args:
            row: A packed row as `FlatteningCollator` makes it; labels are ignored.
        """
        (teacher,) = self._teacher
        row.pop("labels", None)
        windows = windows_of(row, teacher.config.max_position_embeddings)
        seen = attention_of(teacher, windows.row, [int(layer) for layer in self.mixers])
        mask = PaddingMask(None, "exact", packing_of(row))
        losses = []
        mixers: dict[str, Any] = dict(self.mixers.items())
        for layer, mixer in mixers.items():
            read, wanted = map(windows.of_tokens, seen[int(layer)])
            losses.append(unexplained(mixer(read, mask)[0], wanted))
        return torch.stack(losses)
