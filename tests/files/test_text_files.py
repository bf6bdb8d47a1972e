"""Files as they lie on disk: any text reads back from any compression, and damage is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.files import tables
from tests.data.conftest import PACKERS


@settings(max_examples=30)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), min_size=1), frames=st.integers(1, 3)
)
@pytest.mark.parametrize("suffix", PACKERS)
def test_any_text_reads_back_without_byte_order_mark_and_with_line_ends(tmp_path_factory, suffix, text, frames):
    path = tmp_path_factory.mktemp("files") / f"a.txt{suffix}"
    contents = ["\ufeff" + text + "\r\n", *[text + "\n"] * (frames - 1)]
    path.write_bytes(b"".join(PACKERS[suffix](content.encode()) for content in contents))
    assert list(tables.lines_of_text(path)) == [text + "\r\n", *[text + "\n"] * (frames - 1)]


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_a_damaged_compressed_file_is_named(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    whole = PACKERS[suffix](bytes(range(32, 127)) * 2000)
    plain = b"plain words, nothing else, and enough of them to fill a header " * 20
    for content, message in (
        (whole[: int(len(whole) * 0.3)], "truncated"),
        (whole[: int(len(whole) * 0.9)], "truncated"),
        (plain, rf"damaged, or not \{suffix} data"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.txt\{suffix}: {message}"):
            tables.read_text(path)


@settings(max_examples=30)
@given(before=st.text("ab\n\u00e9\ufeff", max_size=50))
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_wrong_byte_is_named_with_its_line_and_offset(tmp_path_factory, suffix, before):
    path = tmp_path_factory.mktemp("files") / f"latin1.txt{suffix}"
    path.write_bytes(PACKERS[suffix](before.encode() + b"caf\xe9 au lait\n"))
    offset = len(before.encode()) + 3
    message = rf"latin1.txt{suffix}, line {before.count(chr(10)) + 1}: not UTF-8: byte 0xe9 at offset {offset};"
    with pytest.raises(ValueError, match=message):
        tables.read_text(path)


def test_what_is_no_file_of_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\t\r\n")
    for name, kind, message in (
        ("no.txt", FileNotFoundError, r"no\.txt: no such file"),
        ("empty.txt", ValueError, r"empty\.txt: empty \(0 bytes\)"),
        ("blank.txt", ValueError, r"blank\.txt: empty \(nothing but white space\)"),
        (".", ValueError, "a folder, where a file is needed"),
    ):
        with pytest.raises(kind, match=message):
            tables.read_text(tmp_path / name)


def test_kind_looks_beneath_the_compression(tmp_path):
    kinds = {"a.txt": ".txt", "a.JSONL.xz": ".jsonl", "v1.2/a.parquet": ".parquet", "a.gz": "", "a": ""}
    assert {name: tables.format_of(tmp_path / name) for name in kinds} == kinds
