"""Stage 2: the whole student learns to end where its teacher ends."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mabert.baselines.load import Use
from mabert.conversion.watch import hidden_states_of, packing_of, pooled, unexplained
from mabert.conversion.windows import windows_of

VECTOR, RELATIONS, ANSWERS = 10.0, 10.0, 1.0
"""Weights of the losses of vectors, of their products, and of a head's answers, beside that of hidden states."""


class Distillation(nn.Module):
    """A student as a module whose forward is how far it is from its teacher.

    Args:
        teacher: The copy that keeps all layers, with its head. It reads longer texts than it has positions for in
            windows.
        student: With a head of the same kind.
        use: What both are for. An embedder's vectors, a classifier's logits and a masked language model's logits at
            hidden tokens count beside hidden states.
    """

    def __init__(self, teacher: Any, student: Any, use: Use) -> None:
        super().__init__()
        self.student, self.use = student, use
        self._teacher = [teacher.eval()]  # in a list, it is none of this module's parts: it is not trained or saved
        for model in (teacher, student):
            model.config.sparse_prediction = True

    def train(self, mode: bool = True) -> "Distillation":
        """Leaves dropout off: a student that drops what its teacher does not cannot end where it ends."""
        return super().train(False)

    def forward(self, **row: Any) -> Tensor:
        """Losses: unexplained variance of hidden states, mean over layers; then what the use asks for.

        Args:
            row: A packed row as `FlatteningCollator` makes it.
        """
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
            # A masked language model's rows are the tokens that have labels, which come in the same order.
            end = windows.of_texts(wanted.logits) if self.use == "classifier" else wanted.logits
            losses.append(ANSWERS * divergence(given.logits.float(), end.float()))
        return torch.stack(losses)


def divergence(given: Tensor, wanted: Tensor) -> Tensor:
    """Kullback-Leibler divergence between answers, mean over rows of (rows, classes); of one number, its square
    error."""
    if wanted.shape[-1] == 1:
        return (given - wanted).square().mean()
    return functional.kl_div(given.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True)
