"""The likeliest tokens behind each [MASK] of a text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.load import load_for_use
from mabert.infer.texts import answer_in_order, encode_texts
from mabert.model import MaBertForMaskedLM


def fill_mask(
    path: str | Path,
    texts: Sequence[str],
    *,
    top: int = 5,
    truncate: bool = False,
    batch_tokens: int = TOKENS_A_BATCH,
) -> list[list[list[dict[str, Any]]]]:
    """Guesses masked tokens.

    Args:
        path: Folder (or hub name) of a masked language model.
        texts: Texts with the tokenizer's mask token in them.
        top: Guesses a mask.
        truncate: Whether to cut texts that are longer than the model; otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most.

    Returns:
        For each text, for each mask in it, guesses with `token` and `probability`, likeliest first.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is no masked language model, a text has no mask, or texts are too long.
    """
    model, tokenizer = load_for_use(MaBertForMaskedLM, path)
    for number, text in enumerate(texts, 1):
        if tokenizer.mask_token not in text:
            raise ValueError(f"text {number} has no {tokenizer.mask_token} to fill: {text[:60]!r}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)

    def guesses(batch: dict[str, torch.Tensor]) -> Iterator[list[list[dict[str, Any]]]]:
        logits = model(**batch).logits.float()
        for row, ids in zip(logits, batch["input_ids"], strict=True):
            best = row[ids == tokenizer.mask_token_id].softmax(-1).topk(min(top, row.shape[-1]))
            yield [
                [
                    {"token": tokenizer.convert_ids_to_tokens(token), "probability": probability}
                    for probability, token in zip(probabilities, tokens, strict=True)
                ]
                for probabilities, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]

    longest = model.config.max_position_embeddings if model.config.position_embedding == "learned" else None
    encoded = encode_texts(tokenizer, texts, longest, truncate)
    return answer_in_order(encoded, tokenizer.pad_token_id, device, guesses, "filling", batch_tokens)
