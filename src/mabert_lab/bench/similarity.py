"""Measures text similarity by the cosine of a pair's vectors, without training: STS-B and MRPC."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

from mabert.data.glue import load_glue
from mabert.data.tasks import column
from mabert.infer.model import load
from mabert_lab.bench.results import measured_on, write
from mabert_lab.bench.tables import split

SPLITS = {"stsb": ("validation",), "mrpc": ("train", "validation")}
"""Labelled splits that no model here was trained on; published embedders were trained on STS-B's `train`."""


def run(models: Sequence[str], data: str, output: Path) -> dict[str, Any]:
    """Measures models, each as its folder says, in its precision or that after a colon (``minilm:int8``), and writes a
    dated file. Returns by model Spearman's correlation between cosine and score (`stsb`) and the average precision of
    the cosine for paraphrases (`mrpc`), both times 100, with the number of pairs."""
    pairs = {task: pairs_of(task, data, splits) for task, splits in SPLITS.items()}
    scores: dict[str, Any] = {}
    for name in models:
        place, precision = split(name)
        embed = partial(load(place, precision=precision or None).embed, normalize=True, truncate=True, progress=False)
        scores[name] = {
            task: {"score": 100 * metric_of(task, (embed(first) * embed(second)).sum(1), labels), "pairs": len(labels)}
            for task, (first, second, labels) in pairs.items()
        }
    write({"environment": measured_on(), "scores": scores}, output, "similarity")
    return scores


def pairs_of(task: str, data: str, splits: Sequence[str]) -> tuple[list[str], list[str], np.ndarray]:
    """Returns first and second texts of a task, and labels (pairs,)."""
    there = load_glue(task, data, splits)
    first, second, labels = (
        [x for each in splits for x in column(there[each], name)] for name in ("text_a", "text_b", "label")
    )
    return first, second, np.asarray(labels, float)


def metric_of(task: str, cosine: np.ndarray, labels: np.ndarray) -> float:
    """Computes the task's metric, at most 1."""
    if task == "stsb":
        return float(stats.spearmanr(cosine, labels)[0])
    return float(average_precision_score(labels, cosine))
