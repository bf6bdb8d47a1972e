"""The losses of both stages of a conversion, as modules whose forward returns them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mabert.baselines.uses import Use
from mabert.conversion.watch import attention_of, hidden_states_of, packing_of, pooled, unexplained
from mabert.conversion.windows import windows_of
from mabert.model.masking import PaddingMask
from mabert.schema import SEVERAL


class Alignment(nn.Module):
    """The cores of a student as one module, whose forward returns their distance from the attention of its teacher, an
    encoder that keeps all its layers and reads texts beyond its positions in windows.

    Layers are independent here: no gradient goes through the stack, which makes a step cheap.
    """

    def __init__(self, teacher: Any, student: Any) -> None:
        super().__init__()
        self.mixers = nn.ModuleDict(
            {str(layer): block.mixer for layer, block in enumerate(student.layers) if hasattr(block, "mixer")}
        )
        self._teacher = [teacher.eval()]  # the list keeps it from being a submodule, which is trained and saved

    def forward(self, **row: Any) -> Tensor:
        """Returns the unexplained variance of the attention's output for each converted layer, (cores,); takes a
        `PackedRow`, of which labels are ignored."""
        (teacher,) = self._teacher
        row.pop("labels", None)
        windows = windows_of(row, teacher.config.max_position_embeddings)
        seen = attention_of(teacher, windows.row, [int(layer) for layer in self.mixers])
        mask = PaddingMask(None, "exact", packing_of(row))
        losses = []
        for layer, mixer in self.mixers.items():
            read, wanted = map(windows.of_tokens, seen[int(layer)])
            losses.append(unexplained(mixer(read, mask)[0], wanted))
        return torch.stack(losses)


VECTOR, RELATIONS, ANSWERS = 10.0, 10.0, 1.0
"""Weights of the losses of vectors, their products, and a head's answers, relative to that of hidden states."""


class Distillation(nn.Module):
    """A student as a module whose forward returns its distance from its teacher, the copy that keeps all layers and
    reads texts beyond its positions in windows. Both have a head of the same kind.

    Besides hidden states, the losses compare an embedder's vectors, a classifier's logits or a masked language model's
    logits at masked tokens.
    """

    def __init__(self, teacher: Any, student: Any, use: Use) -> None:
        super().__init__()
        self.student, self.use = student, use
        self._teacher = [teacher.eval()]  # the list keeps it from being a submodule, which is trained and saved
        for model in (teacher, student):
            model.config.sparse_prediction = True

    def train(self, mode: bool = True) -> "Distillation":
        """Keeps dropout off: with dropout that the teacher lacks, a student cannot match it."""
        return super().train(False)

    def forward(self, **row: Any) -> Tensor:
        """Returns the losses on a `PackedRow`: unexplained variance of hidden states, mean over layers, then those of
        the use."""
        (teacher,) = self._teacher
        windows = windows_of(row, teacher.config.max_position_embeddings)
        with torch.no_grad(), hidden_states_of(teacher.base_model) as seen:
            wanted = teacher(**windows.row)
        theirs = [windows.of_tokens(hidden) for hidden in seen]
        with hidden_states_of(self.student.base_model) as ours:
            given = self.student(**row)
        losses = [torch.stack([unexplained(*pair) for pair in zip(ours, theirs, strict=True)]).mean()]
        if self.use == "encoder":
            packing, pooling = packing_of(row), self.student.config.pooling
            ends = (pooled(last.float(), packing, pooling) for last in (ours[-1], theirs[-1]))
            mine, end = (functional.normalize(vectors, dim=-1) for vectors in ends)
            losses.append(VECTOR * (1 - (mine * end).sum(1)).mean())
            losses.append(RELATIONS * (mine @ mine.T - end @ end.T).square().mean())
        else:
            # A masked language model's rows are the tokens with labels, which are in the same order for both.
            end = windows.of_texts(wanted.logits) if self.use == "classifier" else wanted.logits
            several = teacher.config.problem_type == SEVERAL
            losses.append(ANSWERS * divergence(given.logits.float(), end.float(), several))
        return torch.stack(losses)


def divergence(given: Tensor, wanted: Tensor, several: bool = False) -> Tensor:
    """Returns the KL divergence of student's and teacher's logits (rows, classes), mean over rows; for one class, the
    squared error. If a text may have `several` labels, each class is a question of its own."""
    if several:
        likely = wanted.sigmoid()
        mine, least = (
            functional.binary_cross_entropy_with_logits(x, likely, reduction="none") for x in (given, wanted)
        )
        return (mine - least).sum(-1).mean()
    if wanted.shape[-1] == 1:
        return (given - wanted).square().mean()
    return functional.kl_div(given.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True)
