"""Answers in the order of the texts; batches hold texts of like length, so that little is padding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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

from mabert.data.batches import TOKENS_A_BATCH, batches_by_length
from mabert.data.collate import Collator
from mabert.infer.load import Loaded

Answer = TypeVar("Answer")

ALONE = 1
"""Tokens a batch that give every text one of its own."""


@torch.inference_mode()
def answer_in_order(
    loaded: Loaded,
    encoded: Sequence[dict[str, list[int]]],
    answer: Callable[[dict[str, torch.Tensor]], Iterable[Answer]],
    title: str,
    tokens: int = TOKENS_A_BATCH,
    progress: bool = True,
) -> list[Answer]:
    """Answers every text, batch by batch, and puts the answers back in the order of the texts.

    Args:
        loaded: The model that answers.
        encoded: The texts, from `Loaded.encode`.
        answer: From a batch (`input_ids`, `attention_mask`, `token_type_ids` where the tokenizer makes them, all
            (batch, time)) to one answer a row.
        title: What the progress bar says.
        tokens: Padded tokens of a batch at most; of a model whose answers depend on padding each text is alone.
        progress: Whether to show a bar.
    """
    lengths = [len(item["input_ids"]) for item in encoded]
    tokens = ALONE if loaded.family.depends_on_batch(loaded.model.config, lengths) else tokens
    collate = Collator(loaded.tokenizer.pad_token_id)
    answers: list[Any] = [None] * len(encoded)
    with progress_over(title, len(encoded), progress) as advance:
        for batch in batches_by_length(lengths, tokens):
            rows = collate([encoded[index] for index in batch])
            rows = {name: value.to(loaded.model.device) for name, value in rows.items()}
            for index, one in zip(batch, answer(rows), strict=True):
                answers[index] = one
            advance(len(batch))
    return answers


@contextmanager
def progress_over(title: str, total: int, show: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar over a number of texts, with rate and time left, on standard error; nothing where that is no terminal.

    Yields:
        A function to call with the number of texts just done.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), RateColumn(), TimeElapsedColumn(), TextColumn("left"))
    hidden = not (show and console.is_terminal)
    with Progress(TextColumn(title), *columns, TimeRemainingColumn(), console=console, disable=hidden) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


class RateColumn(ProgressColumn):
    """Texts a second."""

    def render(self, task: Task) -> Text:
        """The rate so far."""
        return Text(f"{task.speed or 0:,.1f}/s")
