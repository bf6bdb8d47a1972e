"""Entities read off tags, and how they are scored."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.entities import Entity, entities_of, is_tag, metric_names, types_of
from mabert.data.metrics import entity_scores

TYPES = ["LOC", "ORG", "PER"]
TAGS = st.lists(st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BI" for kind in TYPES)]), max_size=12)
SENTENCES = st.lists(st.tuples(TAGS, st.randoms()), min_size=1, max_size=6)


@st.composite
def spans(draw):
    """Entities in order, with words between some of them."""
    found, at = [], 0
    for kind, before, length in draw(
        st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.integers(1, 3)), max_size=5)
    ):
        found.append(Entity(kind, at + before, at + before + length))
        at += before + length
    return found, at + draw(st.integers(0, 2))


def tags_of(found, length):
    tags = ["O"] * length
    for kind, begin, end in found:
        tags[begin:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - begin - 1)
    return tags


@given(spans())
def test_tags_that_say_entities_are_read_as_these(made):
    found, length = made
    assert entities_of(tags_of(found, length)) == found


@given(TAGS)
def test_every_tagged_word_is_in_one_entity_of_its_type(tags):
    said = ["O"] * len(tags)
    for kind, begin, end in entities_of(tags):
        assert said[begin:end] == ["O"] * (end - begin)
        said[begin:end] = [kind] * (end - begin)
    assert said == [tag if tag == "O" else tag[2:] for tag in tags]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
    ],
)
def test_an_i_without_a_b_begins_an_entity(tags, found):
    assert entities_of(tags.split()) == found


def test_scores_are_those_worked_out_by_hand():
    true = ["B-PER I-PER O B-LOC", "B-LOC O O", "O B-PER"]
    # One of two persons whole; both places, and a third that is none.
    said = ["B-PER I-PER O B-LOC", "B-LOC O B-LOC", "O O"]
    scores = entity_scores([tags.split() for tags in said], [tags.split() for tags in true], ["LOC", "PER"])
    assert scores == pytest.approx(
        {
            "precision": 3 / 4,
            "recall": 3 / 4,
            "f1": 3 / 4,
            "precision_LOC": 2 / 3,
            "recall_LOC": 1,
            "f1_LOC": 4 / 5,
            "precision_PER": 1,
            "recall_PER": 1 / 2,
            "f1_PER": 2 / 3,
        }
    )


def test_half_an_entity_and_one_of_another_type_count_for_nothing():
    true, said = ["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "O", "B-PER"]
    assert set(entity_scores([said], [true], ["LOC", "PER"]).values()) == {0.0}


@settings(max_examples=15)
@given(SENTENCES)
def test_f1_is_the_harmonic_mean_whole_truth_is_one_and_order_counts_for_nothing(made):
    true = [tags for tags, _ in made]
    said = [draw.sample(tags, len(tags)) for tags, draw in made]
    scores = entity_scores(said, true, TYPES)
    assert tuple(scores) == metric_names(TYPES)
    total = scores["precision"] + scores["recall"]
    assert scores["f1"] == pytest.approx(2 * scores["precision"] * scores["recall"] / total if total else 0.0)
    there = any(map(entities_of, true))
    assert entity_scores(true, true, TYPES)["f1"] == float(there)
    order = random.Random(0).sample(range(len(true)), len(true))
    assert entity_scores([said[i] for i in order], [true[i] for i in order], TYPES) == scores


def test_what_is_a_tag():
    assert [tag for tag in ("O", "B-X", "I-a-b", "B-", "X", "E-X", "o", "") if is_tag(tag)] == ["O", "B-X", "I-a-b"]
    assert types_of(["O", "I-b", "B-a-c", "B-b"]) == ["a-c", "b"]
