import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data import corpus
from mabert.data.corpus import identities, parse_sources, read_documents
from mabert.files import tables
from tests.data.conftest import PACKERS, write_table

PARAGRAPH = st.text("ab c\u00e9\u2028", min_size=1).filter(lambda text: text.strip() == text and text)
DOCUMENTS = st.lists(st.lists(PARAGRAPH, min_size=1, max_size=3).map("\n".join), min_size=1, max_size=5)


def write(path, documents):
    if ".txt" in path.suffixes:
        path.write_bytes(
            PACKERS[path.suffix if path.suffix in PACKERS else ""](("\n\n\n".join(documents) + "\n").encode())
        )
        return path
    return write_table(path, [{"id": 1, "text": document} for document in documents])


@settings(max_examples=10)
@given(documents=DOCUMENTS)
@pytest.mark.parametrize("compression", ["", ".xz", ".gz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_every_format_gives_the_documents_back(tmp_path_factory, kind, compression, documents):
    path = write(tmp_path_factory.mktemp("corpus") / f"a{kind}{compression}", documents)
    assert list(read_documents(path)) == documents


def test_a_text_without_blank_lines_is_cut_at_a_lines_end(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MOST_CHARACTERS", 10)
    path = tmp_path / "a.txt"
    path.write_text("four\nfive5\nsix\nlonger than ten\none\n\ntwo\n")
    assert list(read_documents(path)) == ["four\nfive5", "six\nlonger", "than ten", "one", "two"]
    monkeypatch.undo()
    assert list(read_documents(path)) == ["four\nfive5\nsix\nlonger than ten\none", "two"]


@given(text=st.text("ab\u00e9\u6e2f\U0001f600 \n", max_size=60), longest=st.integers(1, 12), block=st.integers(1, 9))
@pytest.mark.parametrize("suffix", PACKERS)
def test_long_lines_come_in_parts_and_lose_nothing(tmp_path_factory, suffix, text, longest, block):
    path = tmp_path_factory.mktemp("corpus") / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix](("\ufeffx" + text).encode()))
    with pytest.MonkeyPatch.context() as patch, tables.open_bytes(path) as (stream, _):
        patch.setattr(tables, "_BLOCK", block)
        parts = list(tables.lines(stream, path, longest))
    assert "".join(parts) == "x" + text
    start = 0
    for line in ("x" + text).split("\n"):
        own = []
        while sum(map(len, own)) < len(line) or (not line and not own):
            own.append(parts[start].rstrip("\n") if start < len(parts) else "")
            start += 1
        assert "".join(own) == line, "a line ends a part"
        assert len(own) == 1 or len(line) > longest, "a line that fits comes whole"
        for part, after in itertools.pairwise(own):
            assert len(part) == longest or (len(part) < longest and after.startswith(" "))


@given(before=st.text("ab\u00e9\n ", max_size=30), longest=st.integers(1, 12), block=st.integers(1, 9))
def test_a_wrong_byte_is_named_wherever_lines_are_cut(tmp_path_factory, before, longest, block):
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    for wrong in (b"\xe9 \n", b"\xe9"):
        path.write_bytes(before.encode() + wrong)
        told = f"line {before.count(chr(10)) + 1}: not UTF-8: byte 0xe9 at offset {len(before.encode())};"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "_BLOCK", block)
            patch.setattr(corpus, "MOST_CHARACTERS", longest)
            with pytest.raises(ValueError, match=told):
                list(read_documents(path))


def test_a_folder_is_its_files_in_order_and_sources_follow_each_other(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "deep" / "er" / "a.txt", ["one"])
    write(tmp_path / "deep" / "b.jsonl.gz", ["two", "three"])
    (tmp_path / "deep" / "README.pdf").write_text("not text")
    write(tmp_path / "c.parquet", ["four"])
    assert list(read_documents([tmp_path / "c.parquet", tmp_path / "deep"])) == ["four", "two", "three", "one"]


def test_the_bytes_read_grow_to_the_size(tmp_path):
    path = write(tmp_path / "a.txt", ["words " * 3000] * 200)
    (source,) = parse_sources(path)
    positions = [position for _, position in source.read()]
    assert positions == sorted(positions)
    assert positions[0] < positions[-1] == source.size() == path.stat().st_size


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_the_text_column_may_have_any_name(tmp_path, kind):
    rows = [{"body": "hello", "text": "no"}, {"body": "there", "text": "no"}]
    (source,) = parse_sources(write_table(tmp_path / f"a{kind}", rows), "body")
    assert [document for document, _ in source.read()] == ["hello", "there"]
    (other,) = parse_sources(source.path, "title")
    with pytest.raises(ValueError, match=r"no (column )?'title'; (there is|the columns are) body, text"):
        list(other.read())


def test_identity_follows_content_and_column(tmp_path):
    path = write(tmp_path / "a.txt", ["one"])
    (source,), (other,) = parse_sources(path), parse_sources(path, "body")
    before = source.identity()
    assert json.loads(json.dumps(before)) == before
    assert other.identity() != before
    write(path, ["two"])
    assert source.identity()["sha256"] != before["sha256"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt: empty \(0 bytes\)"),
        ("a.txt", b" \n\n", r"a\.txt: holds no text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON: Expecting value at column 10"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl, line 1: 'text' is 5, not text"),
        ("a.pdf", b"%PDF", r"a\.pdf: unknown kind of file '\.pdf'; known are \.txt, \.jsonl and \.parquet"),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        list(read_documents(tmp_path / name))
    assert "\n" not in str(error.value)


def test_bad_places(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder \(a hub data set is written hub:NAME\)"):
        parse_sources(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no \.txt, \.jsonl or \.parquet file .* in this folder"):
        parse_sources(tmp_path)
    for nothing in ([], "", [""]):
        with pytest.raises(ValueError, match="no source of documents given"):
            parse_sources(nothing)


def test_hidden_files_are_left_out_and_linked_folders_read_once(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for place in (folder / "real", elsewhere, folder / ".ipynb_checkpoints", folder / "__MACOSX"):
        place.mkdir(parents=True)
        (place / "a.txt").write_text(place.name)
    (folder / "real" / "._a.txt").write_text("of macOS")
    (folder / "linked").symlink_to("../elsewhere")
    (folder / "again").symlink_to("../elsewhere")
    (folder / "linked" / "loop").symlink_to("..")
    (folder / "a-link-to-real").symlink_to("real")
    assert list(read_documents(folder)) == ["elsewhere", "real"]
    assert [source.path.name for source in parse_sources(folder / "real")] == ["a.txt"]
    (folder / "gone.txt").symlink_to("nowhere.txt")
    with pytest.raises(FileNotFoundError, match=r"gone\.txt: no such file"):
        list(read_documents(folder))


def test_text_to_pretrain_on_is_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"a\.txt: a pipe, which can be read once; write what comes from it to a file"):
        identities(tmp_path / "a.txt")
