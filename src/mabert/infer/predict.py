"""One label (or number) a text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.load import load_for_use
from mabert.infer.texts import answer_in_order, encode_texts
from mabert.model import MaBertForSequenceClassification


def predict(
    path: str | Path, texts: Sequence[str], *, truncate: bool = False, batch_tokens: int = TOKENS_A_BATCH
) -> list[dict[str, Any]]:
    """Labels of texts.

    Args:
        path: Folder (or hub name) of a fine-tuned classifier.
        texts: Any number of texts.
        truncate: Whether to cut texts that are longer than the model; otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most.

    Returns:
        A mapping a text: `label` and the `probability` of every label; or the `score` of a regression.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it has no classifier, or texts are too long.
    """
    model, tokenizer = load_for_use(MaBertForSequenceClassification, path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]

    def labels(batch: dict[str, torch.Tensor]) -> Iterator[dict[str, Any]]:
        logits = model(**batch).logits.float()
        if len(names) == 1:
            yield from ({"score": value} for value in logits.squeeze(-1).tolist())
            return
        for row in logits.softmax(-1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            yield {"label": names[best], "probability": dict(zip(names, row, strict=True))}

    longest = model.config.max_position_embeddings if model.config.position_embedding == "learned" else None
    encoded = encode_texts(tokenizer, texts, longest, truncate)
    return answer_in_order(encoded, tokenizer.pad_token_id, device, labels, "predicting", batch_tokens)
