"""What a pretraining minimises: the masked-language-modelling loss, and which weights decay."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from mabert.baselines.family import Family
from mabert.data.collate import places_of
from mabert.model.mamba import Recurrence
from mabert.schema import IGNORED, SCORED


def with_places(collate: Callable[[Any], dict[str, Any]], examples: Any) -> dict[str, Any]:
    """Adds `SCORED` to a collator's batch, while it lies on the host: to find them later, a GPU would be waited for."""
    batch = collate(examples)
    return {**batch, SCORED: places_of(batch["labels"])}


@contextlib.contextmanager
def at_places(head: nn.Module, places: Tensor) -> Iterator[None]:
    """Runs a head, which takes token vectors (batch, time, D), on scored positions only, see `SCORED`: it gets (scored
    positions, D), in row order. Logits at all others would be most of a step's work and memory."""

    def scored(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = given
        return hidden.flatten(0, 1).index_select(0, places), *rest

    hook = head.register_forward_pre_hook(scored)
    try:
        yield
    finally:
        hook.remove()


def mean_over_scored(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Returns the mean cross-entropy of the logits at scored positions (scored positions, vocabulary), see `at_places`,
    over the scored positions of the whole step (default, those of `labels`): a scalar, 0 if nothing is scored."""
    total = nn.functional.cross_entropy(outputs.logits.float(), labels, reduction="sum")
    count = len(labels) if num_items_in_batch is None else num_items_in_batch
    return total / (count.clamp(min=1) if isinstance(count, Tensor) else max(1, count))


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


def decay_parameter_names(model: nn.Module, exempt: str = "default") -> list[str]:
    """Returns the names of the parameters under weight decay: matrices and embeddings.

    Biases, norms and the recurrence's A_log, D and Δ bias are exempt: decay would pull time constants and step sizes
    towards arbitrary values. Mamba-1 exempts them too.

    Args:
        model: Any of the models.
        exempt: `default`, or `nothing` to decay every parameter.

    Raises:
        ValueError: For any other `exempt`.
    """
    if exempt not in ("default", "nothing"):
        raise ValueError(f"decay_exempt is {exempt!r}; it must be 'default' or 'nothing'")
    if exempt == "nothing":
        return [name for name, _ in model.named_parameters()]
    scans = [module for module in model.modules() if isinstance(module, Recurrence)]
    spared = {id(getattr(scan, name)) for scan in scans for name in Recurrence.FLOAT32}
    return [name for name, parameter in model.named_parameters() if parameter.ndim > 1 and id(parameter) not in spared]
