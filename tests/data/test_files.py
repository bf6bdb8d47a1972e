from __future__ import annotations

import gzip
import lzma

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data import files

PACKERS = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@settings(deadline=None, max_examples=30)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), min_size=1), frames=st.integers(1, 3)
)
@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_any_text_reads_back_from_any_compression(tmp_path_factory, suffix, text, frames):
    path = tmp_path_factory.mktemp("files") / f"a.txt{suffix}"
    pack = PACKERS.get(suffix, bytes)
    path.write_bytes(b"".join(pack((text + "\n").encode()) for _ in range(frames)))
    with files.open_bytes(path) as (stream, _):
        assert list(files.lines(path, stream)) == [text + "\n"] * frames


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_compressed_file_is_named(tmp_path, suffix, kept):
    path = tmp_path / f"a.txt{suffix}"
    whole = PACKERS[suffix](bytes(range(32, 127)) * 2000)
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(ValueError, match=r"a\.txt\.\w+: truncated"), files.open_bytes(path) as (stream, _):
        stream.read()


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_file_that_is_not_compressed_is_named(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"plain words, nothing else, and enough of them to fill a header " * 20)
    message = rf"a\.txt\{suffix}: damaged, or not \{suffix} data"
    with pytest.raises(ValueError, match=message), files.open_bytes(path) as (stream, _):
        stream.read()


@settings(deadline=None, max_examples=30)
@given(before=st.text("ab\n\u00e9", max_size=50))
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_wrong_byte_is_named_with_its_offset(tmp_path_factory, suffix, before):
    path = tmp_path_factory.mktemp("files") / f"latin1.txt{suffix}"
    path.write_bytes(PACKERS.get(suffix, bytes)(before.encode() + b"caf\xe9 au lait\n"))
    offset = len(before.encode()) + 3
    message = rf"not UTF-8: byte 0xe9 at offset {offset}\b"
    with pytest.raises(ValueError, match=message) as streamed, files.open_bytes(path) as (stream, _):
        list(files.lines(path, stream))
    with pytest.raises(ValueError, match="not UTF-8") as whole:
        files.read_text(path)
    assert str(whole.value) == str(streamed.value)
    assert ("of the decompressed text" in str(whole.value)) == bool(suffix)


def test_byte_order_mark_and_line_ends_are_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    with files.open_bytes(path) as (stream, _):
        assert list(files.lines(path, stream)) == ["one\r\n", "two\n"]
    path.write_bytes(b"\xef\xbb\xbf\xff")
    with pytest.raises(ValueError, match="byte 0xff at offset 3"):
        files.read_text(path)


def test_missing_empty_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.txt: no such file"), files.open_bytes(tmp_path / "no.txt"):
        pass
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt: empty \(0 bytes\)"), files.open_bytes(tmp_path / "empty.txt"):
        pass
    with pytest.raises(ValueError, match="a folder, where a file is needed"), files.open_bytes(tmp_path):
        pass


def test_kind_looks_beneath_the_compression(tmp_path):
    kinds = {"a.txt": ".txt", "a.JSONL.xz": ".jsonl", "v1.2/a.parquet": ".parquet", "a.gz": "", "a": ""}
    assert {name: files.kind(tmp_path / name) for name in kinds} == kinds
