"""Rows of tables: what was written comes back from every format, and a bad row is named by its line."""

import csv
import gzip
import io
import os
import re
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.files import tables
from tests.data.conftest import PACKERS, TABLES, write_table

CLEAN = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=30)


@settings(max_examples=10)
@given(texts=st.lists(CLEAN, min_size=1, max_size=5))
@pytest.mark.parametrize("kind", TABLES)
def test_every_format_gives_the_texts_back(tmp_path_factory, kind, texts):
    path = tmp_path_factory.mktemp("table") / f"t{kind}"
    write_table(path, [{"topic": "a", "text": text} for text in texts])
    read = list(tables.read_rows(path, ["text", "topic"]))
    assert [row["text"] for _, row in read] == texts
    assert read[0][0] == f"{path}, {'row 1' if '.parquet' in kind else 'line 1' if 'json' in kind else 'line 2'}"


def test_line_ends_inside_quotes_and_long_fields_of_csv(tmp_path):
    (tmp_path / "t.csv").write_text('text,topic\n"one\ntwo, ""three""",a\n' + "x" * 200_000 + ",b\n")
    read = list(tables.read_rows(tmp_path / "t.csv", ["text"]))
    found = [(place.rpartition(" ")[2], len(row["text"])) for place, row in read]
    assert found == [("3", len('one\ntwo, "three"')), ("4", 200_000)]


@given(text=st.text('a\t"\r\n\u2028 ', min_size=1, max_size=30))
def test_lines_read_one_at_a_time_are_those_of_the_whole_file(tmp_path_factory, text):
    text, folder = "head" + text, tmp_path_factory.mktemp("t")
    for suffix in (".tsv", ".csv"):
        (folder / f"t{suffix}").write_bytes(b"\xef\xbb\xbf" + text.encode())
    numbered = enumerate(io.StringIO(text, newline=None), 1)
    every = [(number, line.rstrip("\n").split("\t")) for number, line in numbered]
    expected = [(number, fields) for number, fields in every if fields != [""] or len(every[0][1]) == 1]
    assert list(tables.fields_of(folder / "t.tsv")) == expected
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        every = [(reader.line_num, fields) for fields in reader]
        expected = [(number, fields or [""]) for number, fields in every if fields or len(every[0][1]) == 1]
    except csv.Error:
        with pytest.raises(ValueError, match=f"line {reader.line_num}: not CSV"):
            list(tables.fields_of(folder / "t.csv"))
    else:
        assert list(tables.fields_of(folder / "t.csv")) == expected


LINES = st.lists(st.text("ab ", max_size=3), max_size=6)


@settings(max_examples=30)
@given(lines=LINES, end=st.sampled_from(["\n", "\r\n", "\r"]), last=st.booleans(), before=st.integers(0, 2))
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".tsv.gz"])
def test_a_table_of_one_column_has_a_row_for_each_line_of_text(tmp_path_factory, kind, lines, end, last, before):
    path = tmp_path_factory.mktemp("t") / f"t{kind}"
    text = end * before + end.join(["text", *lines]) + end * (last or lines[-1:] == [""])
    path.write_bytes(PACKERS[".gz" if kind.endswith(".gz") else ""](text.encode()))
    assert [(place, row["text"]) for place, row in tables.read_rows(path, ["text"])] == (
        [(f"{path}, line {number}", text) for number, text in enumerate(lines, before + 2)]
    )


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
@pytest.mark.parametrize(
    ("content", "count"), [("x,a\n\n\ny,b\n\nz,c\n", 3), ("x,a\ny,b\n\n\n", 0), ("x,a\ny,b\nz,\n", 0), ("\nx,a\n", 1)]
)
def test_blank_lines_between_rows_of_several_columns_are_told_of(tmp_path, caplog, kind, content, count):
    path = tmp_path / f"t{kind}"
    content = "\ntext,topic\n" + content
    path.write_text(content if kind == ".csv" else content.replace(",", "\t"))
    found = [row["text"] for _, row in tables.read_rows(path, ["text", "topic"])]
    assert found == [text for text in "xyz" if text in content.removeprefix("\ntext,topic")]
    told = [f"{path}: {count} blank lines between rows are skipped; a row has a field for each column"]
    assert caplog.messages == told * (count > 0)


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".csv.gz"])
def test_rows_come_before_the_rest_of_the_file_is_read(tmp_path, kind):
    path = write_table(tmp_path / f"t{kind}", [{"text": "x", "topic": "a"}] * 3)
    whole = gzip.decompress(path.read_bytes()) if kind.endswith(".gz") else path.read_bytes()
    path.write_bytes(gzip.compress(whole + b"\xff") if kind.endswith(".gz") else whole + b"\xff")
    found = tables.read_rows(path, ["text"])
    assert [next(found)[1]["text"] for _ in range(3)] == ["x", "x", "x"]
    with pytest.raises(ValueError, match="not UTF-8: byte 0xff"):
        next(found)


