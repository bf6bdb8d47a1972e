"""Retrieval of long articles: the task, its questions, and how often each method finds the article."""

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mabert.data.corpus import read_documents
from mabert.machine.precision import resolve_precision
from mabert_lab.bench.rankers import WORDS, Ranker, rankers_of
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.english import split_sentences

ARTICLES = 300
"""Number of articles to search."""

LENGTH_IN_WORDS = (750, 3_000)
"""Minimum and maximum words of an article: about 1,000 to 4,000 tokens."""

FACTS = 50
"""Number of texts with a hidden fact per length."""

LENGTHS = (256, 512, 1024, 2048, 4096)
"""Approximate tokens of those texts."""

WORDS_A_TOKEN = 0.7
"""Words per token: prose with this ratio stays below a number of tokens of BERT's vocabulary."""

QUERY = 8
"""Minimum words of a query sentence; a shorter first sentence is joined with the next."""

FILLER = (
    "The kettle is on the stove.",
    "Rain falls on the roof.",
    "A dog sleeps by the door.",
    "The clock in the hall is slow.",
    "Someone has left a window open.",
    "We will have soup again tonight.",
)
"""Sentences that are repeated around a passkey."""

FIRST = ("Ada", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST = ("Abbott", "Bauer", "Castro", "Dahl", "Engel", "Ferro", "Grant", "Holm", "Ivanov", "Jensen")
THINGS = ("violin", "telescope", "passport", "blue notebook", "sewing machine", "chess set", "old camera", "saddle")
PLACES = ("the attic", "a barn near the mill", "the cellar", "a locker at the station", "the boathouse", "the pantry")


@dataclass(frozen=True)
class Search:
    """A retrieval task.

    Attributes:
        name: Kind of search.
        length: Approximate tokens of the texts; None for mixed lengths.
        queries: Each should find the text of the same index.
        texts: As many as queries.
    """

    name: str
    length: int | None
    queries: list[str]
    texts: list[str]


def searches_of(documents: Iterable[str], seed: int = 0) -> list[Search]:
    """Makes all searches from a collection of documents.

    Args:
        documents: At least `ARTICLES` of them must have a number of words within `LENGTH_IN_WORDS`.
        seed: Seed of the choice of articles and of the hidden facts and their places.

    Raises:
        ValueError: If there are fewer; the message says how many.
    """
    least, most = LENGTH_IN_WORDS
    there = [document for document in documents if least <= len(document.split()) <= most]
    if len(there) < ARTICLES:
        raise ValueError(
            f"the data holds {len(there):,} documents of {least:,} to {most:,} words; {ARTICLES:,} are needed"
        )
    draws = random.Random(seed)
    articles = draws.sample(there, ARTICLES)
    hidden = [hide(length, articles, draws) for length in LENGTHS]
    by_article = [by_first_sentence(articles), by_second_half(articles), by_late_sentence(articles, draws)]
    return [*by_article, *itertools.chain(*hidden)]


def sentences_of(article: str) -> list[str]:
    """Returns the sentences of an article, in order."""
    return [sentence for line in article.split("\n") for sentence in split_sentences(line.strip())]


def by_first_sentence(articles: Sequence[str]) -> Search:
    """Makes the search in which an article's first sentence, or title, finds the rest."""
    queries, texts = [], []
    for article in articles:
        sentences = sentences_of(article)
        ends = itertools.accumulate(len(sentence.split()) for sentence in sentences)
        first = 1 + sum(1 for _ in itertools.takewhile(lambda words: words < QUERY, ends))
        queries.append(" ".join(sentences[:first]))
        texts.append(" ".join(sentences[first:]))
    return Search("first sentence", None, queries, texts)


def by_second_half(articles: Sequence[str]) -> Search:
    """Makes the search in which the second half of an article, by words, finds the first half."""
    words = [article.split() for article in articles]
    halves = [(" ".join(each[: len(each) // 2]), " ".join(each[len(each) // 2 :])) for each in words]
    return Search("second half", None, [second for _, second in halves], [first for first, _ in halves])


def by_late_sentence(articles: Sequence[str], draws: random.Random) -> Search:
    """Makes the search in which a sentence from the second half of an article finds the rest. Sentences with too few
    words are used only if there is no other."""
    queries, texts = [], []
    for article in articles:
        sentences = sentences_of(article)
        late = range(len(sentences) // 2, len(sentences))
        place = draws.choice([n for n in late if len(sentences[n].split()) >= QUERY] or late)
        queries.append(sentences[place])
        texts.append(" ".join([*sentences[:place], *sentences[place + 1 :]]))
    return Search("late sentence", None, queries, texts)


def hide(length: int, articles: Sequence[str], draws: random.Random) -> Iterator[Search]:
    """Yields LongEmbed's two synthetic tasks (Zhu et al., 2024, arXiv 2404.12096) at one length: a passkey in repeated
    sentences, and a fact in prose, at a random place."""
    words = round(length * WORDS_A_TOKEN)
    names = draws.sample([f"{first} {last}" for first in FIRST for last in LAST], FACTS)
    filler = itertools.cycle(" ".join(FILLER).split())
    keys = [f"The passkey of {name} is {draws.randrange(10_000, 100_000)}. Remember it." for name in names]
    texts = [put(key, list(itertools.islice(filler, words)), draws) for key in keys]
    yield Search("passkey", length, [f"What is the passkey of {name}?" for name in names], texts)
    prose = itertools.cycle(" ".join(draws.sample(articles, len(articles))).split())
    things = [draws.choice(THINGS) for _ in names]
    facts = [f"{name} keeps the {it} in {draws.choice(PLACES)}." for name, it in zip(names, things, strict=True)]
    texts = [put(fact, list(itertools.islice(prose, words)), draws) for fact in facts]
    queries = [f"Where does {name} keep the {it}?" for name, it in zip(names, things, strict=True)]
    yield Search("needle", length, queries, texts)


def put(sentence: str, words: list[str], draws: random.Random) -> str:
    """Inserts a sentence between two sentences of the text, at a random place, and keeps the number of words."""
    room = words[: len(words) - len(sentence.split())]
    ends = [0, *(place for place, word in enumerate(room, 1) if word.endswith("."))]
    place = draws.choice(ends)
    return " ".join([*room[:place], sentence, *room[place:]])


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
    articles = [number for number, row in enumerate(first) if row["length"] is None]
    heads = [head for n in articles for head in (f"{first[n]['task']}: top-1", "MRR@10", "ms a text")]
    lines = []
    for name, row in scores.items():
        cells = ((f"{row[n]['top1']:.3f}", f"{row[n]['mrr10']:.3f}", f"{row[n]['ms']:.1f}") for n in articles)
        lines.append((name, *itertools.chain(*cells)))
    console.print(table(f"{first[0]['texts']} articles", [""], heads, lines))
    hidden = [number for number, row in enumerate(first) if row["length"] is not None]
    heads = [f"{first[n]['task']} {first[n]['length']:,}" for n in hidden]
    lines = [(name, *(f"{row[n]['top1']:.2f}" for n in hidden)) for name, row in scores.items()]
    console.print(table("hidden facts, top-1 by tokens", [""], heads, lines))
