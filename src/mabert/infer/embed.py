"""One vector a text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.load import load_for_use
from mabert.infer.texts import answer_in_order, encode_texts
from mabert.model import MaBertForSequenceClassification, MaBertModel
from mabert.model.pooling import first_token, mean_of_tokens

POOLINGS = ("mean", "cls", "map")


def embed(
    path: str | Path,
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    normalize: bool = False,
    truncate: bool = False,
    batch_tokens: int = TOKENS_A_BATCH,
) -> np.ndarray:
    """Vectors of texts.

    Args:
        path: Model folder or hub name.
        texts: Any number of texts.
        pooling: `mean` of the token vectors, the `cls` vector, or `map`, the mask-aware attention pooling that a
            classifier learned.
        normalize: Whether to scale each vector to length one.
        truncate: Whether to cut texts that are longer than the model; otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most; changes speed, not the vectors beyond rounding.

    Returns:
        float32 (texts, D).

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: For an unknown pooling, a model without what it needs, or texts that are too long.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; it must be one of {list(POOLINGS)}")
    if pooling == "map":
        classifier, tokenizer = load_for_use(MaBertForSequenceClassification, path)
        encoder, pool = classifier.mabert, classifier.pooler
    else:
        encoder, tokenizer = load_for_use(MaBertModel, path)
        pool = mean_of_tokens if pooling == "mean" else first_token
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder.to(device)

    def vectors(batch: dict[str, torch.Tensor]) -> np.ndarray:
        hidden = encoder(**batch).last_hidden_state
        pooled = pool(hidden, batch["attention_mask"] != 0).float()
        if normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return pooled.cpu().numpy()

    longest = encoder.config.max_position_embeddings if encoder.config.position_embedding == "learned" else None
    encoded = encode_texts(tokenizer, texts, longest, truncate)
    rows = answer_in_order(encoded, tokenizer.pad_token_id, device, vectors, "embedding", batch_tokens)
    return np.stack(rows) if rows else np.zeros((0, encoder.config.hidden_size), np.float32)
