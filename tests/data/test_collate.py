from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.collate import Collator

ROWS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=6)


@settings(deadline=None)
@given(rows=ROWS, multiple=st.sampled_from([1, 8]), room=st.none() | st.integers(20, 30))
def test_rows_come_back_and_the_rest_is_padding(rows, multiple, room):
    examples = [{"input_ids": torch.tensor(r), "labels": torch.tensor(r), "token_type_ids": [1] * len(r)} for r in rows]
    batch = Collator(0, multiple, room)(examples)
    longest = max(map(len, rows)) if room is None else room
    width = batch["input_ids"].shape[1]
    assert width % multiple == 0
    assert longest <= width < longest + multiple
    for key, fill in {"input_ids": 0, "labels": -100, "token_type_ids": 0, "attention_mask": 0}.items():
        assert batch[key].shape == (len(rows), width)
        assert batch[key].dtype == torch.int64
        for row, values in zip(batch[key].tolist(), rows, strict=True):
            assert row[len(values) :] == [fill] * (width - len(values))
    for i, values in enumerate(rows):
        assert batch["input_ids"][i, : len(values)].tolist() == batch["labels"][i, : len(values)].tolist() == values
        assert batch["attention_mask"][i].sum() == len(values) == batch["token_type_ids"][i].sum()


def test_labels_of_whole_examples():
    classes = Collator(0)([{"input_ids": [1, 2], "labels": 1}, {"input_ids": [1], "labels": 0}])
    assert classes["labels"].dtype == torch.int64
    assert classes["labels"].tolist() == [1, 0]
    scores = Collator(0)([{"input_ids": [1], "labels": 2.5}, {"input_ids": [1], "labels": 3.0}])
    assert scores["labels"].dtype == torch.float32
    assert scores["labels"].tolist() == [2.5, 3.0]


def test_an_example_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="an example of 5 tokens does not fit the padded length 4"):
        Collator(0, length=4)([{"input_ids": [1] * 5}])
