"""Answers as files or on standard output."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedConfig

from mabert.baselines.registry import family_of
from mabert.infer.info import ModelInfo
from mabert.model import MaBertConfig
from mabert.writing import whole_file


def check_output(output: str | None, suffixes: Sequence[str]) -> None:
    """Refuses a file that could not be written, before the work rather than after it.

    Raises:
        ValueError: If the suffix is not one of those, or the file exists.
        FileNotFoundError: If its folder does not.
    """
    if output is None:
        return
    path = Path(output)
    if path.suffix not in suffixes:
        raise ValueError(f"{output} must end in {' or '.join(suffixes)}")
    if path.exists():
        raise ValueError(f"{output} exists already; name another file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} in")


def write_rows(rows: Iterable[dict[str, Any]], output: str | None) -> None:
    """Mappings as JSONL, to a file or standard output."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if output is None:
        sys.stdout.writelines(lines)
        return
    with whole_file(output) as file:
        file.writelines(line.encode() for line in lines)


def write_vectors(vectors: np.ndarray, output: str | None) -> None:
    """Vectors (texts, D) as `.npy`, or as JSONL with one `vector` a line."""
    if output is not None and Path(output).suffix == ".npy":
        with whole_file(output) as file:
            np.save(file, vectors, allow_pickle=False)
        return
    write_rows(({"vector": vector.tolist()} for vector in vectors), output)


def show_info(about: ModelInfo) -> None:
    """Two tables in the terminal."""
    console = Console(highlight=False)
    console.print(in_a_line(about.config))
    parts = Table("part", "parameters", "share")
    total = sum(about.parts.values())
    for name, number in [*about.parts.items(), ("all", total)]:
        parts.add_row(name, f"{number:,}", f"{number / total:.1%}")
    console.print(parts)
    memory = Table("tokens", "encoder's forward", "with all weights")
    for length, extra in about.memory.items():
        memory.add_row(str(length), f"{extra / 2**20:.1f} MiB", f"{(extra + about.weights) / 2**20:.1f} MiB")
    console.print(memory)


def in_a_line(config: PreTrainedConfig) -> str:
    """The sizes of a model."""
    own = isinstance(config, MaBertConfig)
    layers = f"layers {config.layer_pattern}" if own else f"layers of {family_of(config).title}"
    cores = f"Mamba cores {config.ssm_inner_size} x {config.ssm_state_size} {config.ssm_direction}, " if own else ""
    return (
        f"{config.num_hidden_layers} {layers}, width {config.hidden_size}, {config.num_attention_heads} heads, "
        f"feed-forward {config.intermediate_size}, {cores}vocabulary {config.vocab_size}"
    )
