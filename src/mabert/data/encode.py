"""Texts as a classifier reads them: token ids, pairs joined by [SEP], within the model's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    import datasets

_CHUNK = 1000


class TextsTooLongError(ValueError):
    """Texts are longer than they may be."""


def encode_texts(
    tokenizer: PreTrainedTokenizerFast,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_length: int | None,
    truncate: bool = False,
    name: str = "the input",
) -> list[dict[str, list[int]]]:
    """Encodes texts or pairs of texts.

    Args:
        tokenizer: of the model.
        texts_a: the texts, or the first of each pair.
        texts_b: the second of each pair.
        max_length: tokens at most, special ones included; None for any number.
        truncate: cut what is longer (of a pair, the longer text); otherwise it is an error.
        name: what the texts are, for the message.

    Returns:
        An item a text: `input_ids`, and `token_type_ids` where the tokenizer makes them; not padded.

    Raises:
        TextsTooLongError: texts are longer than `max_length` and `truncate` is off; says how many of how many.
        ValueError: the numbers of texts differ, or `max_length` has no room for a token.
    """
    for texts in (texts_a, texts_b):
        if isinstance(texts, str):
            raise ValueError(f"{name} are one string, {texts[:40]!r}; a list of texts is needed")
    if texts_b is not None and len(texts_a) != len(texts_b):
        raise ValueError(f"{name}: {len(texts_a)} first texts and {len(texts_b)} second ones")
    least = tokenizer.num_special_tokens_to_add(pair=texts_b is not None) + 1
    if max_length is not None and max_length < least:
        raise ValueError(f"max_length is {max_length}; special tokens and one token of text need {least}")
    options: dict[str, Any] = {"truncation": False}
    if truncate and max_length is not None:
        options = {"truncation": True, "max_length": max_length}
    items: list[dict[str, list[int]]] = []
    for start in range(0, len(texts_a), _CHUNK):
        pairs = None if texts_b is None else list(texts_b[start : start + _CHUNK])
        chunk = tokenizer(
            list(texts_a[start : start + _CHUNK]), pairs, return_attention_mask=False, verbose=False, **options
        )
        items += [dict(zip(chunk, values, strict=True)) for values in zip(*chunk.values(), strict=True)]
    if max_length is not None:
        _check_lengths([len(item["input_ids"]) for item in items], max_length, name)
    return items


def _check_lengths(lengths: list[int], max_length: int, name: str) -> None:
    long = [row for row, length in enumerate(lengths) if length > max_length]
    if long:
        worst = max(long, key=lengths.__getitem__)
        raise TextsTooLongError(
            f"{name}: {len(long)} of {len(lengths)} texts are longer than {max_length} tokens (the first is text "
            f"{long[0] + 1}, the longest text {worst + 1} with {lengths[worst]}); shorten them or ask for truncation"
        )


class EncodedDataset(Dataset):
    """Examples ready for a classifier, for `Collator`.

    Args:
        examples: rows with `text_a`, and `text_b` and `label` where there are any, as from `load_glue` and
            `load_tables`.
        tokenizer: of the model.
        max_length: tokens at most, special ones included.
        truncate: cut what is longer; otherwise it is an error.
        name: what the examples are, for messages.

    Attributes:
        lengths: tokens of each example, to batch by length.

    Raises:
        ValueError: as `encode_texts`, `TextsTooLongError` included.
    """

    def __init__(
        self,
        examples: datasets.Dataset,
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        truncate: bool = False,
        name: str = "the data",
    ) -> None:
        columns: dict[str, list[Any]] = examples[:]
        self._items: list[dict[str, Any]] = list(
            encode_texts(
                tokenizer,
                columns["text_a"],
                columns.get("text_b"),
                max_length=max_length,
                truncate=truncate,
                name=name,
            )
        )
        for item, label in zip(self._items, columns.get("label", ()), strict=False):
            item["labels"] = label
        self.lengths = [len(item["input_ids"]) for item in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`input_ids`, `token_type_ids` where the tokenizer makes them, and `labels` where there are any."""
        return self._items[index]
