"""What kind of task a file holds."""

import json
import os

import pytest

from mabert.data.own import recognized


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
