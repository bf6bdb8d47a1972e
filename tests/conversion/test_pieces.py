"""Pieces of documents: within bounds, nothing twice, of all sources alike, whole sentences where there are some."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mabert.conversion.pieces import SHORTEST, cut_pieces
from mabert.conversion.resolve import some
from tests.conversion.helpers import CLS, PAIR, SEP, SINGLE, STOP, Words, pieces_of, source

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=12)


@settings(max_examples=30)
@given(LENGTHS, st.integers(16, 200), st.integers(0, 100))
def test_everything_is_taken_once_within_bounds_and_documents(lengths, length, seed):
    documents = source(lengths)
    pieces = pieces_of([documents], length, seed=seed)
    rows = [pieces[index]["input_ids"].tolist() for index in range(len(pieces))]
    assert [len(row) for row in rows] == pieces.lengths
    assert all(3 <= len(row) <= length for row in rows)
    assert all((row[0], row[-1]) == (CLS, SEP) for row in rows)
    inside = [row[1:-1] for row in rows]
    assert sorted(itertools.chain(*inside)) == documents.cache.ids.tolist()
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for row in inside:
        assert row == list(range(row[0], row[-1] + 1))
        assert owner[row[0] - 100] == owner[row[-1] - 100]
        ends = row[-1] - 100 + 1 == documents.stops[owner[row[0] - 100]]
        assert ends or len(row) >= min(SHORTEST, length - 2)


@settings(max_examples=30)
@given(LENGTHS, st.integers(16, 100), st.integers(1, 500), st.integers(0, 100))
def test_the_first_that_reach_the_tokens_are_taken(lengths, length, tokens, seed):
    documents = source(lengths)
    there = sum(pieces_of([documents], length, seed=seed).lengths)
    if there < tokens:
        with pytest.raises(ValueError, match=rf"the text has {there:,} tokens to learn from, {tokens:,} are asked for"):
            pieces_of([documents], length, tokens, seed)
        return
    assert tokens <= sum(pieces_of([documents], length, tokens, seed).lengths) < tokens + length


def test_the_same_seed_gives_the_same_pieces_and_another_others():
    documents = [source([200, 300, 50])]
    first, again, other = (pieces_of(documents, seed=seed).places.tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first != sorted(first)


def test_sources_give_alike_many_tokens():
    long, short = source([400] * 50), source([30] * 200, first=10**6)
    pieces = pieces_of([long, short], tokens=4000)
    told = [sum(pieces.lengths[i] for i in np.flatnonzero(pieces.places[:, 0] == s)) for s in (0, 1)]
    assert all(2000 <= tokens < 2000 + 64 for tokens in told)
    assert all((pieces[i]["input_ids"][1:-1] >= 10**6).all() == (pieces.places[i, 0] == 1) for i in range(len(pieces)))


def test_a_source_that_is_too_short_is_named():
    with pytest.raises(ValueError, match=r"to learn from, 4,000 are asked for, 2,000 of each of 2 sources") as told:
        pieces_of([source([400] * 50), source([30])], tokens=4000)
    assert "\n" not in str(told.value)


def test_pieces_end_with_sentences_where_one_ends_in_their_second_half():
    pieces = pieces_of([source([5000], every=7)], length=100)
    rows = [pieces[index]["input_ids"] for index in range(len(pieces))]
    ends = [row[-2].item() for row in rows if len(row) > 14]  # in half of which a sentence ends
    assert len(ends) > 20
    assert sum(end == STOP for end in ends) >= len(ends) - 1  # all but the document's last
    lengths = pieces_of([source([5000])], length=100).lengths
    assert min(sorted(lengths)[1:]) >= SHORTEST + 2
    assert len(set(lengths)) > 20


def texts_of(ids):
    """The texts between special tokens."""
    return [list(own) for special, own in itertools.groupby(ids.tolist(), key=(CLS, SEP).__contains__) if not special]


@settings(max_examples=30)
@given(LENGTHS, st.integers(16, 100), st.integers(12, 100), st.integers(0, 100), st.booleans())
def test_a_pair_is_neighbouring_pieces_and_of_half_the_pairs_second_texts_are_exchanged(
    lengths, length, longest_pair, seed, both
):
    assume(sum(lengths) > 1)
    longest_pair = min(length, longest_pair)
    frames = (SINGLE, PAIR) if both else (PAIR,)
    pieces = pieces_of([source(lengths)], length, seed=seed, frames=frames, longest_pair=longest_pair)
    items = [pieces[index] for index in range(len(pieces))]
    assert [len(item["input_ids"]) for item in items] == pieces.lengths
    apart = 0
    for index, (item, is_pair, size) in enumerate(zip(items, pieces.are_pairs, pieces.lengths, strict=True)):
        found = texts_of(item["input_ids"])
        assert len(found) == 1 + is_pair
        assert is_pair == (not both or index % 2) or len(found[0]) == 1, "frames take turns; one token makes no pair"
        assert all(text == list(range(text[0], text[-1] + 1)) for text in found)
        assert size <= (longest_pair if is_pair else length)
        first = len(found[0]) + 2
        assert item["token_type_ids"].tolist() == [0] * first + [1] * (size - first)
        apart += is_pair and found[1][0] != found[0][-1] + 1
    assert apart <= -(-pieces.are_pairs.sum() // 2)
    assert apart >= pieces.are_pairs.sum() // 2 - 1


def test_a_pair_is_cut_where_a_sentence_ends():
    pieces = pieces_of([source([3000], every=7)], length=100, frames=(PAIR,))
    firsts = [texts_of(pieces[index]["input_ids"])[0] for index in range(len(pieces))]
    firsts = [first for first in firsts if len(first) > 7]
    assert len(firsts) > 20
    assert all(first[-1] == STOP for first in firsts)


def test_lengths_are_log_uniform():
    inside = np.array(pieces_of([source([200_000])], length=514).lengths) - 2
    shares = [((inside >= low) & (inside < 2 * low)).mean() for low in (8, 16, 32, 64, 128, 256)]
    np.testing.assert_allclose(shares, 1 / 7, atol=0.04)


def test_a_vocabulary_without_ends_of_sentences_will_do():
    class Bytes(Words):
        def get_vocab(self):
            return {"word": 4}

    pieces = cut_pieces([source([500])], Bytes(), length=64, tokens=None, seed=0, frames=(SINGLE,))
    assert sum(pieces.lengths) == 500 + 2 * len(pieces)


def test_some_pieces_are_the_first_short_ones_that_have_the_tokens():
    pieces = pieces_of([source([3000])], length=300)
    longest = sorted(pieces.lengths)[len(pieces) // 3]
    short = [length for length in pieces.lengths if length <= longest]
    found = [len(each["input_ids"]) for each in some(pieces, 50, longest)]
    assert found == short[: len(found)]
    assert sum(found[:-1]) < 50 <= sum(found)
    assert [len(each["input_ids"]) for each in some(pieces, 10**9, longest)] == short
    assert [len(each["input_ids"]) for each in some(pieces, 1, 2)] == pieces.lengths[:1], "none is so short"
