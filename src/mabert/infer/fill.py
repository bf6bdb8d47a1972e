"""The likeliest tokens behind each [MASK] of a text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.answers import ALONE, answer_in_order
from mabert.infer.load import Loaded, check_at_least_one, load_for_use


def fill_mask(
    path: str | Path,
    texts: Sequence[str],
    *,
    top: int = 5,
    max_length: int | None = None,
    truncate: bool = False,
    batch_tokens: int = TOKENS_A_BATCH,
    deterministic: bool = False,
    progress: bool = True,
) -> list[list[list[dict[str, Any]]]]:
    """Guesses masked tokens.

    Args:
        path: Folder (or hub name) of a masked language model.
        texts: Texts with the tokenizer's mask token in them.
        top: Guesses a mask.
        max_length: Tokens at most; default, all the model takes (see `Loaded.encode`).
        truncate: Whether to cut texts that are longer; otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most.
        deterministic: Whether to run each text by itself, so that its answer has the same bits whatever else is asked.
        progress: Whether to show a bar.

    Returns:
        For each text, for each mask in it, guesses with `token` and `probability`, likeliest first.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is no masked language model, a text has no mask or would lose one by being cut, texts are too
            long, or a number is below 1.
    """
    check_at_least_one(top=top, batch_tokens=batch_tokens)
    loaded = load_for_use("masked_lm", path)
    model, tokenizer = loaded.model, loaded.tokenizer
    for number, text in enumerate(texts, 1):
        if tokenizer.mask_token not in text:
            raise ValueError(f"text {number} has no {tokenizer.mask_token} to fill: {text[:60]!r}")

    def guesses(batch: dict[str, torch.Tensor]) -> Iterator[list[list[dict[str, Any]]]]:
        masked = batch["input_ids"] == tokenizer.mask_token_id
        # The decoder has an output a vocabulary entry, so it sees masked positions only.
        hidden = model.base_model(**batch).last_hidden_state[masked]
        likely = loaded.family.token_scores(model, hidden).float().softmax(-1)
        best = likely.topk(min(top, likely.shape[-1]))
        ranked = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        for count in masked.sum(1).tolist():
            yield [named(loaded, *next(ranked)) for _ in range(count)]

    encoded = loaded.encode(texts, max_length=max_length, truncate=truncate)
    if truncate:
        check_masks_are_left(loaded, texts, encoded)
    return answer_in_order(loaded, encoded, guesses, "filling", ALONE if deterministic else batch_tokens, progress)


def named(loaded: Loaded, probabilities: list[float], ids: list[int]) -> list[dict[str, Any]]:
    """The guesses of one mask."""
    tokens = loaded.tokenizer.convert_ids_to_tokens(ids)
    return [{"token": token, "probability": chance} for token, chance in zip(tokens, probabilities, strict=True)]


def check_masks_are_left(loaded: Loaded, texts: Sequence[str], encoded: Sequence[dict[str, list[int]]]) -> None:
    """Raises ValueError unless every mask of every text is still there."""
    mask, mask_id = loaded.tokenizer.mask_token, loaded.tokenizer.mask_token_id
    for number, (text, item) in enumerate(zip(texts, encoded, strict=True), 1):
        there, left = text.count(mask), item["input_ids"].count(mask_id)
        if left < there:
            raise ValueError(
                f"text {number} has {there} {mask}, of which cutting it to {len(item['input_ids'])} tokens leaves "
                f"{left}; shorten what stands before: {text[:60]!r}"
            )
