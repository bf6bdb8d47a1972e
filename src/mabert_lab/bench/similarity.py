"""How well vectors tell similar texts: STS-B and MRPC, by the cosine of the two texts of a pair, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

from mabert.data.glue import load_glue
from mabert.data.task import column
from mabert.infer.model import load
from mabert_lab.bench.engines import split
from mabert_lab.bench.results import measured_on, write

COLUMNS = ("text_a", "text_b", "label")

TASKS = {"stsb": ("validation",), "mrpc": ("train", "validation")}
"""A task to the splits of it that have labels and that nobody trains on here; STS-B's `train` is left out, since
published embedders have learnt from it."""


def run(models: Sequence[str], data: str, output: Path) -> dict[str, Any]:
    """Measures some models and writes a dated file.

    Args:
        models: Model folders, hub names, teachers that are installed as packages, or `minilm`; each makes vectors as
            its folder says, in the precision it was saved in or the one behind a colon (``minilm:int8``).
        data: GLUE's folder, or the hub's name of it.
        output: Folder for the result.

    Returns:
        By model, Spearman's correlation between cosine and score (`stsb`) and the average precision of the cosine for
        paraphrases (`mrpc`), both times 100, with the number of pairs.
    """
    pairs = {task: pairs_of(task, data, splits) for task, splits in TASKS.items()}
    scores: dict[str, Any] = {}
    for name in models:
        place, precision = split(name)
        model = load(place, precision=precision or None)
        scores[name] = {
            task: {"score": 100 * measured(task, cosines(model, first, second), labels), "pairs": len(labels)}
            for task, (first, second, labels) in pairs.items()
        }
    write({"environment": measured_on(), "scores": scores}, output, "similarity")
    return scores


def pairs_of(task: str, data: str, splits: Sequence[str]) -> tuple[list[str], list[str], np.ndarray]:
    """First and second texts of a task, and their labels (pairs,)."""
    there = load_glue(task, data, splits)
    first, second, labels = ([x for each in splits for x in column(there[each], name)] for name in COLUMNS)
    return first, second, np.asarray(labels, float)


def cosines(model: Any, first: list[str], second: list[str]) -> np.ndarray:
    """Cosines of pairs, (pairs,)."""
    a, b = (model.embed(texts, normalize=True, truncate=True, progress=False) for texts in (first, second))
    return (a * b).sum(1)


def measured(task: str, cosine: np.ndarray, labels: np.ndarray) -> float:
    """The task's measure, at most 1."""
    if task == "stsb":
        return float(stats.spearmanr(cosine, labels)[0])
    return float(average_precision_score(labels, cosine))
