"""Tasks of tables of texts: their classes, scores and lists of labels."""

import json
import math
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.own import load_own
from mabert.data.tasks import Columns, _classes, label_text
from tests.data.conftest import TABLES, write_table

COLUMNS = Columns("text", label="topic")
LABELS = st.lists(st.lists(st.sampled_from(["art", "law", "sea"]), unique=True, max_size=3), max_size=6)


def labelled(path, *labels, text="x"):
    return write_table(path, [{"text": text, "topic": label} for label in labels])


def test_the_classes_may_be_an_array(tmp_path):
    task, _ = load_own({"train": labelled(tmp_path / "t.csv", *"ab" * 10)}, COLUMNS, label_names=np.array(["b", "a"]))
    assert task.label_names == ("b", "a")


@pytest.mark.parametrize("kind", TABLES)
def test_a_task_from_three_files(tmp_path, kind):
    files = {
        "train": write_table(tmp_path / f"a{kind}", [{"text": "x", "other": "y", "topic": t} for t in ("sea", "art")]),
        "validation": write_table(tmp_path / f"b{kind}", [{"text": "x", "other": "z", "topic": "sea"}]),
        "test": write_table(tmp_path / f"c{kind}", [{"text": "x", "other": "w"}]),
    }
    task, loaded = load_own(files, Columns("text", "other", "topic"), name="news")
    assert (task.name, task.label_names, task.main_metric) == ("news", ("art", "sea"), "accuracy")
    assert loaded["train"][:] == {"text_a": ["x", "x"], "text_b": ["y", "y"], "label": [1, 0], "index": [0, 1]}
    assert loaded["validation"]["label"][:] == [1]
    assert loaded["test"].column_names == ["text_a", "text_b", "index"]


@pytest.mark.parametrize("kind", TABLES)
def test_numbers_are_classes_in_numeric_order_or_scores(tmp_path, kind):
    path = labelled(tmp_path / f"t{kind}", 10, 9, 2, -1)
    task, loaded = load_own({"train": path, "validation": path}, COLUMNS)
    assert task.label_names == ("-1", "2", "9", "10")
    assert loaded["train"]["label"][:] == [3, 2, 1, 0]
    task, loaded = load_own({"train": path, "validation": path}, COLUMNS, kind="regression")
    assert (task.is_regression, task.label_names) == (True, ())
    assert loaded["train"]["label"][:] == [10.0, 9.0, 2.0, -1.0]


@settings(max_examples=10)
@given(labels=LABELS)
@pytest.mark.parametrize("kind", TABLES)
def test_a_row_may_have_several_labels_in_any_format(tmp_path_factory, kind, labels):
    labels = [*labels, ["art", "law"], ["sea"]]
    written = labels if kind in (".jsonl", ".parquet") else map("|".join, labels)
    path = labelled(tmp_path_factory.mktemp("table") / f"t{kind}", *written)
    task, loaded = load_own({"train": path, "validation": path}, COLUMNS, kind="several")
    assert (task.label_names, task.kind, task.main_metric) == (("art", "law", "sea"), "several", "f1_micro")
    assert loaded["train"]["label"][:] == [[float(name in names) for name in task.label_names] for names in labels]


@given(order=st.permutations(["1", "01", "001", "0001", "2", "02", "-1", "10" * 3000]))
def test_classes_have_one_order_whatever_the_order_of_the_rows(order):
    labels = [(name, "") for name in order]
    assert _classes(Path("t.csv"), "topic", labels) == ("-1", "0001", "001", "01", "1", "02", "2", "10" * 3000)


