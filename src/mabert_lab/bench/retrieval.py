"""Measures retrieval of long texts: articles by their first sentence, second half or a late sentence, and hidden
facts."""

import itertools
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mabert.data.corpus import read_documents
from mabert.machine.precision import resolve_precision
from mabert_lab.bench.longtexts import Search, searches_of
from mabert_lab.bench.rankers import WORDS, Ranker, rankers_of
from mabert_lab.bench.results import measured_on, record, table

DOCUMENTS = 20_000
"""Number of documents, from the first on, among which articles are chosen."""


def run(models: Sequence[str], data: str, output: Path) -> dict[str, Any]:
    """Measures models, BM25 and TF-IDF; prints the tables, and writes a dated file after each method.

    Args:
        models: See `rankers_of`.
        data: Documents as `mabert pretrain` takes them, on which no model was trained.
        output: Folder for the result.

    Returns:
        `scores`, by method a list of `measured` for each task; `data` and `precision`.
    """
    searches = searches_of(itertools.islice(read_documents(data), DOCUMENTS))
    rankers = [(name, make()) for name, make in WORDS.items()]
    rankers += [pair for model in models for pair in rankers_of(model).items()]
    result: dict[str, Any] = {
        "environment": measured_on(),
        "data": data,
        "precision": resolve_precision("auto"),
        "scores": {},
    }

    def job(name: str, ranker: Ranker) -> None:
        ranker.index(searches[0].texts[:1])  # untimed: kernels may be compiled on the first call
        result["scores"][name] = [measured(ranker, search) for search in searches]

    return record(result, {name: partial(job, name, ranker) for name, ranker in rankers}, show, output, "retrieval")


def measured(ranker: Ranker, search: Search) -> dict[str, Any]:
    """Measures one method on one search.

    Returns:
        `task`, `length`, the number of `texts`; `top1`, the share of queries whose text ranks first; `mrr10`, the mean
        reciprocal rank within the top ten; `ms`, the time to index one text.
    """
    began = time.perf_counter()
    index = ranker.index(search.texts)
    took = time.perf_counter() - began
    places = places_of(ranker.scores(search.queries, index))
    return {
        "task": search.name,
        "length": search.length,
        "texts": len(search.texts),
        "top1": float((places == 1).mean()),
        "mrr10": float(np.where(places <= 10, 1 / places, 0).mean()),
        "ms": 1e3 * took / len(search.texts),
    }


def places_of(scores: np.ndarray) -> np.ndarray:
    """Returns the rank of each query's own text, from 1, (queries,); ties rank before it.

    Args:
        scores: (queries, texts), the own text on the diagonal.
    """
    return (scores >= scores.diagonal()[:, None]).sum(1)


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table of the articles, and one of the hidden facts by length."""
    scores: dict[str, list[dict[str, Any]]] = result["scores"]
    first = next(iter(scores.values()))
    articles = [number for number, told in enumerate(first) if told["length"] is None]
    heads = [head for n in articles for head in (f"{first[n]['task']}: top-1", "MRR@10", "ms a text")]
    lines = []
    for name, told in scores.items():
        cells = ((f"{told[n]['top1']:.3f}", f"{told[n]['mrr10']:.3f}", f"{told[n]['ms']:.1f}") for n in articles)
        lines.append((name, *itertools.chain(*cells)))
    console.print(table(f"{first[0]['texts']} articles", [""], heads, lines))
    hidden = [number for number, told in enumerate(first) if told["length"] is not None]
    heads = [f"{first[n]['task']} {first[n]['length']:,}" for n in hidden]
    lines = [(name, *(f"{told[n]['top1']:.2f}" for n in hidden)) for name, told in scores.items()]
    console.print(table("hidden facts, top-1 by tokens", [""], heads, lines))
