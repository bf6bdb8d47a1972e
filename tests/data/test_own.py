"""One's own files: which kind of task they hold, and what is held out of them."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.own import load_own, recognized
from mabert.data.tasks import Columns
from tests.data.conftest import write_table

COLUMNS = Columns("text", label="topic")


@settings(max_examples=20)
@given(count=st.integers(10, 60), seed=st.integers(0, 99))
def test_rows_are_held_out_where_there_is_no_validation_file(tmp_path_factory, count, seed):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    write_table(path, [{"text": f"row {i}", "topic": i % 3} for i in range(count)])
    _, loaded = load_own({"train": path}, COLUMNS, hold_out=0.2, seed=seed)
    assert len(loaded["validation"]) == round(0.2 * count)
    assert sorted(loaded["train"]["index"][:] + loaded["validation"]["index"][:]) == list(range(count))
    _, again = load_own({"train": path}, COLUMNS, hold_out=0.2, seed=seed)
    assert again["validation"][:] == loaded["validation"][:]


@pytest.mark.parametrize("kind", ["classification", "tokens", "answers"])
def test_what_every_kind_refuses(tmp_path, kind):
    with pytest.raises(ValueError, match="no training file given"):
        load_own({"test": tmp_path / "t.csv"}, COLUMNS, kind=kind)
    with pytest.raises(FileNotFoundError, match=r"no\.jsonl: no such file"):
        load_own({"train": tmp_path / "no.jsonl"}, COLUMNS, kind=kind)


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^kind is 'multilabel'; it must be .*'several'"):
        load_own({"train": tmp_path / "t.csv"}, COLUMNS, kind="multilabel")


def test_too_few_rows_to_hold_any_out_are_refused(tmp_path):
    path = write_table(tmp_path / "t.csv", [{"text": "x", "topic": topic} for topic in "aab"])
    with pytest.raises(ValueError, match=r"^holding 0\.1 of 3 rows out takes none or all; give a validation file$"):
        load_own({"train": path}, COLUMNS)


@pytest.mark.parametrize(
    ("name", "row", "kind"),
    [
        ("t.json", {}, "answers"),
        ("t.conll", {}, "tokens"),
        ("t.BIO.gz", {}, "tokens"),
        ("t.jsonl", {"tokens": ["a"], "tags": ["O"]}, "tokens"),
        ("t.jsonl", {"text": "a", "topic": ["b"]}, "several"),
        ("t.jsonl", {"text": "a", "topic": "b|c"}, "classification"),
        ("t.jsonl", {"text": "a", "tokens": ["b"], "topic": "c"}, "classification"),
        ("t.csv", {"text": "a", "topic": "b"}, "classification"),
    ],
)
def test_a_file_is_recognized_by_its_name_or_its_first_row(tmp_path, name, row, kind):
    (tmp_path / name).write_text(json.dumps(row) + "\n")
    assert recognized(tmp_path / name, "topic") == kind


def test_a_pipe_is_not_read_and_a_missing_file_is_left_to_the_loader(tmp_path):
    os.mkfifo(tmp_path / "t.jsonl")
    assert recognized(tmp_path / "t.jsonl", "topic") == recognized(tmp_path / "no.jsonl", "topic") == "classification"


LABELS = {
    "classification": st.sampled_from("abcde"),
    "several": st.lists(st.sampled_from("abcde"), unique=True, max_size=3),
    "tokens": st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "B-z"]), min_size=1, max_size=3),
}


@settings(max_examples=20)
@given(data=st.data(), count=st.integers(4, 30), share=st.sampled_from([0.1, 0.3, 0.6]), seed=st.integers(0, 99))
@pytest.mark.parametrize("kind", LABELS)
def test_no_class_is_held_out_as_a_whole(tmp_path_factory, data, kind, count, share, seed):
    common = {"classification": ["a", "b"], "several": [["a", "b"], ["a"]], "tokens": [["O", "B-x"], ["O", "B-x"]]}[
        kind
    ]
    labels = [*common, *data.draw(st.lists(LABELS[kind], min_size=count, max_size=count)), *common]
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    name = "tags" if kind == "tokens" else "topic"
    texts = {"tokens": lambda tags: ["w"] * len(tags)}.get(kind, lambda _: "x")
    write_table(path, [{"tokens" if kind == "tokens" else "text": texts(each), name: each} for each in labels])
    task, loaded = load_own({"train": path}, COLUMNS, kind=kind, hold_out=share, seed=seed)
    trained, held = loaded["train"]["index"][:], loaded["validation"]["index"][:]
    assert sorted(trained + held) == list(range(len(labels)))
    of = [set(label) for label in labels]
    assert set(task.label_names) == set().union(*(of[row] for row in trained)) | ({"O"} if kind == "tokens" else set())
    wanted = np.random.default_rng(seed).permutation(len(labels))[: round(share * len(labels))].tolist()
    if set().union(*of) == set().union(*(of[row] for row in range(len(labels)) if row not in wanted)):
        assert held == sorted(wanted), "the rows that were always held out"
    else:
        assert 0 < len(held) <= len(wanted)


def test_classes_that_have_a_row_each_are_named_where_training_lacks_one(tmp_path, caplog):
    path = write_table(tmp_path / "t.csv", [{"text": "x", "topic": topic} for topic in "abcdefghij"])
    _, loaded = load_own({"train": path}, COLUMNS)
    lost = loaded["validation"]["text_a"], loaded["validation"]["label"][:]
    assert len(lost[1]) == 1
    assert f"training goes without {'abcdefghij'[lost[1][0]]!r}" in caplog.text


def test_a_row_without_a_class_is_held_out_before_the_only_one_of_a_class(tmp_path):
    path = write_table(tmp_path / "t.jsonl", [{"text": "x", "topic": topic} for topic in (["a"], ["b"], [], [], [])])
    for seed in range(9):
        _, loaded = load_own({"train": path}, COLUMNS, kind="several", hold_out=0.6, seed=seed)
        assert loaded["validation"]["index"][:] == [2, 3, 4]
