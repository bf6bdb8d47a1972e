"""The searches are what they say, the words' rankings are their formulas', and every way of reading is told apart."""

import json
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.tokenizer import load_tokenizer
from mabert.infer.model import load
from mabert_lab.bench import rankers, retrieval
from mabert_lab.bench.rankers import WORDS as BY_WORDS
from mabert_lab.bench.rankers import bm25, grouped, rankers_of, together
from mabert_lab.cli import main
from tests.conversion.helpers import saved_teacher
from tests.train.helpers import WORDS

NAMES = st.lists(st.sampled_from([word.strip(".") for word in WORDS]), min_size=1, max_size=12)
READS = 90
OF_ARTICLES = ("first sentence", "second half", "late sentence", "other words")


def article(sentences):
    """Sentences of words as a paragraph each."""
    return "\n".join(" ".join(words).capitalize() + "." for words in sentences)


ARTICLES = st.lists(st.lists(NAMES, min_size=2, max_size=6).map(article), min_size=1, max_size=4)


def prose(number, words=120, seed=0):
    """Documents of sentences of eight words."""
    draws = random.Random(seed)
    return [article([draws.choices(WORDS, k=8) for _ in range(words // 8)]) for _ in range(number)]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("MABERT_CACHE", str(tmp_path / "cache"))
    sizes = {"ARTICLES": 4, "LENGTH_IN_WORDS": (50, 200), "FACTS": 3, "LENGTHS": (40, 90)}
    for name, size in sizes.items():
        monkeypatch.setattr(retrieval, name, size)
    monkeypatch.setattr(rankers, "READS", READS)
    monkeypatch.setattr(rankers, "PASSAGE", 20)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return saved_teacher(tmp_path_factory.mktemp("teacher"), sentences="mean")


@settings(max_examples=50)
@given(ARTICLES)
def test_the_first_sentence_and_the_rest_are_the_article(articles):
    search = retrieval.by_first_sentence(articles)
    for whole, query, text in zip(articles, search.queries, search.texts, strict=True):
        assert f"{query} {text}".split() == whole.split()
        assert len(query.split()) >= retrieval.QUERY or not text


@settings(max_examples=50)
@given(ARTICLES)
def test_the_halves_are_the_article(articles):
    search = retrieval.by_second_half(articles)
    for whole, second, first in zip(articles, search.queries, search.texts, strict=True):
        assert f"{first} {second}".split() == whole.split()
        assert 0 <= len(second.split()) - len(first.split()) <= 1


@settings(max_examples=50)
@given(ARTICLES, st.integers(0, 100))
def test_a_late_sentence_is_taken_out_of_the_second_half(articles, seed):
    search = retrieval.by_late_sentence(articles, random.Random(seed))
    for whole, query, text in zip(articles, search.queries, search.texts, strict=True):
        lines = whole.split("\n")
        late = [n for n in range(len(lines) // 2, len(lines)) if lines[n] == query]
        assert any(text == " ".join([*lines[:n], *lines[n + 1 :]]) for n in late)
        long = [line for line in lines[len(lines) // 2 :] if len(line.split()) >= retrieval.QUERY]
        assert query in long or not long


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([40, 256, 1000]))
def test_a_hidden_fact_is_in_its_own_text_alone_between_sentences(seed, length):
    for search in retrieval.hide(length, prose(3), random.Random(seed)):
        assert len(set(search.queries)) == len(search.queries) == len(search.texts) == retrieval.FACTS
        for number, (query, text) in enumerate(zip(search.queries, search.texts, strict=True)):
            assert len(text.split()) == round(length * retrieval.WORDS_A_TOKEN)
            names = (query.split(" of ")[-1].strip("?"), " ".join(query.split()[2:4]))
            name = next(part for part in names if part in text)
            assert [name in other for other in search.texts] == [place == number for place in range(len(search.texts))]
            before = text[: text.index(name)].removesuffix("The passkey of ").strip()
            assert before == "" or before.endswith(".")


def test_the_same_seed_gives_the_same_searches_and_another_others():
    documents = prose(20)
    first, again, other = (retrieval.searches_of(documents, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    hidden = [(name, length) for length in (40, 90) for name in ("passkey", "needle")]
    assert [(each.name, each.length) for each in first] == [*((task, None) for task in OF_ARTICLES), *hidden]


def test_too_few_documents_are_counted():
    with pytest.raises(ValueError, match="holds 2 documents of 50 to 200 words; 4 are needed"):
        retrieval.searches_of([*prose(2), "too short", *prose(3, words=400)])


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(2, 8))
def test_places_are_those_of_a_sorted_list_and_ties_come_first(seed, number):
    scores = np.random.default_rng(seed).integers(0, 4, (number, number)).astype(float)
    for query, place in enumerate(retrieval.ranks_of(scores)):
        others = sorted(np.delete(scores[query], query), reverse=True)
        assert place == 1 + sum(score >= scores[query, query] for score in others)


def test_bm25_is_its_formula():
    texts = ["red red cat", "red dog and a mouse", "blue bird"]
    ranked = bm25(texts)
    scores = ranked(["red cat", "bird"])
    lengths = np.array([3, 4, 2])  # "a" is no word to it
    damping = 1.2 * (0.25 + 0.75 * lengths / lengths.mean())
    red, once = np.log(1 + 1.5 / 2.5), np.log(1 + 2.5 / 1.5)
    assert scores[0, 0] == pytest.approx(red * 2 / (2 + damping[0]) + once / (1 + damping[0]))
    assert scores[0, 1] == pytest.approx(red / (1 + damping[1]))
    assert scores[1].tolist() == [0, 0, pytest.approx(once / (1 + damping[2]))]
    assert not ranked(["zebra", "?"]).any()


@pytest.mark.parametrize("ranker", BY_WORDS.values(), ids=BY_WORDS)
def test_words_find_what_has_them(ranker):
    search = retrieval.by_second_half([" ".join([word, *WORDS[:20], word]) for word in ("alpha", "beta", "gamma")])
    found = retrieval.summary(search, *retrieval.scored(ranker, search))
    assert (found["top1"], found["mrr10"], found["texts"], found["queries"]) == (1, 1, 3, 3)
    assert found["ms"] > 0


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 100))
def test_neighbours_share_a_grouped_position(positions, more):
    found = grouped(torch.arange(positions)[:, None], positions + more)[:, 0]
    assert torch.equal(found, found.sort().values)
    assert torch.equal(found.unique(), torch.arange(positions))
    sizes = found.bincount()
    assert sizes.max() - sizes.min() <= 1


def test_a_teacher_reads_in_every_way(teacher):
    ways = rankers_of(str(teacher))
    positions = [f"{how} positions" for how in ("interpolated", "grouped", "recurrent")]
    ends = ["first 40 tokens", "mean over windows", *positions, "best passage", "best passage in context"]
    assert list(ways) == [f"{teacher}, {end}" for end in ends]
    first, windows, interpolated, grouped_, recurrent, *_ = ways.values()
    (long,) = prose(1)
    longer = long + " " + long.split()[0]
    words = load_tokenizer(teacher)
    assert len(words(long)["input_ids"]) > READS
    (beginning,) = first.index([long])
    cut = words.decode(words(long)["input_ids"][1:20])
    assert not np.allclose(beginning, windows.index([long])[0], atol=1e-3)
    for ranker in (windows, recurrent):  # which keep the positions of what fits
        np.testing.assert_allclose(ranker.index([cut])[0], first.index([cut])[0], atol=1e-5)
    for ranker in (interpolated, grouped_):
        assert not np.allclose(ranker.index([cut])[0], first.index([cut])[0], atol=1e-3)
    for ranker in (first, windows, interpolated, grouped_, recurrent):  # what lies beyond what is read is not looked at
        np.testing.assert_allclose(ranker.index([long])[0], ranker.index([longer])[0], atol=1e-6)


def test_a_model_with_enough_positions_reads_the_whole(tmp_path):
    place = saved_teacher(tmp_path / "long", positions=READS)
    assert list(rankers_of(str(place))) == [str(place), f"{place}, best passage", f"{place}, best passage in context"]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_whole_text_has_the_vector_that_embed_gives_it_prompt_included(tmp_path, pooling):
    place = saved_teacher(tmp_path / "long", sentences=pooling, positions=READS)
    (place / "sentence_bert_config.json").unlink()
    prompt, texts = {"prompts": {"query": "the wind sings: "}, "default_prompt_name": "query"}, ["a red cat sat"]
    bare = load(place).embed(texts, normalize=True, progress=False)
    (place / "config_sentence_transformers.json").write_text(json.dumps(prompt))
    wanted = load(place, precision="auto").embed(texts, normalize=True, progress=False)
    np.testing.assert_allclose(rankers_of(str(place))[str(place)].index(texts), wanted, atol=1e-2)
    assert abs(wanted - bare).max() > 0.1


def test_a_command_measures_and_writes(tmp_path, capsys, teacher):
    (tmp_path / "articles.txt").write_text("\n\n".join(prose(8)))
    words = ["bench", "retrieval", teacher, "--data", tmp_path / "articles.txt", "-o", tmp_path / "out"]
    assert main([str(word) for word in words]) == 0
    told = capsys.readouterr().out
    assert "texts found by questions" in told
    assert "needle 90" in told
    (file,) = (tmp_path / "out").glob("*-retrieval.json")
    result = json.loads(file.read_text())
    assert set(result) == {"environment", "data", "questions", "precision", "scores"}
    assert list(result["scores"])[:2] == ["BM25", "TF-IDF"]
    assert len(result["scores"]) == 2 + 2 * 7 + 1
    assert f"{teacher}, mean over windows and best passage, with BM25" in result["scores"]
    tasks = [*OF_ARTICLES, *["passkey", "needle"] * 2]
    for rows in result["scores"].values():
        assert [row["task"] for row in rows] == tasks
        for row in rows:
            low, high = row["top1_interval"]
            assert 0 <= low <= row["top1"] <= high <= 1
            assert row["top1"] <= row["mrr10"] <= 1


def test_tasks_that_are_named_score_as_among_all(tmp_path):
    data = tmp_path / "articles.txt"
    data.write_text("\n\n".join(prose(8)))
    every, some = (
        retrieval.run([], str(data), tmp_path, tasks=tasks)["scores"]["BM25"]
        for tasks in (None, ["needle", "late sentence"])
    )
    same = ("task", "length", "top1", "mrr10")
    wanted = [[row[name] for name in same] for row in every if row["task"] in ("late sentence", "needle")]
    assert [[row[name] for name in same] for row in some] == wanted
    with pytest.raises(ValueError, match=r"there is no task 'summary' for .*articles\.txt; there are first sentence, "):
        retrieval.run([], str(data), tmp_path, tasks=["summary"])


def test_questions_of_ones_own_are_asked_of_their_texts_alone(tmp_path, capsys, teacher):
    rows = [("cat", "a red cat sat"), ("mouse", "the grey mouse ran"), ("sat", "a red cat sat")]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps({"question": question, "text": text}) for question, text in rows))
    search = retrieval.own_search(str(file))
    assert (search.texts, search.own) == (["a red cat sat", "the grey mouse ran"], [0, 1, 0])
    assert main(["bench", "retrieval", str(teacher), "--questions", str(file), "-o", str(tmp_path / "out")]) == 0
    (written,) = (tmp_path / "out").glob("*-retrieval.json")
    assert json.loads(written.read_text())["scores"]["BM25"][0]["top1"] == 1
    file.write_text(json.dumps({"question": "cat", "text": "a red cat sat"}))
    assert main(["bench", "retrieval", str(teacher), "--questions", str(file)]) == 2
    assert "own.jsonl: a search needs two different texts or more; this table has 1" in capsys.readouterr().err


def test_a_text_without_words_is_found_by_nothing_and_spoils_nothing(teacher):
    ranker = rankers_of(str(teacher))[f"{teacher}, best passage"]
    scores = ranker(["", "a red cat sat"])(["cat", "mouse"])
    assert (scores[:, 1] > scores[:, 0]).all()
    assert np.isfinite(together(scores, np.array([[0.0, 0.0], [0.0, 1.0]]))).all()


def test_a_model_that_pools_by_its_first_token_has_no_passages_in_context(tmp_path):
    place = saved_teacher(tmp_path / "cls", sentences="cls", positions=READS)
    assert [way for way in rankers_of(str(place)) if "passage" in way] == [f"{place}, best passage"]


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        (
            "The Beastie Boys were an American hip hop group of three boys that formed in New York City in 1981.",
            "an American hip hop group of three that formed in New York City in 1981.",
        ),
        ("Rosebud was a schooner.", None),
        ("Nobody knows what the name of this old village on the hill may have meant to them.", None),
    ],
)
def test_a_definition_names_no_form_of_what_it_defines(sentence, question):
    assert retrieval.definition_in(sentence) == question


def test_questions_in_other_words_share_only_common_words_with_their_text():
    draws = random.Random(0)
    common, rare = [word.strip(".") for word in WORDS], iter([f"rare{number}" for number in range(10_000)])
    articles = []
    for _ in range(40):
        own = [next(rare) for _ in range(2)]
        first = [*draws.choices(common, k=10), *own, next(rare)]
        articles.append(article([first, [*draws.choices(common, k=10), *own]]))
    search = retrieval.by_common_words(articles)
    assert search.own == list(range(40))
    for query, whole, text in zip(search.queries, articles, search.texts, strict=True):
        words = re.findall(r"\w+", query.lower())
        shared = {word for word in words if word in re.findall(r"\w+", text.lower())}
        assert not any(word.startswith("rare") for word in shared)
        assert sum(word.startswith("rare") for word in words) == 1, "what the text lacks stays"
        assert set(words) <= set(re.findall(r"\w+", whole.lower()))


def test_vectors_and_words_count_alike_whatever_their_scales():
    draws = np.random.default_rng(0)
    vectors, words = draws.normal(size=(2, 5, 7))
    assert together(vectors) is vectors
    both = together(vectors, words)
    np.testing.assert_allclose(together(3 * vectors + 1, words / 5 - 2), both)
    np.testing.assert_allclose(together(words, vectors), both)
