"""What a model folder holds: layers, parameters by part, memory at a few lengths."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mabert import model as models
from mabert.model import MaBertConfig, MaBertModel, MaBertPreTrainedModel
from mabert.model.blocks import MambaBlock
from mabert.model.load import load_config, load_model

LENGTHS = (128, 512, 2048)


@dataclass(frozen=True)
class ModelInfo:
    """Figures of one model.

    Attributes:
        config: Its configuration.
        parts: Parameters by part; shared ones count once, in the encoder.
        memory: Bytes above the weights at the peak of one forward of the encoder at batch 1, by length.
        weights: Bytes of all weights.
    """

    config: MaBertConfig
    parts: dict[str, int]
    memory: dict[int, int]
    weights: int


def info(path: str | Path, lengths: tuple[int, ...] = LENGTHS) -> ModelInfo:
    """Reads and measures a model.

    Args:
        path: Model folder or hub name.
        lengths: Token counts to measure memory at; those beyond the model's positions are left out.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is another kind of model or damaged.
    """
    config = load_config(path)
    model = load_model(saved_class(config), path)
    encoder = encoder_of(model)
    limit = config.max_position_embeddings if config.position_embedding == "learned" else max(lengths)
    return ModelInfo(
        config=config,
        parts=parameters_by_part(model),
        memory={length: peak_bytes(encoder, length) for length in lengths if length <= limit},
        weights=sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
    )


def saved_class(config: MaBertConfig) -> type[MaBertPreTrainedModel]:
    """The class a model was saved as, where it is one of ours; otherwise the encoder's."""
    for name in config.architectures or ():
        kind = getattr(models, name, None)
        if isinstance(kind, type) and issubclass(kind, MaBertPreTrainedModel):
            return kind
    return MaBertModel


def encoder_of(model: MaBertPreTrainedModel) -> MaBertModel:
    """The encoder under a head; the model itself where it has none."""
    return cast(MaBertModel, model.base_model)


def parameters_by_part(model: MaBertPreTrainedModel) -> dict[str, int]:
    """Parameters of embeddings, of the mixers of each kind, of the feed-forward networks, of the norms, and of the head
    where there is one."""
    encoder = encoder_of(model)
    parts = {"embeddings": count(encoder.embeddings), "Mamba cores": 0, "attention": 0, "feed-forward": 0}
    for layer in encoder.layers:
        if isinstance(layer, MambaBlock):
            parts["Mamba cores"] += count(layer.mixer)
        else:
            parts["attention"] += count(layer.attention)
        parts["feed-forward"] += count(layer.feed_forward)
    parts["norms"] = count(encoder) - sum(parts.values())
    if model is not encoder:
        parts["head"] = count(model) - count(encoder)
    return parts


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


@torch.inference_mode()
def peak_bytes(model: MaBertModel, length: int) -> int:
    """Bytes torch's allocator holds at the height of one forward at batch 1, above what it held before, on the CPU."""
    tokens = torch.full((1, length), 1)
    model(tokens[:, :8])
    with without_standard_error(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(tokens)
    changes: list[Any] = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


@contextlib.contextmanager
def without_standard_error() -> Iterator[None]:
    """Keeps the profiler's own start and stop lines, which only an environment variable at start-up could, off a
    terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
