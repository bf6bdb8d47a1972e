"""One vector a text."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from mabert.baselines.load import load_config
from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.answers import ALONE, answer_in_order
from mabert.infer.load import Loaded, check_at_least_one, load_for_use
from mabert.model import MaBertConfig
from mabert.model.pooling import first_token, mean_of_tokens

POOLINGS = ("mean", "cls", "map")
Pool = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def embed(
    path: str | Path,
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    normalize: bool = False,
    max_length: int | None = None,
    truncate: bool = False,
    batch_tokens: int = TOKENS_A_BATCH,
    deterministic: bool = False,
    progress: bool = True,
) -> np.ndarray:
    """Vectors of texts.

    Args:
        path: Model folder or hub name.
        texts: Any number of texts.
        pooling: `mean` of the token vectors, the `cls` vector, or `map`, the mask-aware attention pooling that a
            classifier whose pooling it is has learned.
        normalize: Whether to scale each vector to length one.
        max_length: Tokens at most; default, all the model takes (see `Loaded.encode`).
        truncate: Whether to cut texts that are longer; otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most; changes speed, not the vectors beyond rounding.
        deterministic: Whether to run each text by itself, so that its answer has the same bits whatever else is asked.
        progress: Whether to show a bar.

    Returns:
        float32 (texts, D).

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: For an unknown pooling, a model without what it needs, or texts that are too long.
    """
    check_at_least_one(batch_tokens=batch_tokens)
    loaded, pool = load_encoder(path, pooling)
    encoder = loaded.model

    def vectors(batch: dict[str, torch.Tensor]) -> np.ndarray:
        hidden = encoder(**batch).last_hidden_state
        pooled = pool(hidden, batch["attention_mask"] != 0).float()
        if normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return pooled.cpu().numpy()

    encoded = loaded.encode(texts, max_length=max_length, truncate=truncate)
    rows = answer_in_order(loaded, encoded, vectors, "embedding", ALONE if deterministic else batch_tokens, progress)
    return np.stack(rows) if rows else np.zeros((0, encoder.config.hidden_size), np.float32)


def load_encoder(path: str | Path, pooling: str) -> tuple[Loaded[PreTrainedModel], Pool]:
    """An encoder, and what makes one vector of its token vectors.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: For an unknown pooling, or one that the model did not learn.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; it must be one of {list(POOLINGS)}")
    if pooling != "map":
        return load_for_use("encoder", path), mean_of_tokens if pooling == "mean" else first_token
    config = load_config(path)
    if not isinstance(config, MaBertConfig):
        raise ValueError(f"{path} is a {config.model_type} model; pooling 'map' is MaBERT's")
    if config.pooling != "map":
        raise ValueError(
            f"{path} pools by {config.pooling!r}; pooling 'map' needs a classifier that was trained with it"
        )
    classifier = load_for_use("classifier", path)
    return Loaded(classifier.model.mabert, classifier.tokenizer), classifier.model.pooler
