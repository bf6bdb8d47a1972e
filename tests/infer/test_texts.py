"""Texts as files, tables, pipes and standard input have them: what is read, and one line for what is not."""

import io
import json
import os
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mabert.infer.texts import read_texts, text_rows

ROWS = [{"text": "one", "b": "x, y", "id": 7, "when": None}, {"text": "two", "b": "z", "id": None, "when": 0.5}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TABLES = {
    "t.jsonl": LINES,
    "t.tsv": "text\tb\tid\twhen\none\tx, y\t7\t\ntwo\tz\t\t0.5\n",
    "t.csv": 'text,b,id,when\none,"x, y",7,\ntwo,z,,0.5\n',
    "t.parquet": None,
}


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Lets a file have some content, or standard input where the name is None; returns what to read from."""

    def put(name, content):
        if name is None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_bytes(content))))
            return None
        if content is None:
            pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name)
        else:
            (tmp_path / name).write_bytes(as_bytes(content))
        return tmp_path / name

    return put


def as_bytes(content):
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize(
    ("name", "content", "how", "texts"),
    [
        ("a.txt", "one\ntwo words\n\nfour\n", {}, ["one", "two words", "", "four"]),
        (None, b"\xef\xbb\xbfone\r\n\ntwo", {}, ["one", "", "two"]),
        (None, '{"text": "x"}\n\n{"text": "z"}\n', {"jsonl": True}, ["x", "z"]),
        ("a.json", '{"text": "the bird"}\n', {"jsonl": True}, ["the bird"]),
        ("a.jsonl", '{"text": "the \\ud83d bird"}\n', {}, ["the \ufffd bird"]),  # half a pair of surrogates
        ("a.jsonl", '{"text": "\\ud83d\\ude00 wind", "n": 1}\n', {}, ["\U0001f600 wind"]),
    ],
)
def test_texts_are_read(put, name, content, how, texts):
    assert read_texts(put(name, content), **how) == texts


@pytest.mark.parametrize("name", TABLES)
def test_texts_pairs_and_columns_to_keep_are_read_from_tables(put, name):
    file = put(name, TABLES[name])
    assert read_texts(file, "b") == ["x, y", "z"]
    assert list(text_rows(file, "text", "b")) == [("one", "x, y"), ("two", "z")]
    found = list(text_rows(file, keep=["id", "when"]))
    assert found == [("one",), ("two",)]
    typed = [{"id": "7", "when": ""}, {"id": "", "when": "0.5"}]
    kept = [{column: row[column] for column in ("id", "when")} for row in ROWS]
    assert [row.kept for row in found] == (typed if name in ("t.csv", "t.tsv") else kept)
    for asked in ({"pair_column": "date"}, {"keep": ["date"]}):
        with pytest.raises(ValueError, match=r"t\.\w+.*no (column )?'date'"):
            list(text_rows(file, **asked))


def test_texts_may_come_from_a_pipe_of_any_name(tmp_path):
    for name, sent in (("63", "one\ntwo\n"), ("t.jsonl", LINES)):
        os.mkfifo(tmp_path / name)
        writer = threading.Thread(target=(tmp_path / name).write_text, args=(sent,))
        writer.start()
        assert read_texts(tmp_path / name) == ["one", "two"]
        writer.join()


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.jsonl", '{"text": 5}\n', "text", "line 1: 'text' is 5, not text"),
        ("a.txt", "", None, "empty"),
        ("a.json", '{"text": "the bird"}\n', "text", r"a\.json: JSON is read as an object a line; .* give --jsonl"),
        (None, b"fine\nna\xefve\n", None, "^standard input, line 2: not UTF-8: byte 0xef at offset 7; convert it"),
        *(
            (None, '{"text": "x"}\n' + line, "text", f"^standard input, line 2: {message}")
            for line, message in [
                ("{", "not JSON"),
                ("[1]", r"not an object but '\[1\]'"),
                ('{"text": 1}', "'text' is 1, not text"),
                ('{"text": null}', "'text' is null; give the row a value, or leave it out"),
                ('{"b": "x"}', "no 'text'; there is b"),
            ]
        ),
    ],
)
def test_what_holds_no_texts_is_named(put, name, content, column, message):
    with pytest.raises(ValueError, match=message):
        read_texts(put(name, content), column, jsonl=name is None and as_bytes(content).startswith(b"{"))


def test_lines_of_plain_text_have_no_columns_and_a_file_must_be_there(put):
    lines = put("t.txt", "one\n")
    for asked, message in (
        ({"pair_column": "b"}, "hold no pairs"),
        ({"keep": ["id"]}, "have no columns to keep; 'id'"),
    ):
        with pytest.raises(ValueError, match=rf"t\.txt: lines of plain text {message}"):
            text_rows(lines, **asked)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_texts(lines.with_name("none.txt"))
