"""Contexts in windows, and the answers in them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.encode import encode_texts, windows
from mabert.data.passages import LONGEST_ANSWER, best_answer, passages_of
from tests.data.conftest import KINDS

CONTEXT = "the quiet river carried the captain beyond the northern village. the doctor visited the castle."


@given(first=st.integers(0, 3), count=st.integers(0, 60), room=st.integers(1, 20), overlap=st.integers(0, 19))
def test_windows_cover_all_and_share_what_they_should(first, count, room, overlap):
    if overlap >= room:
        return
    ids, around = list(range(count)), ["before"] * first
    divided = list(windows({"ids": [*around, *ids, "behind"]}, first, count, room, overlap))
    found = [(begin - first, end - first) for _, begin, end in divided]
    for (part, _, _), (begin, end) in zip(divided, found, strict=True):
        assert part == {"ids": [*around, *ids[begin:end], "behind"]}
    assert found[0][0] == 0
    assert found[-1][1] == count
    assert all(end - begin == min(room, count) for begin, end in found)
    assert all(before[1] - after[0] >= overlap for before, after in itertools.pairwise(found))
    assert count > room or len(found) == 1
    assert len(found) == 1 or len(found) == 1 + -(-(count - room) // (room - overlap)), "no more than are needed"


@settings(max_examples=20)
@given(question=st.sampled_from(["who", "where is the doctor"]), words=st.integers(0, 15), length=st.integers(28, 60))
@pytest.mark.parametrize("kind", KINDS)
def test_passages_are_the_question_and_parts_of_the_context(trained, kind, question, words, length):
    tokenizer, context = trained(kind), " ".join(CONTEXT.split()[:words])
    (whole,) = encode_texts(tokenizer, [question], [context], max_length=None)
    passages = passages_of(tokenizer, [question], [context], max_length=length)
    if len(whole["input_ids"]) <= length:
        assert [passage.item for passage in passages] == [whole]
    ids = whole["input_ids"]
    seen = set()
    for passage in passages:
        own, first, count = passage.item["input_ids"], passage.first, len(passage.pieces)
        assert len(own) <= length
        assert own[:first] == ids[:first]
        assert own[first + count :] == ids[len(ids) - (len(own) - first - count) :]
        assert {len(column) for column in passage.item.values()} == {len(own)}
        for place, (begin, end) in enumerate(passage.pieces):
            assert tokenizer.decode(own[first + place]).strip().strip("#") in ("", context[begin:end].strip())
            seen |= set(range(begin, end))
    assert {place for place, character in enumerate(context) if character != " "} <= seen


@settings(max_examples=40)
@given(first=st.integers(0, 14), count=st.integers(1, 3), length=st.integers(16, 40))
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_found_again_where_it_was_put(trained, kind, first, count, length):
    words = CONTEXT.split()
    begin = len(" ".join([*words[:first], ""]))
    text = " ".join(words[first : first + count])
    passages = passages_of(trained(kind), ["who"], [CONTEXT], max_length=length)
    places = [passage.place_of(begin, begin + len(text)) for passage in passages]
    logits = [np.zeros((len(passage.item["input_ids"]), 2)) for passage in passages]
    for place, scores in zip(places, logits, strict=True):
        if place is not None:
            scores[place[0], 0] = scores[place[1], 1] = 20
    if any(places):
        answer = best_answer(CONTEXT, passages, logits)
        assert (answer.answer, answer.start, answer.end) == (text, begin, begin + len(text))
        assert answer.probability > 0.3
    else:
        assert len(passages) > 1


def test_probabilities_are_a_softmax_over_all_places_and_none(tokenizer):
    passages = passages_of(tokenizer, ["who"], ["the river"], max_length=None)
    count = len(passages[0].pieces)
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(len(passages[0].item["input_ids"]), 2))
    first = passages[0].first
    scores = {(i, j): logits[first + i, 0] + logits[first + j, 1] for i in range(count) for j in range(i, count)}
    scores[None] = logits[0].sum()
    total = sum(map(np.exp, scores.values()))
    assert best_answer("the river", passages, [logits]).probability == pytest.approx(
        np.exp(max(scores.values())) / total
    )
    logits[0] = 30
    for nothing in (logits, np.zeros_like(logits)):  # none is as likely as any
        assert best_answer("the river", passages, [nothing])[:3] == ("", 0, 0)


def test_no_context_has_no_answer_and_no_answer_is_longer_than_the_longest(tokenizer):
    passages = passages_of(tokenizer, ["who"], [""], max_length=8)
    assert best_answer("", passages, [np.ones((len(passages[0].item["input_ids"]), 2))]) == ("", 0, 0, 1.0)
    context = " ".join(["a"] * (LONGEST_ANSWER + 9))
    (passage,) = passages_of(tokenizer, ["who"], [context], max_length=None)
    logits = np.zeros((len(passage.item["input_ids"]), 2))
    logits[passage.first, 0] = logits[passage.first + LONGEST_ANSWER, 1] = 9
    assert best_answer(context, [passage], [logits]).end < len(context) - 8 * 2


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    message = r"the input: question 3 leaves room for \d+ tokens of its context in 16; 5 are needed, so shorten it"
    with pytest.raises(ValueError, match=message):
        passages_of(tokenizer, ["the river " * 6], [CONTEXT], max_length=16, before=2)