def test_a_table_may_be_a_pipe_unless_its_end_is_read_first(tmp_path):
    for name in ("t.csv", "t.parquet"):
        os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / "t.csv").write_text, args=("text\nx\ny\n",))
    writer.start()
    assert [row for _, row in tables.read_rows(tmp_path / "t.csv", ["text"])] == [{"text": "x"}, {"text": "y"}]
    writer.join()
    with pytest.raises(ValueError, match=r"t\.parquet: a pipe, which can be read once"):
        next(tables.read_rows(tmp_path / "t.parquet", ["text"]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", r"t\.csv: empty \(0 bytes\)"),
        *((f"t.{kind}", b"\xef\xbb\xbf", rf"t\.{kind}: empty \(no header line\)") for kind in ("csv", "tsv")),
        ("t.tsv", " \n\t\r\n", r"t\.tsv: empty \(no header line\)"),
        ("t.csv", "body,topic\nx,a\n", r"t\.csv: no column 'text'; the columns are body, topic$"),
        ("t.csv", "text,text,topic\nx,y,a\n", r"t\.csv: more than one column 'text'"),
        ("t.csv", "text,topic\nx,a\n\nx\n", r"t\.csv, line 4: 1 columns where the header has 2"),
        ("t.csv", 'text,topic\n"x" y,a\n', r"t\.csv, line 2: not CSV"),
        ("t.csv", 'text,topic\nx,a\n"y\nz,a\n', r"t\.csv, line 4: not CSV: .*; the row begins in line 3"),
        ("t.csv", b"text,topic\ncaf\xe9,a\n", r"t\.csv, line 2: not UTF-8: byte 0xe9 at offset 14"),
        ("t.tsv", "text\ttopic\nx\ty\ta\n", r"t\.tsv, line 2: 3 columns where the header has 2"),
        (
            "t.tsv",
            'text\ttopic\n"x\ny"\ta\n',
            r"line 2: 1 columns .* so write what quotes a tab or a line end as \.csv",
        ),
        ("t.jsonl", '{"text": "x", "topic": null}', r"line 1: 'topic' is null; give the row a value"),
        ("t.jsonl", '{"text": "x", "topic": "a"}\n\n{"text": "x"}', r"line 3: no 'topic'; there is text"),
        ("t.jsonl", "[]", r"line 1: not an object but '\[\]'"),
        ("t.jsonl", "{", r"line 1: not JSON"),
        ("t.jsonl", '{"text": "x', r"line 1: not JSON: Unterminated string starting at column 10$"),
        ("t.parquet", "PAR?", r"t\.parquet: not a readable Parquet file"),
        ("t.xlsx", "PK", r"t\.xlsx: unknown kind of table '\.xlsx'; known are \.csv, \.tsv, \.jsonl and \.parquet"),
    ],
)
def test_bad_tables_get_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        list(tables.read_rows(tmp_path / name, ["text", "topic"]))
    assert "\n" not in str(error.value)


def test_a_missing_value_in_parquet_is_named_unless_it_may_be(tmp_path):
    pq.write_table(pa.table({"text": ["x", None], "topic": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet, row 2: 'text' is null"):
        list(tables.read_rows(tmp_path / "t.parquet", ["text"]))
    assert [row["text"] for _, row in tables.read_rows(tmp_path / "t.parquet", [], ["text"])] == ["x", None]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ('"He said ""go"" now"', True),
        ('""""', True),
        ('""', True),
        ('"', False),
        ('"quoted"', False),
        ('say "go"', False),
        ('"a" and "b"', False),
    ],
)
def test_fields_that_look_quoted_are_told_of_once(tmp_path, caplog, field, told):
    (tmp_path / "t.tsv").write_text(f"text\ttopic\n{field}\ta\n{field}\tb\n")
    assert [row["text"] for _, row in tables.read_rows(tmp_path / "t.tsv", ["text"])] == [field, field]
    assert len(caplog.records) == told


@given(fields=st.lists(st.text('ab\\\t\n\r"', max_size=8), min_size=1, max_size=4))
def test_any_text_fits_a_line_of_a_tsv(fields):
    line = tables.tsv_line(fields)
    assert len(line.splitlines()) <= 1
    meant = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
    found = [re.sub(r"\\[\\tnr]", lambda escape: meant[escape[0]], field) for field in line.split("\t")]
    assert found == fields
