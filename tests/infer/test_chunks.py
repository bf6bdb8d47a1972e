"""Texts as a stream: the same answers as all at once, in memory that does not grow with their number."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import mabert
from mabert.infer import answers
from mabert.infer import texts as chunking
from mabert.infer.answers import TextOptions
from mabert.infer.texts import chunks
from mabert.machine.progress import Bar
from tests.infer.conftest import Counted
from tests.tolerances import VECTORS

WORDS = ["the bird sings", "a river", "the old stone house", "wind"]
HOW = TextOptions(progress=False)


@given(sizes=st.lists(st.integers(0, 9), max_size=20), pair=st.booleans())
def test_windows_hold_every_row_once_in_order_and_keep_to_their_size(sizes, pair):
    rows = [("x" * size, "y") if pair else ("x" * size,) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "CHUNK_TEXTS", 4)
        patch.setattr(chunking, "CHUNK_CHARACTERS", 16)
        cut = list(chunks(iter(rows)))
    assert [row for chunk in cut for row in chunk.rows] == rows
    assert [chunk.before for chunk in cut] == [sum(len(w.rows) for w in cut[:at]) for at in range(len(cut))]
    for chunk in cut:
        assert 1 <= len(chunk.rows) <= 4
        assert sum(len(text) for row in chunk.rows[:-1] for text in row) < 16
    for chunk in cut[:-1]:
        assert not chunk.last
        assert len(chunk.rows) == 4 or sum(len(text) for row in chunk.rows for text in row) >= 16


@pytest.mark.parametrize("limit", [("CHUNK_TEXTS", 3), ("CHUNK_CHARACTERS", 30), ("CHUNK_TEXTS", 1)])
def test_answers_are_those_of_all_texts_at_once(masked_lm, classifier, monkeypatch, limit):
    texts = WORDS * 3
    embedding, labelling = mabert.load(masked_lm), mabert.load(classifier)
    vectors = embedding.embed(texts)
    alone = embedding.embed(texts, deterministic=True)
    labels = labelling.predict(texts, texts[::-1], deterministic=True)
    guesses = embedding.fill_mask([f"[MASK] {text}" for text in texts], deterministic=True)
    monkeypatch.setattr(chunking, *limit)
    np.testing.assert_allclose(embedding.embed(texts), vectors, **VECTORS)
    np.testing.assert_array_equal(embedding.embed(texts, deterministic=True), alone)
    assert labelling.predict(texts, texts[::-1], deterministic=True) == labels
    assert embedding.fill_mask([f"[MASK] {text}" for text in texts], deterministic=True) == guesses
    rows = [row for chunk, _ in labelling.labels(iter([(text,) for text in texts]), HOW) for row in chunk]
    assert rows == [(text,) for text in texts]


def test_no_texts_are_no_windows_and_a_full_one_does_not_wait_for_what_comes_next(masked_lm, classifier, monkeypatch):
    assert list(chunks([])) == []
    assert mabert.load(masked_lm).fill_mask([]) == mabert.load(classifier).predict([], []) == []
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    source = iter([("0",), ("1",), ("2",)])
    assert next(chunks(source)).rows == [("0",), ("1",)]
    assert next(source) == ("2",)


@pytest.mark.parametrize("passages", [None, {}, {"context": True}])
def test_memory_does_not_grow_with_the_number_of_texts(masked_lm, monkeypatch, passages):
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 8)
    rows, model = Counted(WORDS if passages is None else ["the bird. A river!"], 200), mabert.load(masked_lm)
    if passages is None:
        assert sum(len(vectors) for _, vectors in model.vectors(iter(rows), HOW)) == 200
    else:  # two a text
        found = model.passage_vectors(iter(rows), HOW, 8, **passages)
        assert [number for each in found for number in each.text] == [number // 2 for number in range(400)]
    assert 8 <= rows.most <= 3 * 8


def test_a_text_that_is_wrong_has_its_number_in_the_whole_input(masked_lm, monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 3)
    model = mabert.load(masked_lm)
    texts = [*WORDS, "bird " * 40, "wind"]
    told = r"1 of 3 texts are longer than 24 tokens \(the first is text 5, the longest text 5 with 42\)"
    with pytest.raises(ValueError, match=f"^the input, texts 4 to 6: {told}"):
        model.embed(texts)
    with pytest.raises(ValueError, match=r"text 5 has no \[MASK\] to fill"):
        model.fill_mask([*["[MASK]"] * 4, "wind"])
    with pytest.raises(ValueError, match=r"^the input, texts 4 to 5: text 5 is None, not text$"):
        list(model.vectors([(text,) for text in [*WORDS, None]], HOW))
    with pytest.raises(ValueError, match=r"text 5 has 2 \[MASK\], of which cutting it to 24 tokens leaves 1"):
        model.fill_mask([*["[MASK]"] * 4, "bird " * 21 + "[MASK] [MASK]"], truncate=True)


@pytest.fixture
def bar(monkeypatch):
    """What is told to the bar: totals, and amounts that are done."""
    told, done = [], []

    class Spy(Bar):
        def __init__(self, title, total, show):
            told.append(total)
            super().__init__(title, total, show=False)

        def add(self, count, total=None):
            done.append(count)
            if total and total not in told:
                told.append(total)

    monkeypatch.setattr(answers, "Bar", Spy)
    return told, done


@pytest.mark.parametrize(("known", "totals"), [(True, [5]), (False, [None, 5])])
def test_progress_counts_texts_and_knows_the_total_as_soon_as_it_can(masked_lm, monkeypatch, bar, known, totals):
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    rows = [(text,) for text in [*WORDS, "wind"]]
    assert len(list(mabert.load(masked_lm).vectors(rows if known else (row for row in rows), HOW))) == 3
    told, done = bar
    assert told == totals
    assert sum(done) == pytest.approx(5)


def test_progress_of_a_text_is_its_share_of_the_tokens(masked_lm, bar):
    mabert.load(masked_lm).embed(["bird " * 18, "bird", "bird"], deterministic=True)
    assert [count for count in bar[1] if count] == pytest.approx([3 * 20 / 26, 3 * 3 / 26, 3 * 3 / 26])


def test_a_bar_takes_a_total_that_comes_late_and_leaves_standard_output_to_the_answers():
    """Else their bytes would stay behind what rich puts in its place, and a full disk be noticed after the end."""
    terminal, before = Console(file=io.StringIO(), force_terminal=True, width=120), sys.stdout
    with Bar("embedding", None, console=terminal) as bar:
        bar.add(2)
        bar.add(1, 4)
        assert sys.stdout is before
    assert "embedding" in terminal.file.getvalue()
    assert "3/4" in terminal.file.getvalue()


def test_lines_of_progress_are_no_answers_and_are_not_written_unasked(ten_seconds_a_look, masked_lm, capsys):
    model = mabert.load(masked_lm)
    model.embed(WORDS)
    out, err = capsys.readouterr()
    assert out == ""
    assert "embedding  4/4" in err
    model.embed(WORDS, progress=False)
    assert capsys.readouterr() == ("", "")
