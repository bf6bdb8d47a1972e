"""Reads files: plain, `.xz`, `.gz` or `.zst`, and UTF-8 or a clear error.

`datasets` reads the same formats, but its errors name neither offset nor line, it cannot open pipes, and it reads half
of a `.zst` file as an empty one.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from mabert.files.reading import parse_json

COMPRESSIONS = (".xz", ".gz", ".zst")

_BLOCK = 1 << 20


def kind(path: Path) -> str:
    """Returns the lower-case suffix under any compression: `.txt` for `a.txt` and `a.TXT.xz`, `""` for none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file for reading, decompressed.

    Yields:
        The decompressed stream, and the raw file beneath it, whose `tell()` counts the bytes taken from disk.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, it is empty, or its compressed data is truncated or damaged.
    """
    check_is_file(path)
    suffix = path.suffix.lower()
    with path.open("rb") as raw:
        try:
            yield _decompressed(suffix, raw), raw
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and (error.errno is not None or suffix not in COMPRESSIONS):
                raise
            if isinstance(error, EOFError) or "Truncated" in str(error):
                damage = "truncated: the compressed data ends before its end mark; fetch it again"
            else:
                damage = f"damaged, or not {suffix} data: {error}"
            raise ValueError(f"{path}: {damage}") from error


def _decompressed(suffix: str, raw: BinaryIO) -> BinaryIO:
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if suffix == ".zst":
        import pyarrow as pa

        # Unlike zstandard's own reader, Arrow's notices a truncated file.
        return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), 1 << 20)
    return raw


def check_is_file(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a non-empty file or a pipe."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, where a file is needed")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path}: empty (0 bytes)")


def check_can_read_twice(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a file that can be read more than once, not a pipe."""
    check_is_file(path)
    if not path.is_file():
        raise ValueError(f"{path}: a pipe, which can be read once; write what comes from it to a file")


def lines(stream: Iterable[bytes], where: str | Path, longest: int | None = None) -> Iterator[str]:
    """Decodes lines as UTF-8. Keeps line ends, which a quoted CSV field may contain; drops a byte order mark.

    Args:
        stream: the lines.
        where: what they are read from, for messages.
        longest: most characters of a line; a longer one, of a binary file, comes in parts that are cut by
            `place_to_cut`, and is never held whole. Default, lines of any length come whole.

    Raises:
        ValueError: a line is not UTF-8; the message names `where`, the byte and its offset in the (decompressed) text.
    """
    blocks = stream if longest is None else iter(partial(cast(BinaryIO, stream).readline, _BLOCK), b"")
    number, before, tail, held = 1, 0, b"", ""
    for block in itertools.chain(blocks, [b""]):
        ends = longest is None or block[-1:] in (b"\n", b"")
        data = tail + block
        try:
            text, used = codecs.utf_8_decode(data, "strict", ends)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{data[error.start]:02x} at offset {before + error.start}"
            raise ValueError(f"{where}, line {number}: not UTF-8: {byte}; convert it to UTF-8") from error
        held += text if before else text.removeprefix("\ufeff")
        before, tail = before + used, data[used:]
        while longest is not None and len(held) > longest and len(held.rstrip("\r\n")) > longest:
            cut = place_to_cut(held, longest)
            yield held[:cut]
            held = held[cut:]
        if ends and held:
            yield held
            number, held = number + 1, ""


def place_to_cut(text: str, longest: int) -> int:
    """Returns where to cut a text of more than `longest` characters: before the last white space that leaves at most so
    many, or after so many if there is none. White space begins what follows, as tokenizers of every kind need it."""
    parts = text[: longest + 1].rsplit(None, 1)
    return len(parts[0]) if len(parts) == 2 else longest


def lines_of_text(path: Path) -> Iterator[str]:
    """Yields the lines of a (decompressed) file with their ends; errors are those of `open_bytes` and `lines`."""
    with open_bytes(path) as (stream, _):
        yield from lines(stream, path)


def read_text(path: Path) -> str:
    """Reads a whole (decompressed) file as text and keeps its line ends; raises ValueError if it is all white space."""
    text = "".join(lines_of_text(path))
    if not text.strip():
        raise ValueError(f"{path}: empty (nothing but white space)")
    return text


def json_object(line: str, where: str) -> dict[str, Any]:
    """Reads a row of JSON Lines; raises a ValueError that names `where` if it is not a JSON object."""
    row = parse_json(line, where, nan=True, line=False)
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not an object but {line.strip()[:40]!r}")
    return row
