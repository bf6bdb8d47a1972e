"""Words of a text and their pieces, whatever the tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.encode import encodings
from mabert.data.words import Words, first_pieces, words_of
from tests.data.conftest import KINDS

VOCABULARY = ["the", "river", "café", "12", "tor-que", ",", ".", "northern", "naïve", "\u200b", "a"]
WORDS = st.lists(st.sampled_from(VOCABULARY), max_size=12)


def encoding_of(tokenizer, text, length=None):
    ((_, encoding),) = encodings(tokenizer, [text], max_length=length, truncate=length is not None)
    return encoding


@given(words=st.lists(st.text(max_size=4), max_size=6))
def test_words_stand_where_they_say(words):
    text = Words(words)
    assert text == " ".join(words)
    assert [text[begin:end] for begin, end in text.spans] == words


@settings(deadline=None, max_examples=30)
@given(words=WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_words_first_piece_begins_it(trained, kind, words):
    text, tokenizer = Words(words), trained(kind)
    encoding = encoding_of(tokenizer, text)
    pieces = first_pieces(text, encoding, text.spans)
    found = [place for place in pieces if place is not None]
    assert found == sorted(set(found))
    for word, (begin, end), place in zip(words, text.spans, pieces, strict=True):
        if place is not None:
            first, last = encoding.offsets[place]
            assert word.startswith(text[first:last].strip())
            assert begin <= last <= end
        else:
            assert word == "\u200b"


@settings(deadline=None, max_examples=30)
@given(words=WORDS.filter(lambda words: "\u200b" not in words), length=st.integers(4, 12))
def test_words_that_are_cut_off_have_no_piece(tokenizer, words, length):
    text = Words(words)
    pieces = first_pieces(text, encoding_of(tokenizer, text, length), text.spans)
    whole = first_pieces(text, encoding_of(tokenizer, text), text.spans)
    assert pieces == [place if place is not None and place < length - 1 else None for place in whole]


def test_words_of_a_text_are_the_tokenizers(trained, kind):
    text = "The  quiet river, the café."
    encoding = encoding_of(trained(kind), text)
    words = [text[begin:end] for begin, end in words_of(text, encoding)]
    assert "".join(words) == text.replace(" ", "")
    assert {"quiet", "the"} <= set(words)
    assert None not in first_pieces(text, encoding, words_of(text, encoding))


def test_words_that_are_given_stay(tokenizer):
    text = Words(["the river,", "tor-que"])
    assert words_of(text, encoding_of(tokenizer, text)) == [(0, 10), (11, 18)]


@pytest.mark.parametrize("words", [[], [""], ["\u200b"]])
def test_nothing_has_no_piece(tokenizer, words):
    text = Words(words)
    assert first_pieces(text, encoding_of(tokenizer, text), text.spans) == [None] * len(words)
