"""One label (or number) a text, or a pair of texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mabert.data.batches import TOKENS_A_BATCH
from mabert.infer.answers import ALONE, answer_in_order
from mabert.infer.load import check_at_least_one, load_for_use


def predict(
    path: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    truncate: bool = False,
    batch_tokens: int = TOKENS_A_BATCH,
    deterministic: bool = False,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Labels of texts, encoded as they were in fine-tuning.

    Args:
        path: Folder (or hub name) of a fine-tuned classifier.
        texts: Any number of texts, or the first of each pair.
        pairs: The second text of each pair, for a classifier of pairs.
        max_length: Tokens at most; default, all the model takes (see `Loaded.encode`).
        truncate: Whether to cut texts that are longer (of a pair, the longer text); otherwise they are an error.
        batch_tokens: Padded tokens of a batch at most.
        deterministic: Whether to run each text by itself, so that its answer has the same bits whatever else is asked.
        progress: Whether to show a bar.

    Returns:
        A mapping a text: `label` and the `probability` of every label; `labels`, those of a probability above one half,
        where a text may have several (`problem_type` of the model); or the `score` of a regression.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it has no classifier, texts are too long, or first and second texts differ in number.
    """
    check_at_least_one(batch_tokens=batch_tokens)
    loaded = load_for_use("classifier", path)
    model = loaded.model
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    several = model.config.problem_type == "multi_label_classification"

    def labels(batch: dict[str, torch.Tensor]) -> Iterator[dict[str, Any]]:
        logits = model(**batch).logits.float()
        if len(names) == 1:
            yield from ({"score": value} for value in logits.squeeze(-1).tolist())
            return
        if several:
            for row in logits.sigmoid().tolist():
                probability = dict(zip(names, row, strict=True))
                yield {"labels": [name for name in names if probability[name] > 0.5], "probability": probability}
            return
        for row in logits.softmax(-1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            yield {"label": names[best], "probability": dict(zip(names, row, strict=True))}

    encoded = loaded.encode(texts, pairs, max_length=max_length, truncate=truncate)
    return answer_in_order(loaded, encoded, labels, "predicting", ALONE if deterministic else batch_tokens, progress)
