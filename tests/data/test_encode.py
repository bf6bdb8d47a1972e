import itertools
import re

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mabert.data import encode
from mabert.data.collate import Collator
from mabert.data.encode import check_texts, encode_rows, encode_texts

TEXTS = st.lists(st.sampled_from(["the river", "a quiet castle .", "", "engine " * 9]), min_size=1, max_size=7)


@given(texts=TEXTS, pair=st.booleans(), length=st.integers(4, 20))
def test_items_are_the_tokenizers_own(tokenizer, texts, pair, length):
    seconds = texts[::-1] if pair else None
    kinds = ("input_ids", "token_type_ids")
    items = encode_texts(tokenizer, texts, seconds, max_length=length, truncate=True)
    for row, item in enumerate(items):
        pairs = [seconds[row]] if seconds else None
        alone = tokenizer([texts[row]], pairs, truncation=True, max_length=length)
        assert item == {kind: alone[kind][0] for kind in kinds}
        assert len(item["input_ids"]) <= length


@pytest.mark.parametrize("kind", [list, tuple, pd.Series])
def test_neither_how_many_are_encoded_at_once_shows_nor_where_they_stand(tokenizer, monkeypatch, kind):
    texts = [f"the river {i}" for i in range(10)]
    whole = encode_texts(tokenizer, texts, texts, max_length=64)
    monkeypatch.setattr(encode, "_AT_ONCE", 3)
    assert encode_texts(tokenizer, kind(texts), kind(texts), max_length=64) == whole


@given(texts=TEXTS, pair=st.booleans(), length=st.integers(4, 20))
def test_texts_that_are_cut_are_counted(tokenizer, texts, pair, length):
    columns = {"text_a": texts, **({"text_b": texts[::-1]} if pair else {})}
    whole = encode_rows(columns, tokenizer, 1000)
    cut = encode_rows(columns, tokenizer, length, truncate=True)
    assert (whole.cut, cut.cut) == (0, sum(tokens > length for tokens in whole.lengths))
    assert whole.windowed == cut.windowed == 0


@given(texts=TEXTS, length=st.integers(4, 20))
def test_longer_texts_are_read_in_windows_that_hold_all_of_them(tokenizer, texts, length):
    labels = list(range(len(texts)))
    whole = encode_rows({"text_a": texts, "label": labels}, tokenizer, None)
    parts = encode_rows({"text_a": texts, "label": labels}, tokenizer, length)
    assert parts.windowed == sum(tokens > length for tokens in whole.lengths)
    each = [parts[place] for place in range(len(parts))]
    for number, tokens in enumerate(whole.lengths):
        own = [item for item in each if item["labels"] == number]
        first, *ids, last = whole[number]["input_ids"]
        assert all(item["input_ids"][0] == first and item["input_ids"][-1] == last for item in own)
        assert all(len(item["input_ids"]) == len(item["token_type_ids"]) == min(tokens, length) for item in own)
        read = [item["input_ids"][1:-1] for item in own]
        again = len(own) * len(read[0]) - len(ids)  # what the last window shares with the one before
        assert [*itertools.chain(*read[:-1]), *read[-1][again:]] == ids
    values = np.random.default_rng(0).normal(size=(len(parts), 3)).astype(np.float32)
    numbers = np.array([item["labels"] for item in each])
    means = parts.by_row(values)
    assert means.dtype == np.float32
    for number in labels:
        np.testing.assert_allclose(means[number], values[numbers == number].mean(0), rtol=1e-5, atol=1e-6)


def test_pairs_are_refused_or_cut_where_they_are_longer(tokenizer):
    pairs = {"text_a": ["the river"] * 2, "text_b": ["a", "the river " * 8]}
    with pytest.raises(ValueError, match="1 of 2 texts are longer than 9 tokens"):
        encode_rows(pairs, tokenizer, 9)
    with pytest.raises(ValueError, match="max_length is 2; special tokens and one token of text need 3"):
        encode_rows({"text_a": ["the river"]}, tokenizer, 2)


def test_long_texts_are_counted_unless_they_may_be_cut(tokenizer):
    texts = ["the river", "the river " * 8, "the river", "the river " * 4]
    message = r"^dev: 2 of 4 texts are longer than 8 tokens \(the first is text 2, the longest text 2 with 18\); sh"
    with pytest.raises(ValueError, match=message):
        encode_texts(tokenizer, texts, max_length=8, name="dev")
    for limit, truncate, lengths in (
        (None, False, [4, 18, 4, 10]),
        (None, True, [4, 18, 4, 10]),
        (8, True, [4, 8, 4, 8]),
    ):
        items = encode_texts(tokenizer, texts, max_length=limit, truncate=truncate)
        assert [len(item["input_ids"]) for item in items] == lengths


def test_bad_arguments(tokenizer):
    with pytest.raises(ValueError, match="max_length is 3; special tokens and one token of text need 4"):
        encode_texts(tokenizer, ["a"], ["b"], max_length=3)
    with pytest.raises(ValueError, match="dev: 1 first texts and 2 second ones"):
        encode_texts(tokenizer, ["a"], ["b", "c"], max_length=9, name="dev")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (["a", float("nan")], None, "dev: text 12 is nan, not text"),
        (("a", "b", None), None, "dev: text 13 is None, not text"),
        (pd.Series(["a", "b", None, "d"], dtype=object)[1:], None, "dev: text 12 is None, not text"),
        ([b"a"], None, "dev: text 11 is b'a', not text"),
        ([["long"] * 99], None, "dev: text 11 is ['long', 'long', 'long', 'long', 'long',, not text"),
        ([pd.Series([1, 2])], None, "dev: text 11 is 0 1 1 2 dtype: int64, not text"),
        (["a", 5], ["a", "b"], "dev: the first text of pair 12 is 5, not text"),
        (["a", "b"], [float("nan"), "b"], "dev: the second text of pair 11 is nan, not text"),
    ],
)
def test_what_is_no_text_is_named_by_its_number(tokenizer, first, second, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_texts(first, second, "dev", before=10)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        encode_texts(tokenizer, first, second, max_length=9, name="dev", before=10)


@pytest.mark.parametrize("label", [[1, 0], [2.5, 1.0], None])
def test_a_data_set_makes_batches(tokenizer, label):
    columns = {"text_a": ["the river", "the river crossed"], "text_b": ["a", "b"], "index": [0, 1]}
    data = encode_rows(columns | ({"label": label} if label else {}), tokenizer, 16)
    assert len(data) == 2
    assert data.lengths == [len(data[0]["input_ids"]), len(data[1]["input_ids"])]
    batch = Collator(tokenizer.pad_token_id)([data[0], data[1]])
    expected = tokenizer(columns["text_a"], columns["text_b"], padding=True, return_tensors="pt")
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[key], expected[key])
    assert ("labels" in batch) == bool(label)
    assert not label or batch["labels"].tolist() == label
