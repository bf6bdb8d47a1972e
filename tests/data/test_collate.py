import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mabert.data.collate import Collator, FlatteningCollator
from mabert.data.mlm import MlmMasking

ROWS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=6)


@given(rows=ROWS)
def test_rows_come_back_and_the_rest_is_padding(rows):
    examples = [{"input_ids": torch.tensor(r), "labels": torch.tensor(r), "token_type_ids": [1] * len(r)} for r in rows]
    batch = Collator(0)(examples)
    width = max(map(len, rows))
    for key, fill in {"input_ids": 0, "labels": -100, "token_type_ids": 0, "attention_mask": 0}.items():
        assert batch[key].shape == (len(rows), width)
        assert batch[key].dtype == torch.int64
        for row, values in zip(batch[key].tolist(), rows, strict=True):
            assert row[len(values) :] == [fill] * (width - len(values))
    for i, values in enumerate(rows):
        assert batch["input_ids"][i, : len(values)].tolist() == batch["labels"][i, : len(values)].tolist() == values
        assert batch["attention_mask"][i].sum() == len(values) == batch["token_type_ids"][i].sum()


@pytest.mark.parametrize("collate", [Collator(0), FlatteningCollator()])
def test_labels_by_other_names_and_several_labels_a_text(collate):
    for name, values, dtype in (
        ("labels", [1, 0], torch.int64),
        ("label", [1, 0], torch.int64),
        ("labels", [2.5, 3.0], torch.float32),
    ):
        labels = collate([{"input_ids": [1, 2], name: values[0]}, {"input_ids": [1, 3, 4], name: values[1]}])["labels"]
        assert (labels.tolist(), labels.dtype) == (values, dtype)
    several = [{"input_ids": [1, 2], "labels": [1.0, 0.0, 1.0]}, {"input_ids": [1, 3, 4], "labels": [0.0, 0.0, 1.0]}]
    assert collate(several)["labels"].tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    marks = [{"input_ids": [1, 2], "special_tokens_mask": [1, 0], "attention_mask": [1, 1]}]
    assert "special_tokens_mask" not in collate(marks)


@pytest.mark.parametrize("collate", [Collator(0), FlatteningCollator()])
def test_what_is_padded_or_not_for_the_model_is_named(collate):
    with pytest.raises(ValueError, match="example 1 is padded; tokenize with padding=False"):
        collate([{"input_ids": [1]}, {"input_ids": [1, 0], "attention_mask": [1, 0]}])
    with pytest.raises(ValueError, match=r"the examples have 'text', .* as with a data set's remove_columns\('text'\)"):
        collate([{"input_ids": [1], "text": "a"}])
    with pytest.raises(ValueError, match="labels of example 0 are 2 for 3 tokens"):
        collate([{"input_ids": [1, 2, 3], "labels": [1, 2]}, {"input_ids": [1], "labels": [1]}])
    with pytest.raises(ValueError, match="token_type_ids of example 0 are one for 2 tokens"):
        collate([{"input_ids": [1, 2], "token_type_ids": 0}])


@given(rows=ROWS)
def test_flattened_rows_come_back_at_the_boundaries(rows):
    examples = [{"input_ids": r, "labels": r, "token_type_ids": [1] * len(r)} for r in rows]
    row = FlatteningCollator()(examples)
    cuts = row["cu_seq_lens_q"].tolist()
    assert row["cu_seq_lens_k"].tolist() == cuts
    assert row["max_length_q"] == row["max_length_k"] == max(map(len, rows))
    for values, start, end in zip(rows, cuts[:-1], cuts[1:], strict=True):
        assert row["input_ids"][0, start:end].tolist() == row["labels"][0, start:end].tolist() == values
        assert row["position_ids"][0, start:end].tolist() == list(range(len(values)))
    assert cuts[-1] == row["input_ids"].shape[1] == int(row["token_type_ids"].sum())


@pytest.mark.parametrize("name", ["labels", "label", "label_ids"])
def test_flattening_refuses_what_is_labelled_twice(tokenizer, name):
    plain, labelled = {"input_ids": [1]}, {"input_ids": [1], name: [1]}
    for examples in ([labelled], [plain, labelled]):
        with pytest.raises(ValueError, match=f"the examples bring {name}, and the collator was to make labels"):
            FlatteningCollator(MlmMasking(tokenizer))(examples)


@pytest.mark.parametrize("collate", [Collator(0), FlatteningCollator()])
def test_columns_that_only_some_examples_have_and_labels_by_two_names_are_refused(collate):
    some = [{"input_ids": [1]}, {"input_ids": [1], "labels": 1}]
    with pytest.raises(ValueError, match="example 1 has input_ids, labels, and the first input_ids: make them alike"):
        collate(some)
    with pytest.raises(ValueError, match="the examples have 'label_ids' and another column of labels"):
        collate([{"input_ids": [1], "labels": 1, "label_ids": 0}])
    assert collate([{"input_ids": [1], "attention_mask": [1]}, {"input_ids": [2]}])["input_ids"].numel() == 2


def test_flattening_hides_tokens_by_seed_and_company(tokenizer):
    texts = [tokenizer("the quiet river followed the ancient castle")["input_ids"] for _ in range(20)]

    def batch(seed, texts=texts):
        collate = FlatteningCollator(MlmMasking(tokenizer, probability=0.5), seed)
        return collate([{"input_ids": ids} for ids in texts])

    row = batch(0)
    hidden = row["labels"] != -100
    whole = torch.tensor([token for ids in texts for token in ids])
    assert 0 < hidden.sum() < hidden.numel()
    assert torch.equal(row["labels"][hidden], whole[hidden[0]])
    assert torch.equal(row["input_ids"][~hidden], whole[~hidden[0]])
    assert (row["input_ids"][hidden] == tokenizer.mask_token_id).any()
    assert torch.equal(batch(0)["input_ids"], row["input_ids"])
    assert not torch.equal(batch(1)["input_ids"], row["input_ids"])
    first = len(texts[0])
    assert not torch.equal(batch(0, texts[:7])["input_ids"][0, :first], row["input_ids"][0, :first])
    assert len({tuple(ids.tolist()) for ids in row["labels"][0].split(first)}) > 10
