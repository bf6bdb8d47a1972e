"""Words of a text and their pieces, whatever the tokenizer."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.encode import encodings
from mabert.data.words import Words, split_words, words_of
from tests.data.conftest import KINDS

VOCABULARY = ["the", "river", "café", "12", "tor-que", "northern", "naïve", "a", "U.S.", "O'Neil", "AT&T", "x,y"]
WORDS = st.lists(st.sampled_from(VOCABULARY), max_size=12)
CLOSING = st.text(st.sampled_from(",;:!?…”\u2019»\"')]}。、"), max_size=3)
OPENING = st.text(st.sampled_from("“\u2018«„\"'([{¿¡「"), max_size=3)


def encoding_of(tokenizer, text, length=None):
    ((_, encoding),) = encodings(tokenizer, [text], max_length=length, truncate=length is not None)
    return encoding


def words_in(text):
    return [text[begin:end] for begin, end in split_words(text)]


def pieces_of(tokenizer, text, length=None):
    return [word.pieces for word in words_of(text, encoding_of(tokenizer, text, length))]


@given(words=st.lists(st.text(max_size=4), max_size=6))
def test_given_words_stand_where_they_say(words):
    text = Words(words)
    assert text == " ".join(words)
    assert [text[begin:end] for begin, end in text.spans] == words


@given(words=WORDS, spaces=st.lists(st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\x1c"]), min_size=12))
def test_words_without_marks_at_their_ends_are_cut_at_spaces_alone(words, spaces):
    assert words_in("".join(f"{word}{space}" for word, space in zip(words, spaces, strict=False))) == words


@given(
    word=st.sampled_from(VOCABULARY).filter(lambda word: word != "a"),
    before=OPENING,
    after=CLOSING,
    stop=st.sampled_from(["", ".", "..."]),
)
def test_marks_around_a_word_are_no_part_of_it(word, before, after, stop):
    assert words_in(f"The {before}{word}{after} and Omar{after}{stop}") == ["The", word, "and", "Omar"]
    assert words_in(f"{before}{word}{after}{stop} ") == [word]


@given(st.text(st.sampled_from("aZ1é\u0301-_.,'\u2019s\"(” \n\u3000\u200b京都ア。、")))
def test_words_are_in_order_without_spaces_and_begin_and_end_with_no_mark(text):
    spans, last = split_words(text), 0
    for begin, end in spans:
        assert last <= begin < end
        last = end
        word = text[begin:end]
        assert not any(mark in word for mark in " \n\u3000。、")
        assert word[0] not in ".,'\u2019\"(”\u200b"
        assert word[-1] not in ",'\u2019\"(”\u200b"
        assert len(word) == 1 or not set(word) & set("京都")
    outside = "".join(
        text[end:begin] for (_, end), (begin, _) in zip([(0, 0), *spans], [*spans, (None,) * 2], strict=False)
    )
    letters = [mark for mark in outside if unicodedata.category(mark)[0] in "LN" and mark not in "s"]
    assert not letters, "all letters are in words"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("we met Ines Duarte.", "we met Ines Duarte"),
        ("We met Jean-Luc O'Neil, she said.", "We met Jean-Luc O'Neil she said"),
        ("in the U.S. The U.S.-based firm.", "in the U.S. The U.S.-based firm"),
        ("J.R. Smith; Ph.D. (e.g. J. Sato)", "J.R. Smith Ph.D. e.g. J. Sato"),
        ("Acme Inc. opened. Acme Inc., too", "Acme Inc. opened Acme Inc. too"),
        ("Acme Inc. Group", "Acme Inc Group"),
        ("Acme Inc.'s of the U.S.'s", "Acme Inc. of the U.S."),
        ("see example.com. Then", "see example.com Then"),
        ("wait... then J... left", "wait then J left"),
        ("Omar's and OMAR\u2019S (Ines's)", "Omar and OMAR Ines"),
        ("Omar 's", "Omar"),
        ("'s-Hertogenbosch's", "s-Hertogenbosch"),
        ("AT&T & Co, 50% -", "AT&T & Co 50% -"),
        ("e\u0301. E\u0301.", "e\u0301. E\u0301."),
        ("他见了Ines\uff0c然后去U.S.。", "他 见 了 Ines 然 后 去 U.S."),
        ("アナ・ドゥアルテです。はい", "アナ・ドゥアルテです はい"),
        ("\ufeffInes\u200b", "Ines"),
        ("“”, … (!) 's", ""),
    ],
)
def test_what_a_word_is(text, words):
    assert words_in(text) == words.split()


@settings(max_examples=30)
@given(words=st.lists(st.sampled_from([*VOCABULARY, ",", ".", "(12", "\u200b"]), max_size=12))
@pytest.mark.parametrize("kind", KINDS)
def test_a_words_first_piece_begins_it_whether_given_or_cut(trained, kind, words):
    text = Words(words)
    encoding = encoding_of(trained(kind), text)
    given = words_of(text, encoding)
    assert [text[begin:end] for (begin, end), _ in given] == words
    pieces = [piece for _, pieces in given for piece in pieces]
    assert pieces == sorted(set(pieces))
    for word, (span, pieces) in zip(words, given, strict=True):
        first = span[0] + word.startswith("(")
        holding = [place for place, (begin, end) in enumerate(encoding.offsets) if begin <= first < end]
        assert pieces == holding[:1] or word == "\u200b"
    there = [pieces for word, (_, pieces) in zip(words, given, strict=True) if word not in (",", ".", "\u200b")]
    assert [pieces for _, pieces in words_of(str(text), encoding)] == there


@settings(max_examples=30)
@given(words=WORDS, length=st.integers(4, 12))
def test_words_that_are_truncated_have_no_piece(tokenizer, words, length):
    text = Words(words)
    whole = pieces_of(tokenizer, text)
    assert pieces_of(tokenizer, text, length) == [[piece for piece in each if piece < length - 1] for each in whole]


@pytest.mark.parametrize("kind", KINDS)
def test_ideographs_have_a_piece_each_or_share_one(trained, kind):
    encoding = encoding_of(trained(kind), "a 京都")
    given, cut_ = (words_of(text, encoding) for text in (Words(["a", "京都"]), "a 京都"))
    assert [word.span for word in given] == [(0, 1), (2, 4)]
    assert [word.span for word in cut_] == [(0, 1), (2, 3), (3, 4)]
    assert given[1].pieces == list(dict.fromkeys(cut_[1].pieces + cut_[2].pieces))
    assert len(given[1].pieces) == (1 if kind == "pieces" else 2)


@pytest.mark.parametrize("words", [[], [""], ["\u200b"]])
def test_nothing_has_no_piece(tokenizer, words):
    assert pieces_of(tokenizer, Words(words)) == [[]] * len(words)
