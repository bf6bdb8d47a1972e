"""Entities in plain text are those in the same words given one by one, and keep clear of marks."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mabert
from mabert import MaBertForTokenClassification
from mabert.data.words import split_words
from tests.infer.conftest import saved

TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
WHOLE = ["the", "bird", "Jean-Luc", "O'Neil", "U.S.", "J.R.", "J.", "AT&T", "x,y", "river", "U.S.-based", "50%"]
MARKS = [",", ".", "...", "!", "?", ";", ":", '"', "“", "”", "(", ")", "'s", "\u2019s", "…", "、", "。", "«", "»"]
WORDS = st.lists(st.lists(st.sampled_from(WHOLE), max_size=8), min_size=1, max_size=6)
TEXTS = st.lists(
    st.lists(st.sampled_from([*WHOLE, *MARKS, "京", "都", " ", " ", "\n"]), max_size=14).map("".join),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module", params=["any tags", "I-X everywhere"])
def tagger(request, tmp_path_factory, words):
    """A random tagger; or one that calls every token a part of the entity before it, marks too."""
    folder, names = tmp_path_factory.mktemp("tagger"), dict(enumerate(TAGS))
    labels = {"id2label": names, "label2id": {tag: number for number, tag in names.items()}, "num_labels": len(TAGS)}
    saved(MaBertForTokenClassification, folder, words, max_position_embeddings=128, **labels)
    model = MaBertForTokenClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.weight.mul_(0 if request.param == "I-X everywhere" else 30)
        model.classifier.bias.copy_(torch.tensor([0.0, 0.0, float(request.param == "I-X everywhere"), 0.0, 0.0]))
    model.save_pretrained(folder)
    return mabert.load(folder, device="cpu")


@settings(max_examples=20)
@given(sentences=WORDS)
def test_words_given_and_the_same_words_in_a_text_have_the_same_entities(tagger, sentences):
    texts = [" ".join(words) for words in sentences]
    assert tagger.predict(texts, progress=False) == tagger.predict(sentences, progress=False)


@settings(max_examples=30)
@given(texts=TEXTS)
def test_an_entity_stands_where_it_says_and_neither_begins_nor_ends_with_a_mark(tagger, texts):
    for text, answer in zip(texts, tagger.predict(texts, progress=False), strict=True):
        last = 0
        for entity in answer["entities"]:
            found, begin, end = entity["text"], entity["start"], entity["end"]
            assert text[begin:end] == found
            assert last <= begin < end
            last = end
            assert found[0] not in " \n.,!?;:\"“”()'\u2019…、。«»"
            assert found[-1] not in " \n,!?;:\"“”()'\u2019…、。«»"
            if found[-1] == ".":
                goes_on = re.match(r"[,;:?!]|['\u2019]s|\s+[^\w\s]*[a-z]", text[end:])
                start, _ = split_words(found)[-1]  # an ideograph is a word of its own
                assert goes_on or re.search(r"[^\W\d]\.\w\.$|(^|\W)[^\W\d]\.$", found[start:])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Ines Duarte.", ["Ines Duarte"]),
        ("Acme Inc. Group", ["Acme Inc. Group"]),
        ("King's House", ["King's House"]),
        ("Ines, Omar (Kofi)", ["Ines", "Omar", "Kofi"]),
        ("Ines... Omar", ["Ines", "Omar"]),
        ("“Ines Duarte”, Omar's", ["Ines Duarte", "Omar"]),
        ("京都、Omar", ["京都", "Omar"]),
        ("Acme Inc. opened", ["Acme Inc. opened"]),
    ],
)
@pytest.mark.parametrize("tagger", ["I-X everywhere"], indirect=True)
def test_a_full_stop_may_be_within_an_entity_and_other_marks_end_one(tagger, text, names):
    assert [entity["text"] for entity in tagger.predict([text], progress=False)[0]["entities"]] == names
