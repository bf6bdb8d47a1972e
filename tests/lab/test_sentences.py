from __future__ import annotations

import random
import textwrap
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert_lab.demo.sentences import FUNCTION_WORDS, WORD_ORDER, corrupt_word_order, sentences, word_order_examples
from mabert_lab.english import unwrap

GRAMMAR = st.tuples(
    st.sampled_from(["The", "A", "This", "Every"]),
    st.sampled_from(["kettle", "old kettle", "well-made kettle", "user's kettle"]),
    st.sampled_from(["is on", "was put under", "has been beside", "stands by"]),
    st.sampled_from(["the stove", "a narrow shelf", "the stove, the table and the chair"]),
    st.sampled_from(["all day", "since the morning", "because nobody ever moved it from there"]),
    st.sampled_from([".", "!", "?"]),
).map(lambda parts: " ".join(parts[:5]) + parts[5])
SEEDS = st.integers(0, 2**32)


def skeleton(sentence):
    """The sentence with every word replaced: its punctuation and spaces."""
    return "".join("w" if c.isalpha() or c in "'-" else c for c in sentence).replace("w", "").split("\n")


@given(sentence=GRAMMAR, seed=SEEDS)
def test_only_the_order_of_inner_words_changes(sentence, seed):
    scrambled = corrupt_word_order(sentence, random.Random(seed))
    assert scrambled != sentence
    assert scrambled == corrupt_word_order(sentence, random.Random(seed))
    assert skeleton(scrambled) == skeleton(sentence)
    before, after = sentence.split(), scrambled.split()
    assert Counter(before) == Counter(after)
    for place, word in enumerate(before):
        if place == 0 or not word[-1].isalnum():
            assert after[place] == word


@given(sentence=GRAMMAR, seed=SEEDS)
def test_every_changed_place_swaps_a_function_word_and_another(sentence, seed):
    scrambled = corrupt_word_order(sentence, random.Random(seed))
    changed = [(old, new) for old, new in zip(sentence.split(), scrambled.split(), strict=True) if old != new]
    assert len(changed) == 2 * (1 + len(sentence.split()) // 16)
    for old, new in changed:
        assert (old.lower() in FUNCTION_WORDS) != (new.lower() in FUNCTION_WORDS)


@given(texts=st.lists(st.lists(GRAMMAR, min_size=1, max_size=3), min_size=1, max_size=4))
def test_sentences_of_documents_come_once_and_in_order(texts):
    documents = ["\n".join(" ".join(paragraph) for paragraph in [document, document]) for document in texts]
    flat = [sentence for document in texts for sentence in document]
    assert list(sentences(documents)) == list(dict.fromkeys(flat))


PARAGRAPHS = st.lists(st.lists(GRAMMAR, min_size=1, max_size=5).map(" ".join), min_size=1, max_size=4)


@given(paragraphs=PARAGRAPHS, width=st.integers(55, 100), gap=st.sampled_from(["\n", "\n\n", "\n \n\n"]))
def test_wrapped_paragraphs_give_their_sentences(paragraphs, width, gap):
    text = gap.join(textwrap.fill(paragraph, width) for paragraph in paragraphs)
    assert list(sentences([unwrap(text)])) == list(sentences(paragraphs))


@given(paragraphs=PARAGRAPHS, blank=st.booleans())
def test_a_paragraph_on_a_line_stays_one(paragraphs, blank):
    assert unwrap(("\n\n" if blank else "\n").join(paragraphs)).split("\n") == paragraphs


@given(paragraphs=PARAGRAPHS, width=st.integers(55, 100))
def test_unwrapping_twice_changes_nothing_more(paragraphs, width):
    once = unwrap("\n\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs))
    assert unwrap(once) == once


def test_headings_lists_initials_and_hyphens_at_line_ends():
    text = """CHAPTER I
        It was a bright cold day in the middle of April when Mr. and Mrs.
        Smith, who had been away, came back to the old house by the well-
        known road."""
    assert unwrap(text).split("\n") == [
        "CHAPTER I",
        "It was a bright cold day in the middle of April when Mr. and Mrs. Smith, who had been away, came back to the "
        "old house by the well-known road.",
    ]
    for stays in ("apples\npears\nplums", "", "A heading\n" + "It is a paragraph on one line. " * 5 + "So it is."):
        assert unwrap(stays) == stays


@pytest.mark.parametrize(
    "text",
    [
        "This is too short.",
        "This is (as it were) of no use to us.",
        "This is the value of 3 things at a time.",
        "Alice carried bricks, mortar, trowels, buckets.",
        " ".join(["This is what is far too long for the task"] * 5) + ".",
        "this is not the beginning of a sentence.",
        "This is not the end of a sentence, and",
    ],
)
def test_unfit_sentences_are_left_out(text):
    assert list(sentences([text])) == []


@settings(max_examples=30)
@given(real=st.lists(GRAMMAR, min_size=2, max_size=60, unique=True), seed=SEEDS, limit=st.none() | st.integers(2, 40))
def test_examples_are_balanced_and_repeatable(real, seed, limit):
    examples = word_order_examples(real, seed, limit)
    labels = examples["label"][:]
    assert len(labels) == min(limit or len(real), len(real))
    assert abs(2 * sum(labels) - len(labels)) <= 1
    assert examples["index"][:] == list(range(len(labels)))
    for text, label in zip(examples["text_a"][:], labels, strict=True):
        assert (text in real) == bool(label)
    bags = Counter(tuple(sorted(text.split())) for text in examples["text_a"])
    assert bags <= Counter(tuple(sorted(text.split())) for text in real)
    assert word_order_examples(real, seed, limit)[:] == examples[:]


def test_the_classes_are_named():
    assert WORD_ORDER.label_names == ("scrambled", "real")
    assert WORD_ORDER.main_metric == "accuracy"


def test_what_cannot_be_scrambled():
    for text in ("Stones roll downhill quickly.", "This is it.", "It is as it was of the by in."):
        with pytest.raises(ValueError, match=r"cannot scramble '.*': it needs function words and others"):
            corrupt_word_order(text, random.Random(0))
    with pytest.raises(ValueError, match="1 sentences are too few for two classes"):
        word_order_examples(["This is but one of them."])
