"""Reading files as they lie on disk: plain, `.xz`, `.gz` or `.zst`, and UTF-8 or a clear error."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from mabert.reading import parse_json

COMPRESSIONS = (".xz", ".gz", ".zst")
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


def kind(path: Path) -> str:
    """The suffix that says what is inside: `.txt` for both `a.txt` and `a.txt.xz`, lower case, `""` for none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file for reading, decompressed.

    Args:
        path: any file; `.xz`, `.gz` and `.zst` are decompressed.

    Yields:
        The decompressed stream, and the raw file beneath it, whose `tell()` counts the bytes taken from disk.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, it is empty, or its compressed data is truncated or damaged.
    """
    check_is_file(path)
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as raw:
            yield _decompressed(suffix, raw), raw
    except EOFError as error:
        raise ValueError(f"{path}: truncated: the compressed data ends before its end mark; fetch it again") from error
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{path}: damaged, or not {suffix} data: {error}") from error


def _decompressed(suffix: str, raw: BinaryIO) -> BinaryIO:
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if suffix == ".zst":
        return io.BufferedReader(_ZstdReader(raw), _BLOCK)
    return raw


def check_is_file(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a file with something in it, or a pipe."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, where a file is needed")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path}: empty (0 bytes)")


def check_can_read_twice(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a file that gives the same bytes whenever it is read."""
    check_is_file(path)
    if not path.is_file():
        raise ValueError(f"{path}: a pipe, which can be read once; write what comes from it to a file")


def lines(path: Path, stream: BinaryIO) -> Iterator[str]:
    """The lines of an open stream, decoded as UTF-8, without line ends and without a byte order mark.

    Raises:
        ValueError: a line is not UTF-8; names the byte and its offset in the (decompressed) file.
    """
    for line in whole_lines(path, stream):
        yield line.rstrip("\r\n")


def whole_lines(path: Path, stream: BinaryIO) -> Iterator[str]:
    """The same lines with their ends, which are part of what quotes hold in CSV."""
    return decoded(stream, lambda number, offset, byte: _not_utf8(path, offset, byte))


def decoded(stream: Iterable[bytes], told: Callable[[int, int, int], str]) -> Iterator[str]:
    """Lines of bytes as text with their ends, without a byte order mark.

    Args:
        stream: the lines.
        told: from the line's number, the offset of a byte that is not UTF-8 and the byte to what the error says.

    Raises:
        ValueError: a line is not UTF-8.
    """
    before = 0
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(told(number, before + error.start, line[error.start])) from error
        before += len(line)
        yield text.removeprefix("\ufeff") if number == 1 else text


def lines_of_text(path: Path) -> Iterator[str]:
    """The lines of a (decompressed) file with their ends, one at a time: `read_text` for what memory need not hold.

    Raises:
        FileNotFoundError: as `read_text`.
        ValueError: as `read_text`, when the lines before the damage have been given.
    """
    blank: list[str] | None = []
    with open_bytes(path) as (stream, _):
        for line in whole_lines(path, stream):
            if blank is not None:
                blank.append(line)
                if not line.strip():
                    continue
                yield from blank
                blank = None
            else:
                yield line
    if blank is not None:
        raise ValueError(_nothing_in(path))


def read_text(path: Path) -> str:
    """A whole (decompressed) file as text, UTF-8, without a byte order mark, line ends as they are.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty, truncated or damaged, or not UTF-8 (names byte and offset).
    """
    with open_bytes(path) as (stream, _):
        data = stream.read()
    if not data.strip():
        raise ValueError(_nothing_in(path))
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        start = error.start + (len(_BOM) if data.startswith(_BOM) else 0)
        raise ValueError(_not_utf8(path, start, data[start])) from error


def _nothing_in(path: Path) -> str:
    return f"{path}: empty (nothing but white space)"


def _not_utf8(path: Path, offset: int, byte: int) -> str:
    where = f"offset {offset} of the decompressed text" if path.suffix.lower() in COMPRESSIONS else f"offset {offset}"
    return f"{path}: not UTF-8: byte 0x{byte:02x} at {where}; convert the file to UTF-8"


class _ZstdReader(io.RawIOBase):
    """Decompresses every frame of a Zstandard file; a truncated last frame is an EOFError.

    The library's own stream reader takes the end of the input for the end of the data.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._fed = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._fed = False
            compressed = compressed or self._raw.read(_BLOCK)
            if not compressed:
                if self._fed:
                    raise EOFError
                return 0
            self._fed = True
            self._ready = self._frame.decompress(compressed)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def json_object(line: str, where: str) -> dict[str, Any]:
    """A row of JSON Lines.

    Half of a surrogate pair, which JSON can spell and text cannot hold, becomes U+FFFD, as decoders have it.

    Args:
        line: One line.
        where: It stands, for errors.

    Raises:
        ValueError: If it is no JSON, or something else than an object.
    """
    row = parse_json(line, where, nan=True, line=False)
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not an object but {line.strip()[:40]!r}")
    if "\\ud" in line.lower():
        return {name: _whole(value) if isinstance(value, str) else value for name, value in row.items()}
    return row


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
