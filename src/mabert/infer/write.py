"""Writes answers to files or standard output, each chunk as soon as it is ready."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedConfig

from mabert.baselines.registry import family_of
from mabert.data.cache import write_npy_header
from mabert.files.reading import to_json
from mabert.files.writing import whole_file
from mabert.infer.info import ModelInfo
from mabert.infer.passages import Passages
from mabert.model import MaBertConfig


def write_rows(chunks: Iterable[Iterable[dict[str, Any]]], output: str | None) -> int:
    """Writes mappings as JSONL, to a file, which appears once complete, or chunk by chunk to standard output; returns
    their number."""
    count = 0
    with sink(output) as file:
        for rows in chunks:
            for row in rows:
                # Parquet has dates and other types that JSON has only as text.
                file.write((to_json(row, ascii_only=False, default=str) + "\n").encode())
                count += 1
            file.flush()
    return count


def write_vectors(chunks: Iterable[Sequence[np.ndarray]], width: int, output: str | None) -> int:
    """Writes vectors of `width` numbers as one `.npy` (vectors, width), float32, or as JSONL, one `vector` per line;
    returns their number."""
    if output is None or Path(output).suffix != ".npy":
        return write_rows((({"vector": vector.tolist()} for vector in vectors) for vectors in chunks), output)

    def fill(file: BinaryIO) -> int:
        count = 0
        for vectors in chunks:
            file.write(np.stack(vectors).astype(np.float32).tobytes())
            count += len(vectors)
        return count

    return write_npy(fill, width, output)


def write_passages(chunks: Iterable[Passages], width: int, output: str | None, beside: str | None) -> int:
    """Writes passages as JSONL, one `text`, `start`, `end` and `vector` per line; returns their number.

    `beside` names a second file for all but the vectors, which then make one `.npy`, as in `write_vectors`; it appears
    before that.
    """
    if output is None or beside is None:
        return write_rows(map(json_lines, chunks), output)

    def placed(file: BinaryIO) -> Iterator[Iterator[dict[str, int]]]:
        for found in chunks:
            file.write(found.vectors.tobytes())
            yield spans_of(found)

    return write_npy(lambda file: write_rows(placed(file), beside), width, output)


def json_lines(passages: Passages) -> Iterator[dict[str, Any]]:
    """Yields each passage as a row of JSONL."""
    for place, vector in zip(spans_of(passages), passages.vectors, strict=True):
        yield {**place, "vector": vector.tolist()}


def spans_of(passages: Passages) -> Iterator[dict[str, int]]:
    """Yields the number of each passage's text, its start and its end."""
    columns = (column.tolist() for column in (passages.text, passages.start, passages.end))
    return ({"text": text, "start": start, "end": end} for text, start, end in zip(*columns, strict=True))


def write_npy(fill: Callable[[BinaryIO], int], width: int, output: str) -> int:
    """Writes a float32 array of rows of `width` numbers that `fill` writes and counts; returns their number."""
    with whole_file(output) as file:
        write_npy_header(file, np.dtype(np.float32), (0, width))
        count = fill(file)
        file.seek(0)
        write_npy_header(file, np.dtype(np.float32), (count, width))
    return count


@contextmanager
def sink(output: str | None) -> "Iterator[BinaryIO | StandardOutput]":
    """Opens a file that appears when the block ends, or standard output."""
    if output is None:
        standard = StandardOutput()
        standard.flush()  # text that was written earlier comes first
        yield standard
        return
    with whole_file(output) as file:
        yield file


class StandardOutput:
    """Standard output in UTF-8 whatever the locale, as JSON requires."""

    def write(self, data: bytes, /) -> None:
        """Writes bytes, which must be whole characters."""
        with naming_standard_output():
            if hasattr(sys.stdout, "buffer"):
                sys.stdout.buffer.write(data)
            else:  # in a notebook
                sys.stdout.write(data.decode())

    def flush(self) -> None:
        """Flushes what was written."""
        with naming_standard_output():
            sys.stdout.flush()


@contextmanager
def naming_standard_output() -> Iterator[None]:
    """Names standard output in errors such as a full disk; a reader that has gone away is no such error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def show_info(about: ModelInfo) -> None:
    """Prints two tables to the terminal."""
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
    """Returns a model's sizes in one line."""
    own = isinstance(config, MaBertConfig)
    layers = f"layers {config.layer_pattern}" if own else f"layers of {family_of(config).title}"
    cores = ""
    if own and "M" in config.layer_pattern:
        cores = f"Mamba cores {config.ssm_inner_size} x {config.ssm_state_size} {config.ssm_direction}, "
    return (
        f"{config.num_hidden_layers} {layers}, width {config.hidden_size}, {config.num_attention_heads} heads, "
        f"feed-forward {config.intermediate_size}, {cores}vocabulary {config.vocab_size}"
    )