@pytest.mark.parametrize(
    ("labels", "how", "message"),
    [
        ("aaa", {}, "all labels in 'topic' are 'a'; a classifier needs at least two classes"),
        ("acb", {"label_names": ["a", "b"]}, r"t\.jsonl, line 2: unknown label 'c'; known are a, b"),
        (["high"], {"kind": "regression"}, r"t\.jsonl, line 1: the score 'high' is not a number"),
        ([[], []], {"kind": "several"}, r"t\.jsonl: all lists of labels in 'topic' are empty"),
        ([["art"], []], {"kind": "several"}, "all labels in 'topic' are 'art'; a classifier needs at least two"),
        ([["art", " "], ["law"]], {"kind": "several"}, r"line 1: 'topic' is ' ', which is no label"),
        (["art||law", "law"], {"kind": "several"}, r"line 1: 'topic' is '', which is no label"),
        ([["art", ["law"]]], {"kind": "several"}, r"line 1: 'topic' is \['law'\]; a label is one text or number"),
    ],
)
def test_labels_that_are_refused(tmp_path, labels, how, message):
    with pytest.raises(ValueError, match=message):
        load_own({"train": labelled(tmp_path / "t.jsonl", *labels)}, COLUMNS, **how)


NO_LABEL = {"nothing": "", "a list": ["a"], "a mapping": {"a": 1}, "bytes": b"a", "NaN": math.nan}
NO_LABEL |= {"an infinity": math.inf, "another": -math.inf}


@pytest.mark.parametrize("value", NO_LABEL.values(), ids=NO_LABEL)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_label_is_one_value_and_anything_else_is_named_with_its_row(tmp_path, value, kind):
    told = rf"1: 'topic' is {re.escape(repr(value))}(, which is no label|; a label is one text or number)"
    pq.write_table(pa.table({"text": ["x"], "topic": [value]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"t\.parquet, row {told}"):
        load_own({"train": tmp_path / "t.parquet"}, COLUMNS, kind=kind)
    if not isinstance(value, bytes):
        (tmp_path / "t.jsonl").write_text(json.dumps({"text": "x", "topic": value}))
        with pytest.raises(ValueError, match=rf"t\.jsonl, line {told}"):
            load_own({"train": tmp_path / "t.jsonl"}, COLUMNS, kind=kind)


@pytest.mark.parametrize("score", ["Infinity", "-inf", "nan", "1e999"])
@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_a_score_that_is_not_finite_is_refused(tmp_path, kind, score):
    (tmp_path / f"t{kind}").write_text(
        f"text,topic\nx,{score}\n" if kind == ".csv" else json.dumps({"text": "x", "topic": score})
    )
    with pytest.raises(ValueError, match=rf"line [12]: the score '{score}' is not a finite number"):
        load_own({"train": tmp_path / f"t{kind}"}, COLUMNS, kind="regression")


def test_a_decimal_infinity_is_no_label_and_a_number_may_be_of_any_size():
    with pytest.raises(ValueError, match="which is no label"):
        label_text(Decimal("-Infinity"), "there")
    assert label_text(10**400, "there") == str(10**400)


def test_a_label_that_only_the_validation_file_has_is_refused(tmp_path):
    train, dev = labelled(tmp_path / "t.jsonl", ["art", "law"]), labelled(tmp_path / "d.jsonl", ["art", "sea"])
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1: unknown label 'sea'; known are art, law"):
        load_own({"train": train, "validation": dev}, COLUMNS, kind="several")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns("text"), "no label column given"),
        (Columns("text", label="text"), "the column 'text' is given as text and as label"),
        (Columns("number", label="topic"), r"t\.jsonl, line 1: 'number' is 3, not text"),
    ],
)
def test_columns_that_are_refused(tmp_path, columns, message):
    path = write_table(tmp_path / "t.jsonl", [{"text": "x", "number": 3, "topic": "a"}] * 2)
    with pytest.raises(ValueError, match=message):
        load_own({"train": path}, columns)


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("text,topic\n")
    (tmp_path / "t.jsonl").write_text(" \n")
    for name in ("t.csv", "t.jsonl"):
        with pytest.raises(ValueError, match=rf"{name}: (empty \()?no rows"):
            load_own({"train": tmp_path / name}, COLUMNS)
