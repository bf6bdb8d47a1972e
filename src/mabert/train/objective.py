"""The masked-language-modelling objective for every model family."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from mabert.baselines.family import Family
from mabert.model.heads import IGNORED


@contextlib.contextmanager
def at_scored_positions(head: nn.Module, labels: Tensor) -> Iterator[None]:
    """Runs a head on scored positions only: logits at all others would be most of a step's work and memory.

    Args:
        head: A module that takes token vectors (batch, time, D).
        labels: int64 (batch, time), -100 where a position is not scored. Inside the context the head gets (scored
            positions, D), in row order.
    """
    scored = labels != IGNORED
    hook = head.register_forward_pre_hook(lambda _, given: (given[0][scored], *given[1:]))
    try:
        yield
    finally:
        hook.remove()


def mean_over_scored(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Returns the mean cross-entropy over scored positions.

    Args:
        outputs: Model output with `logits` (scored positions, vocabulary), see `at_scored_positions`.
        labels: int64 (batch, time), -100 where a position is not scored.
        num_items_in_batch: Scored positions of the whole step; default, those of `labels`.

    Returns:
        A scalar; 0 if nothing is scored.
    """
    truth = labels[labels != IGNORED]
    total = nn.functional.cross_entropy(outputs.logits.float(), truth, reduction="sum")
    return total / max(1, len(truth) if num_items_in_batch is None else num_items_in_batch)


@torch.no_grad()
def held_out_sums(model: PreTrainedModel, family: Family, loader: DataLoader) -> Tensor:
    """Sums cross-entropy, correct predictions and scored positions over this process's windows: float64 (3,)."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in loader:
        labels = batch.pop("labels")
        scored = labels != IGNORED
        hidden = model.base_model(**batch).last_hidden_state[scored]
        logits = family.token_scores(model, hidden).float()
        truth = labels[scored]
        sums[0] += torch.nn.functional.cross_entropy(logits, truth, reduction="sum").cpu()
        sums[1] += (logits.argmax(-1) == truth).sum().cpu()
        sums[2] += len(truth)
    return sums
