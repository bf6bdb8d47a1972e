from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data import rows
from mabert.data.table import Columns, _classes, load_tables

KINDS = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz"]
COLUMNS = Columns("text", label="topic")
CLEAN = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=30)


def write(path, rows):
    """Rows of strings and numbers in the format that the suffix says."""
    names = list(rows[0])
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".tsv":
        lines = ["\t".join(names), *("\t".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def load(path):
    return load_tables({"train": path, "validation": path}, COLUMNS, label_names=["a", "b"])[1]["validation"]


@settings(deadline=None, max_examples=25)
@given(texts=st.lists(CLEAN, min_size=1, max_size=5))
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_texts_back(tmp_path_factory, kind, texts):
    rows = [{"topic": "b" if i % 2 else "a", "text": text} for i, text in enumerate(texts)]
    path = write(tmp_path_factory.mktemp("table") / f"t{kind}", rows)
    loaded = load(path)
    assert loaded[:] == {"text_a": texts, "label": [i % 2 for i in range(len(texts))], "index": list(range(len(texts)))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_from_three_files(tmp_path, kind):
    files = {
        "train": write(tmp_path / f"a{kind}", [{"text": "x", "other": "y", "topic": t} for t in ("sport", "arts")]),
        "validation": write(tmp_path / f"b{kind}", [{"text": "x", "other": "z", "topic": "sport"}]),
        "test": write(tmp_path / f"c{kind}", [{"text": "x", "other": "w"}]),
    }
    task, loaded = load_tables(files, Columns("text", "other", "topic"), name="news")
    assert (task.name, task.label_names, task.main_metric) == ("news", ("arts", "sport"), "accuracy")
    assert loaded["train"][:] == {"text_a": ["x", "x"], "text_b": ["y", "y"], "label": [1, 0], "index": [0, 1]}
    assert loaded["validation"]["label"][:] == [1]
    assert loaded["test"].column_names == ["text_a", "text_b", "index"]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_classes_in_numeric_order_or_scores(tmp_path, kind):
    path = write(tmp_path / f"t{kind}", [{"text": "x", "topic": t} for t in (10, 9, 2, -1)])
    task, loaded = load_tables({"train": path, "validation": path}, COLUMNS)
    assert task.label_names == ("-1", "2", "9", "10")
    assert loaded["train"]["label"][:] == [3, 2, 1, 0]
    task, loaded = load_tables({"train": path, "validation": path}, COLUMNS, kind="regression")
    assert task.is_regression
    assert task.num_labels == 1
    assert loaded["train"]["label"][:] == [10.0, 9.0, 2.0, -1.0]


def test_line_ends_inside_quotes_and_long_fields_of_csv(tmp_path):
    (tmp_path / "t.csv").write_text('text,topic\n"one\ntwo, ""three""",a\n' + "x" * 200_000 + ",b\n")
    loaded = load(tmp_path / "t.csv")
    assert loaded["text_a"][0] == 'one\ntwo, "three"'
    assert len(loaded["text_a"][1]) == 200_000
    assert csv.field_size_limit() == 131072


@settings(deadline=None)
@given(text=st.text('a\t"\r\n\u2028 ', min_size=1, max_size=30))
def test_lines_read_one_at_a_time_are_those_of_the_whole_file(tmp_path_factory, text):
    text = "head" + text
    for suffix in (".tsv", ".csv"):
        path = tmp_path_factory.mktemp("t") / f"t{suffix}"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        if suffix == ".tsv":
            numbered = enumerate(io.StringIO(text, newline=None), 1)
            expected = [(number, line.rstrip("\n").split("\t")) for number, line in numbered if line != "\n"]
            assert list(rows.tsv_lines(path)) == expected
        else:
            reader = csv.reader(io.StringIO(text, newline=""), strict=True)
            try:
                expected = [(reader.line_num, fields) for fields in reader if fields]
            except csv.Error:
                with pytest.raises(ValueError, match=f"line {reader.line_num}: not CSV"):
                    list(rows.csv_lines(path))
            else:
                assert list(rows.csv_lines(path)) == expected


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".csv.gz"])
def test_rows_come_before_the_rest_of_the_file_is_read(tmp_path, kind):
    path = write(tmp_path / f"t{kind}", [{"text": "x", "topic": "a"}] * 3)
    whole = gzip.decompress(path.read_bytes()) if kind.endswith(".gz") else path.read_bytes()
    path.write_bytes(gzip.compress(whole + b"\xff") if kind.endswith(".gz") else whole + b"\xff")
    found = rows.read_rows(path, ["text"])
    assert [next(found)[1]["text"] for _ in range(3)] == ["x", "x", "x"]
    with pytest.raises(ValueError, match="not UTF-8: byte 0xff"):
        next(found)


@pytest.mark.parametrize("content", [b" \n\t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_a_table_of_white_space_is_empty(tmp_path, kind, content):
    (tmp_path / f"t{kind}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"t\{kind}: empty \(nothing but white space\)"):
        list(rows.read_rows(tmp_path / f"t{kind}", ["text"]))


@settings(deadline=None, max_examples=20)
@given(count=st.integers(10, 60), seed=st.integers(0, 99))
def test_rows_are_held_out_where_there_is_no_validation_file(tmp_path_factory, count, seed):
    path = write(tmp_path_factory.mktemp("t") / "t.csv", [{"text": f"row {i}", "topic": i % 3} for i in range(count)])
    _, loaded = load_tables({"train": path}, COLUMNS, hold_out=0.2, seed=seed)
    assert len(loaded["validation"]) == round(0.2 * count)
    assert sorted(loaded["train"]["index"][:] + loaded["validation"]["index"][:]) == list(range(count))
    _, again = load_tables({"train": path}, COLUMNS, hold_out=0.2, seed=seed)
    assert again["validation"][:] == loaded["validation"][:]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", r"t\.csv: empty"),
        ("t.csv", "text,topic\n", r"t\.csv: no rows"),
        ("t.csv", "body,topic\nx,a\n", r"t\.csv: no column 'text'; the columns are body, topic"),
        ("t.csv", "text,text,topic\nx,y,a\n", r"t\.csv: more than one column 'text'"),
        ("t.csv", "text,topic\nx,a\n\nx\n", r"t\.csv, line 4: 1 columns where the header has 2"),
        ("t.csv", 'text,topic\n"x" y,a\n', r"t\.csv, line 2: not CSV"),
        ("t.csv", "text,topic\nx,c\n", r"t\.csv, line 2: unknown label 'c'; known are a, b"),
        ("t.tsv", "text\ttopic\nx\ty\ta\n", r"t\.tsv, line 2: 3 columns where the header has 2"),
        ("t.csv", b"text,topic\ncaf\xe9,a\n", r"t\.csv: not UTF-8: byte 0xe9 at offset 14"),
        ("t.jsonl", '{"text": "x", "topic": "a"}\n{"text": 3, "topic": "a"}', r"line 2: 'text' is 3, not text"),
        ("t.jsonl", '{"text": "x", "topic": null}', r"line 1: 'topic' is null; give the row a value"),
        ("t.jsonl", '{"text": "x"}', r"line 1: no 'topic'; there is text"),
        (
            "t.tsv",
            'text\ttopic\n"x\ny"\ta\n',
            r"line 2: 1 columns .* so write what quotes a tab or a line end as \.csv",
        ),
        ("t.jsonl", "[]", r"line 1: not an object but '\[\]'"),
        ("t.jsonl", "{", r"line 1: not JSON"),
        ("t.parquet", "PAR?", r"t\.parquet: not a readable Parquet file"),
        ("t.xlsx", "PK", r"t\.xlsx: unknown kind of table '\.xlsx'; known are \.csv, \.tsv, \.jsonl and \.parquet"),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_missing_value_in_parquet_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["x", None], "topic": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet, row 2: 'text' is null"):
        load(tmp_path / "t.parquet")


def test_what_a_task_needs(tmp_path):
    path = write(tmp_path / "t.csv", [{"text": "x", "topic": "a"}] * 3)
    with pytest.raises(ValueError, match="all labels in 'topic' are 'a'; a classifier needs at least two classes"):
        load_tables({"train": path}, COLUMNS)
    with pytest.raises(ValueError, match="no training table"):
        load_tables({"test": path}, COLUMNS)
    with pytest.raises(ValueError, match="no label column"):
        load_tables({"train": path}, Columns("text"))
    with pytest.raises(ValueError, match=r"cannot hold 0\.1 of 3 training rows out"):
        load_tables({"train": path}, COLUMNS, label_names=["a", "b"])
    with pytest.raises(FileNotFoundError, match=r"no\.csv: no such file"):
        load_tables({"train": tmp_path / "no.csv"}, COLUMNS)


def test_a_column_is_text_or_label(tmp_path):
    file = write(tmp_path / "t.csv", [{"text": "one", "topic": "a"}, {"text": "two", "topic": "b"}])
    with pytest.raises(ValueError, match="the column 'text' is given as text and as label"):
        load_tables({"train": file}, Columns("text", label="text"))


NO_LABEL = {"nothing": "", "a list": ["a"], "a mapping": {"a": 1}, "bytes": b"a", "NaN": math.nan}


@pytest.mark.parametrize("value", NO_LABEL.values(), ids=NO_LABEL)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_label_is_one_value_and_anything_else_is_named_with_its_row(tmp_path, value, kind):
    pq.write_table(pa.table({"text": ["x"], "topic": [value]}), tmp_path / "t.parquet")
    message = (
        rf"t\.parquet, line 1: 'topic' is {re.escape(repr(value))}, which is no label|; a label is one text or number"
    )
    with pytest.raises(ValueError, match=message):
        load_tables({"train": tmp_path / "t.parquet"}, COLUMNS, kind=kind)
    if not isinstance(value, bytes):
        (tmp_path / "t.jsonl").write_text(json.dumps({"text": "x", "topic": value}))
        with pytest.raises(ValueError, match=r"t\.jsonl, line 1: 'topic' is "):
            load_tables({"train": tmp_path / "t.jsonl"}, COLUMNS, kind=kind)


@given(order=st.permutations(["1", "01", "001", "2", "02", "-1", "10" * 3000]))
def test_classes_have_one_order_whatever_the_order_of_the_rows(order):
    labels = [(name, "") for name in order]
    assert _classes(Path("t.csv"), "topic", labels) == ("-1", "001", "01", "1", "02", "2", "10" * 3000)


def test_a_table_may_be_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    writer = threading.Thread(target=(tmp_path / "t.csv").write_text, args=("text,topic\nx,a\ny,b\n",))
    writer.start()
    _, loaded = load_tables({"train": tmp_path / "t.csv"}, COLUMNS, hold_out=0.5)
    writer.join()
    assert len(loaded["train"]) + len(loaded["validation"]) == 2


@pytest.mark.parametrize(
    ("field", "told"),
    [('"He said ""go"" now"', True), ('""""', True), ('"quoted"', False), ('say "go"', False), ('"a" and "b"', False)],
)
def test_fields_that_look_quoted_are_told_of_once(tmp_path, caplog, field, told):
    (tmp_path / "t.tsv").write_text(f"text\ttopic\n{field}\ta\n{field}\tb\n")
    assert [row["text"] for _, row in rows.read_rows(tmp_path / "t.tsv", ["text"])] == [field, field]
    assert len(caplog.records) == told


@given(fields=st.lists(st.text('ab\\\t\n\r"', max_size=8), min_size=1, max_size=4))
def test_any_text_fits_a_line_of_a_tsv(fields):
    line = rows.tsv_line(fields)
    assert len(line.splitlines()) <= 1
    meant = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
    found = [re.sub(r"\\[\\tnr]", lambda escape: meant[escape[0]], field) for field in line.split("\t")]
    assert found == fields


LABELS = st.lists(st.lists(st.sampled_from(["art", "law", "sea"]), unique=True, max_size=3), max_size=6)


@settings(deadline=None, max_examples=25)
@given(labels=LABELS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_may_have_several_labels_in_any_format(tmp_path_factory, kind, labels):
    labels = [*labels, ["art", "law"], ["sea"]]
    lists = kind in (".jsonl", ".parquet")
    rows = [{"text": "x", "topic": names if lists else "|".join(names)} for names in labels]
    path = write(tmp_path_factory.mktemp("table") / f"t{kind}", rows)
    task, loaded = load_tables({"train": path, "validation": path}, COLUMNS, kind="several")
    assert (task.label_names, task.kind, task.main_metric) == (("art", "law", "sea"), "several", "f1_micro")
    assert loaded["train"]["label"][:] == [[float(name in names) for name in task.label_names] for names in labels]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[], []], r"t\.jsonl: all lists of labels in 'topic' are empty"),
        ([["art"], []], r"all labels in 'topic' are 'art'; a classifier needs at least two classes"),
        ([["art", " "], ["law"]], r"line 1: 'topic' is ' ', which is no label"),
        (["art||law", "law"], r"line 1: 'topic' is '', which is no label"),
        ([["art", ["law"]]], r"line 1: 'topic' is \['law'\]; a label is one text or number"),
    ],
)
def test_lists_of_labels_that_are_refused(tmp_path, labels, message):
    path = write(tmp_path / "t.jsonl", [{"text": "x", "topic": each} for each in labels])
    with pytest.raises(ValueError, match=message):
        load_tables({"train": path}, COLUMNS, kind="several")


def test_a_label_that_only_the_validation_file_has_is_refused(tmp_path):
    train = write(tmp_path / "t.jsonl", [{"text": "x", "topic": ["art", "law"]}])
    dev = write(tmp_path / "d.jsonl", [{"text": "x", "topic": ["art", "sea"]}])
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1: unknown label 'sea'; known are art, law"):
        load_tables({"train": train, "validation": dev}, COLUMNS, kind="several")
