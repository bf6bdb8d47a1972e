"""Texts in, answers out, in the order they came; batches hold texts of like length, so that little is padding."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from transformers import PreTrainedTokenizerFast

from mabert.data import files
from mabert.data.batches import TOKENS_A_BATCH, batches_by_length
from mabert.data.collate import Collator

Answer = TypeVar("Answer")


def read_texts(source: str | Path | None, text_column: str = "text") -> list[str]:
    """Texts from a file or standard input: one a line, or one object a line with a text field.

    Args:
        source: A file, `.jsonl` for objects, possibly compressed; None or `-` for lines of standard input.
        text_column: The field of an object that holds the text.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, not UTF-8, not JSON, or an object lacks the field.
    """
    if source in (None, "-"):
        lines = [line.rstrip("\r\n") for line in decode(sys.stdin.buffer)]
        if not lines:
            raise ValueError("standard input is empty; one text a line is needed")
        return lines
    path = Path(source)
    with files.open_bytes(path) as (stream, _):
        lines = list(files.lines(path, stream))
    if files.kind(path) in (".jsonl", ".ndjson"):
        return [field_of(path, number, line, text_column) for number, line in enumerate(lines, 1) if line.strip()]
    return lines


def decode(stream: Iterable[bytes]) -> Iterator[str]:
    """Lines of standard input as text.

    Raises:
        ValueError: If a line is not UTF-8.
    """
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise ValueError(f"standard input: line {number} is not UTF-8: byte 0x{byte:02x}") from error


def field_of(path: Path, number: int, line: str, column: str) -> str:
    """The text field of one JSONL line."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: line {number} is not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get(column), str):
        there = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{path}: line {number} has no text {column!r}; it has {there}")
    return row[column]


def encode_texts(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], longest: int | None, truncate: bool
) -> list[list[int]]:
    """Token ids of each text, [CLS] and [SEP] included.

    Args:
        tokenizer: The model's.
        texts: What to encode.
        longest: Tokens the model can take; None for any number.
        truncate: Whether to cut longer texts.

    Raises:
        ValueError: If texts are longer and truncation was not asked for; says how many.
    """
    if not texts:
        return []
    encoded = tokenizer(list(texts), truncation=False, add_special_tokens=True, verbose=False)["input_ids"]
    if longest is None:
        return encoded
    over = [len(ids) for ids in encoded if len(ids) > longest]
    if over and not truncate:
        raise ValueError(
            f"{len(over)} of {len(encoded)} texts are longer than the model's {longest} tokens "
            f"(the longest has {max(over)}); --truncate cuts them"
        )
    return [ids if len(ids) <= longest else [*ids[: longest - 1], tokenizer.sep_token_id] for ids in encoded]


@torch.inference_mode()
def answer_in_order(
    encoded: Sequence[list[int]],
    pad_id: int,
    device: torch.device,
    answer: Callable[[dict[str, torch.Tensor]], Iterable[Answer]],
    title: str,
    tokens: int = TOKENS_A_BATCH,
) -> list[Answer]:
    """Answers every text, batch by batch, and puts the answers back in the order of the texts.

    Args:
        encoded: Token ids of each text.
        pad_id: The padding token.
        device: Where the model is.
        answer: From a batch (`input_ids`, `attention_mask`, both (batch, time)) to one answer a row.
        title: What the progress bar says.
        tokens: Padded tokens of a batch at most.
    """
    collate = Collator(pad_id)
    answers: list[Any] = [None] * len(encoded)
    with progress_over(title, len(encoded)) as advance:
        for batch in batches_by_length([len(ids) for ids in encoded], tokens):
            rows = collate([{"input_ids": encoded[index]} for index in batch])
            rows = {name: value.to(device) for name, value in rows.items()}
            for index, one in zip(batch, answer(rows), strict=True):
                answers[index] = one
            advance(len(batch))
    return answers


@contextmanager
def progress_over(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over a number of texts, with rate and time left, on standard error; nothing where that is no terminal.

    Yields:
        A function to call with the number of texts just done.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), RateColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(
        TextColumn(title), *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


class RateColumn(ProgressColumn):
    """Texts a second."""

    def render(self, task: Task) -> Text:
        """The rate so far."""
        return Text(f"{task.speed or 0:,.1f}/s")
