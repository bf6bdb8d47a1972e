"""One's own files: which kind of task they hold, and what is held out of them."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.own import load_own, recognized
from mabert.data.table import Columns
from tests.data.conftest import write_table

COLUMNS = Columns("text", label="topic")


@settings(deadline=None, max_examples=20)
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


def test_too_few_rows_to_hold_any_out_are_refused(tmp_path):
    path = write_table(tmp_path / "t.csv", [{"text": "x", "topic": topic} for topic in "aab"])
    with pytest.raises(ValueError, match=r"cannot hold 0\.1 of 3 training rows out"):
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
