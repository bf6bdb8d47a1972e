"""Facts about a model folder: layers, parameters by part, memory at a few lengths."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.machine.memory import size_of
from mabert.opening.opened import Model, open_model

LENGTHS = (128, 512, 2048)
PARTS = ("embeddings", "Mamba cores", "attention", "feed-forward", "norms")


@dataclass(frozen=True)
class ModelInfo:
    """Figures of one model."""

    config: PreTrainedConfig
    parts: dict[str, int]  # parameters by part; shared ones count once, in the encoder
    memory: dict[int, int]  # peak bytes above the weights in one forward of the encoder at batch 1, by length
    weights: int  # bytes


def info(named: Model, lengths: tuple[int, ...] = LENGTHS) -> ModelInfo:
    """Reads a model and measures its memory at these lengths, without those beyond its positions; raises what
    `open_model` does."""
    opened = open_model(named)
    model, config, longest = opened.model(), opened.config, opened.longest
    limit = max(lengths) if longest is None else longest
    return ModelInfo(
        config=config,
        parts=parameters_by_part(model),
        memory={length: peak_at(model.base_model, length) for length in lengths if length <= limit},
        weights=size_of(model),
    )


def part_of(name: str, letters: str) -> str:
    """Returns the part of an encoder that a parameter belongs to, from its name and a MaBERT's schedule."""
    if name.startswith("embeddings.") or "embedding_hidden_mapping" in name:
        return "embeddings"
    if ".mixer." in name:
        letter = letters[int(name.split(".")[1])]
        return "Mamba cores" if letter == "M" else f"mixers {letter}"
    if name.startswith("pooler."):
        return "head"
    if "norm" in name.lower():
        return "norms"
    return "attention" if any(word in name for word in ("attention", "attn", "rel_embeddings")) else "feed-forward"


def parameters_by_part(model: PreTrainedModel) -> dict[str, int]:
    """Counts parameters of the embeddings, each kind of mixer, the feed-forward networks, the norms and the head if
    there is one; shared ones count once."""
    encoder = model.base_model
    letters = getattr(model.config, "layer_pattern", "")
    parts = dict.fromkeys(PARTS, 0)
    for name, parameter in encoder.named_parameters():
        part = part_of(name, letters)
        parts[part] = parts.get(part, 0) + parameter.numel()
    head = parts.pop("head", 0) + model.num_parameters() - encoder.num_parameters()
    return {part: held for part, held in [*parts.items(), ("head", head)] if held}


@torch.inference_mode()
def peak_at(model: PreTrainedModel, length: int) -> int:
    """Returns `peak_bytes` for one text of `length` tokens; the model need not have run before."""
    tokens = torch.full((1, length), 1)
    model(input_ids=tokens[:, :8].repeat(2, 1))  # several texts, so that every kernel is compiled
    return peak_bytes(model, tokens)


@torch.inference_mode()
def peak_bytes(model: PreTrainedModel, tokens: Tensor) -> int:
    """Returns the peak bytes that torch's CPU allocator holds during one forward of `tokens`, int64 (batch, time),
    above those it held before. The model must have run before, so that nothing is compiled meanwhile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(input_ids=tokens)
    changes: list[Any] = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak
