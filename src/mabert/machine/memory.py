"""Memory: how much is free, how much a model needs, and errors of running out of it, whatever they are called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

TRAINING_BYTES = {"adamw": 16, "adafactor": 8}
"""Bytes that training needs for each parameter in float32, by optimizer: its value and its gradient, and AdamW's two
moments; Adafactor's are few."""

_WORDS = (
    "can't allocate memory",
    "out of memory",
    "cannot allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory ran out; drivers and kernel libraries have their own words for it."""
    named = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return named or any(word in str(error).lower() for word in _WORDS)


class OutOfMemoryError(MemoryError):
    """A batch does not fit the memory; says where, its number of rows, and what helps."""


@contextlib.contextmanager
def naming_memory(where: Callable[[], str]) -> Iterator[None]:
    """Turns running out of memory into an OutOfMemoryError, whose message `where` completes behind "out of memory";
    other errors pass unchanged."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(f"out of memory {where()}") from error


def memory_left() -> int | None:
    """Returns the bytes that the machine and this process's control groups have free; None if not known."""
    return min([*filter(None, [field_of("/proc/meminfo", "MemAvailable")]), *group_memory()], default=None)


def gpu_memory_left(device: torch.device) -> int:
    """Returns the bytes that a GPU has free, with those that torch keeps but does not use."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def check_fits(
    what: str, parameters: int, bytes_each: int, beside: int = 0, device: torch.device | None = None
) -> None:
    """Refuses a model that the memory cannot hold, a GPU's if `device` is one, before anything is allocated, by a
    ValueError that names both amounts. `bytes_each` is 2 or 4 for inference, see `TRAINING_BYTES` for training; a
    batch needs at least `beside` bytes."""
    gpu = device if device is not None and device.type == "cuda" else None
    needed, left = parameters * bytes_each + beside, memory_left() if gpu is None else gpu_memory_left(gpu)
    if left is not None and needed > left:
        batch = f", {beside / 2**30:,.1f} GiB of it for a batch" if beside else ""
        raise ValueError(
            f"{what} has {parameters:,} parameters and needs at least {needed / 2**30:,.1f} GiB of "
            f"{'' if gpu is None else 'GPU '}memory{batch}; {left / 2**30:,.1f} GiB are free"
        )


def step_bytes(config: PreTrainedConfig, tokens: int, bytes_each: int, checkpointing: bool) -> int:
    """Returns the bytes that a training step of so many tokens needs at least for what its layers keep. Each keeps the
    inputs of itself and its sub-layers, queries, keys and values or their like, their output, and the feed-forward
    network's inner activations twice; with checkpointing, only its own input."""
    width = config.hidden_size
    kept = width if checkpointing else 6 * width + 2 * config.intermediate_size
    return tokens * config.num_hidden_layers * kept * bytes_each


def group_memory(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Returns the bytes free under each limit of this process's control groups, as containers and clusters set them;
    `groups` is Linux's file that names them, `root` their folder. Cached file pages that can be dropped count as
    free."""
    if not groups.is_file():
        return []
    left = []
    for line in groups.read_text(encoding="utf-8").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        # Version 2 has one tree, version 1 has one per controller.
        top, limit, used, dropped = (
            (root, "memory.max", "memory.current", "inactive_file")
            if not controllers
            else (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        inner = top / own.strip("/")
        for group in (inner, *inner.parents):
            files = [group / name for name in (limit, used, "memory.stat")]
            if group.is_relative_to(top) and all(file.is_file() for file in files):
                most, now, listed = (file.read_text(encoding="ascii") for file in files)
                statistics = dict(each.split() for each in listed.splitlines())
                if most.strip() != "max":
                    left.append(max(0, int(most) - int(now) + int(statistics.get(dropped, 0))))
    return left


def field_of(file: str, name: str) -> int:
    """Returns the bytes in a field of one of Linux's files about memory; 0 if the file or field is missing."""
    if not Path(file).is_file():
        return 0
    lines = (line.split() for line in Path(file).read_text(encoding="ascii").splitlines())
    return next((int(words[1]) << 10 for words in lines if words[0] == f"{name}:"), 0)


def size_of(model: nn.Module) -> int:
    """Returns the bytes of a model's weights."""
    return sum(weight.nbytes for weight in model.parameters())


def parameters_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> int:
    """Counts a model's weights without allocating them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(config).parameters())
