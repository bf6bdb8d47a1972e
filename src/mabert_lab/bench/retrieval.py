"""Retrieval of long articles: the task, its questions, and how often each method finds the article."""

import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.stats import binomtest

from mabert.data.corpus import read_documents
from mabert.files.tables import read_rows, text_in
from mabert.machine.environment import resolve_precision
from mabert_lab.bench.rankers import WORDS, Ranker, rankers_of, together
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.english import split_sentences

ARTICLES = 300  # number of articles to search
LENGTH_IN_WORDS = (750, 3_000)  # minimum and maximum words of an article: about 1,000 to 4,000 tokens
FACTS = 50  # number of texts with a hidden fact per length
LENGTHS = (256, 512, 1024, 2048, 4096)  # approximate tokens of those texts
WORDS_A_TOKEN = 0.7  # words per token: prose with this ratio stays below a number of tokens of BERT's vocabulary
QUERY = 8  # minimum words of a query sentence; a shorter first sentence is joined with the next

FILLER = (
    "The kettle is on the stove. Rain falls on the roof. A dog sleeps by the door. The clock in the hall is slow. "
    "Someone has left a window open. We will have soup again tonight."
)
"""Sentences that are repeated around a passkey."""

FIRST = ("Ada", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST = ("Abbott", "Bauer", "Castro", "Dahl", "Engel", "Ferro", "Grant", "Holm", "Ivanov", "Jensen")
THINGS = ("violin", "telescope", "passport", "blue notebook", "sewing machine", "chess set", "old camera", "saddle")
PLACES = ("the attic", "a barn near the mill", "the cellar", "a locker at the station", "the boathouse", "the pantry")


@dataclass(frozen=True)
class Search:
    """A retrieval task: each query should find its own text."""

    name: str
    queries: list[str]
    texts: list[str]
    own: list[int] | None = None  # index of each query's text; default, that of the query
    length: int | None = None  # approximate tokens of the texts; None for mixed lengths


def searches_of(documents: Iterable[str], seed: int = 0) -> list[Search]:
    """Makes all searches from documents; definitions are asked if enough have one. ValueError if fewer than `ARTICLES`
    have a number of words within `LENGTH_IN_WORDS`. The seed is of the choice of articles and of what is hidden."""
    least, most = LENGTH_IN_WORDS
    there = [document for document in documents if least <= len(document.split()) <= most]
    if len(there) < ARTICLES:
        raise ValueError(
            f"the data holds {len(there):,} documents of {least:,} to {most:,} words; {ARTICLES:,} are needed"
        )
    draws = random.Random(seed)
    articles = draws.sample(there, ARTICLES)
    hidden = [hide(length, articles, draws) for length in LENGTHS]
    by_article = [by_first_sentence(articles), by_second_half(articles)]
    by_article += [by_late_sentence(articles, draws), by_common_words(articles)]
    defined = [article for article in there if definition_in(next(sentences_of(article)))]
    if len(defined) >= ARTICLES:
        by_article.append(by_definition(draws.sample(defined, ARTICLES)))
    return [search for search in (*by_article, *itertools.chain(*hidden)) if search.queries]


def own_search(path: str) -> Search:
    """Reads questions of one's own, a table of `question` and `text`; ValueError for a gap or fewer than two texts."""
    questions, texts = [], []
    for where, row in read_rows(Path(path), ("question", "text")):
        questions.append(text_in(row, "question", where))
        texts.append(text_in(row, "text", where))
    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if len(place) < 2:
        raise ValueError(f"{path}: a search needs two different texts or more; this table has {len(place)}")
    return Search("own questions", questions, list(place), [place[text] for text in texts])


def sentences_of(article: str) -> Iterator[str]:
    return (sentence for line in article.split("\n") for sentence in split_sentences(line.strip()))


def by_first_sentence(articles: Sequence[str]) -> Search:
    """Makes the search in which an article's first sentence, or title, finds the rest."""
    queries, texts = [], []
    for article in articles:
        sentences = list(sentences_of(article))
        ends = itertools.accumulate(len(sentence.split()) for sentence in sentences)
        first = 1 + sum(1 for _ in itertools.takewhile(lambda words: words < QUERY, ends))
        queries.append(" ".join(sentences[:first]))
        texts.append(" ".join(sentences[first:]))
    return Search("first sentence", queries, texts)


def by_second_half(articles: Sequence[str]) -> Search:
    """Makes the search in which the second half of an article, by words, finds the first half."""
    words = [article.split() for article in articles]
    first = [" ".join(each[: len(each) // 2]) for each in words]
    second = [" ".join(each[len(each) // 2 :]) for each in words]
    return Search("second half", second, first)


def by_late_sentence(articles: Sequence[str], draws: random.Random) -> Search:
    """Makes the search in which a sentence from an article's second half, long if there is one, finds the rest."""
    queries, texts = [], []
    for article in articles:
        sentences = list(sentences_of(article))
        late = range(len(sentences) // 2, len(sentences))
        place = draws.choice([n for n in late if len(sentences[n].split()) >= QUERY] or late)
        queries.append(sentences[place])
        texts.append(" ".join([*sentences[:place], *sentences[place + 1 :]]))
    return Search("late sentence", queries, texts)


_DEFINITION = re.compile(r"(.{2,160}?)\s(?:is|was|are|were)\s((?:an?|the|one of)\s.+)", re.DOTALL)
_WORD = re.compile(r"\w+")
RARE = 0.05  # words in at most this share of the articles are rare


def definition_in(sentence: str) -> str | None:
    """Returns what a sentence says that something is, without words of its name; None if it defines nothing."""
    found = _DEFINITION.match(sentence)
    if found is None:
        return None
    stems = tuple(word[: max(4, len(word) - 2)] for word in _WORD.findall(found[1].lower()) if len(word) > 3)
    kept = _without(found[2], lambda word: word.startswith(stems))
    return kept if len(_WORD.findall(kept)) >= QUERY else None


def by_definition(articles: Sequence[str]) -> Search:
    """Makes the search in which an article's definition, without the defined words, finds the rest."""
    split = [list(sentences_of(article)) for article in articles]
    return Search("definition", [str(definition_in(each[0])) for each in split], [" ".join(each[1:]) for each in split])


def by_common_words(articles: Sequence[str]) -> Search:
    """Makes the search of `by_first_sentence` without each rare word of a query that its text has too: what is left
    are words of many texts, and words that only the query has. Queries that this leaves too short are left out."""
    whole = by_first_sentence(articles)
    words = [set(_WORD.findall(text.lower())) for text in whole.texts]
    having = Counter(itertools.chain(*words))
    rare = {word for word, number in having.items() if number <= RARE * len(articles)}
    queries = [_without(query, (rare & own).__contains__) for query, own in zip(whole.queries, words, strict=True)]
    kept = [number for number, query in enumerate(queries) if len(_WORD.findall(query)) >= QUERY]
    return Search("other words", [queries[number] for number in kept], whole.texts, kept)


def _without(text: str, goes: Callable[[str], bool]) -> str:
    kept = _WORD.sub(lambda found: "" if goes(found[0].lower()) else found[0], text)
    return " ".join(each for each in kept.split() if _WORD.search(each))


def hide(length: int, articles: Sequence[str], draws: random.Random) -> Iterator[Search]:
    """Yields LongEmbed's two synthetic tasks (Zhu et al., 2024, arXiv 2404.12096) at one length."""
    words = round(length * WORDS_A_TOKEN)
    names = draws.sample([f"{first} {last}" for first in FIRST for last in LAST], FACTS)
    filler = itertools.cycle(FILLER.split())
    keys = [f"The passkey of {name} is {draws.randrange(10_000, 100_000)}. Remember it." for name in names]
    texts = [put(key, list(itertools.islice(filler, words)), draws) for key in keys]
    yield Search("passkey", [f"What is the passkey of {name}?" for name in names], texts, length=length)
    prose = itertools.cycle(" ".join(draws.sample(articles, len(articles))).split())
    things = [draws.choice(THINGS) for _ in names]
    facts = [f"{name} keeps the {it} in {draws.choice(PLACES)}." for name, it in zip(names, things, strict=True)]
    texts = [put(fact, list(itertools.islice(prose, words)), draws) for fact in facts]
    queries = [f"Where does {name} keep the {it}?" for name, it in zip(names, things, strict=True)]
    yield Search("needle", queries, texts, length=length)


def put(sentence: str, words: list[str], draws: random.Random) -> str:
    """Inserts a sentence between two sentences of the text, at a random place, and keeps the number of words."""
    room = words[: len(words) - len(sentence.split())]
    ends = [0, *(place for place, word in enumerate(room, 1) if word.endswith("."))]
    place = draws.choice(ends)
    return " ".join([*room[:place], sentence, *room[place:]])


DOCUMENTS = 20_000  # number of documents, from the first on, among which articles are chosen


def run(
    models: Sequence[str],
    data: str | None,
    output: Path,
    questions: str | None = None,
    tasks: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measures models (see `rankers_of`), BM25 and TF-IDF, each model together with BM25, and its whole texts and best
    passages together with it, on searches of `data`, documents on which no model was trained, of all `tasks` or some,
    and on a table of `questions` of one's own. ``scores`` are, by method, a list of `summary` for each search."""
    searches = [] if data is None else searches_of(itertools.islice(read_documents(data), DOCUMENTS))
    if tasks is not None:
        known = list(dict.fromkeys(search.name for search in searches))
        if unknown := [name for name in tasks if name not in known]:
            raise ValueError(f"there is no task {unknown[0]!r} for {data}; there are {', '.join(known)}")
        searches = [search for search in searches if search.name in tasks]
    searches += [] if questions is None else [own_search(questions)]
    found: dict[str, list[tuple[np.ndarray, float]]] = {}
    result: dict[str, Any] = {"environment": measured_on(), "data": data, "questions": questions}
    result |= {"precision": resolve_precision("auto"), "scores": {}}

    def add(row: str, *ways: str) -> None:
        result["scores"][row] = [
            summary(search, together(*(scores for scores, _ in each)), sum(ms for _, ms in each))
            for search, *each in zip(searches, *(found[way] for way in ways), strict=True)
        ]

    def job(name: str, ranker: Ranker, model: str | None = None) -> None:
        if model is not None:
            ranker(searches[0].texts[:1])  # untimed: kernels may be compiled on the first call
        found[name] = [scored(ranker, search) for search in searches]
        add(name, name)
        if model is not None:
            add(f"{name}, with BM25", name, "BM25")
        if name == f"{model}, best passage":
            whole = next(row for row in (f"{model}", f"{model}, mean over windows") if row in found)
            add(f"{whole} and best passage, with BM25", whole, name, "BM25")

    jobs = {name: partial(job, name, ranker) for name, ranker in WORDS.items()}
    for model in models:
        jobs |= {name: partial(job, name, ranker, model) for name, ranker in rankers_of(model).items()}
    return record(result, jobs, show, output, "retrieval")


def scored(ranker: Ranker, search: Search) -> tuple[np.ndarray, float]:
    """Returns the scores, (queries, texts), and the milliseconds to index a text."""
    began = time.perf_counter()
    scores = ranker(search.texts)
    took = time.perf_counter() - began
    return scores(search.queries), 1e3 * took / len(search.texts)


def summary(search: Search, scores: np.ndarray, ms: float) -> dict[str, Any]:
    """Sums up the scores of one method on one search: `top1` is the share of queries whose text ranks first, with its
    95% interval after Wilson (1927), `mrr10` the mean reciprocal rank within the top ten."""
    ranks = ranks_of(scores, search.own)
    first = int((ranks == 1).sum())
    return {
        "task": search.name,
        "length": search.length,
        "texts": len(search.texts),
        "queries": len(ranks),
        "top1": first / len(ranks),
        "top1_interval": list(binomtest(first, len(ranks)).proportion_ci(method="wilson")),
        "mrr10": float(np.where(ranks <= 10, 1 / ranks, 0).mean()),
        "ms": ms,
    }


def ranks_of(scores: np.ndarray, own: Sequence[int] | None = None) -> np.ndarray:
    """Returns the rank, from 1, of each query's own text by scores, (queries, texts); ties rank before it."""
    queries = np.arange(len(scores))
    return (scores >= scores[queries, queries if own is None else own][:, None]).sum(1)


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table of the articles, and one of the hidden facts by length."""
    scores: dict[str, list[dict[str, Any]]] = result["scores"]
    first = next(iter(scores.values()))
    articles = [number for number, row in enumerate(first) if row["length"] is None]
    heads = [head for n in articles for head in (f"{first[n]['task']}: top-1", "MRR@10", "ms a text")]
    lines = []
    for name, row in scores.items():
        cells = []
        for found in (row[n] for n in articles):
            low, high = found["top1_interval"]
            cells += [f"{found['top1']:.3f} [{low:.2f}, {high:.2f}]", f"{found['mrr10']:.3f}", f"{found['ms']:.1f}"]
        lines.append((name, *cells))
    console.print(table("texts found by questions", [""], heads, lines))
    hidden = [number for number, row in enumerate(first) if row["length"] is not None]
    if hidden:
        heads = [f"{first[n]['task']} {first[n]['length']:,}" for n in hidden]
        lines = [(name, *(f"{row[n]['top1']:.2f}" for n in hidden)) for name, row in scores.items()]
        console.print(table("hidden facts, top-1 by tokens", [""], heads, lines))
